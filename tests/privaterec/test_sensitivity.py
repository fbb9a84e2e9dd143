import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.impressions import Impressions
from fedrec.privacy.selection import output_table, randomised_response
from fedrec.privaterec import additive
from fedrec.privaterec.sensitivity import declarations, split_labels, split_log_likelihood, split_report
from fedrec.streams import Streams

KEY = Streams(9).key("split")
CATEGORIES = tuple(["film", "politics", "health", "sport"][j % 4] for j in range(40))
PROTECTED = [j for j in range(40) if CATEGORIES[j] in ("politics", "health")]
LIGHT = frozenset({"film", "sport"})


def topics() -> additive.TopicTable:
    return additive.topic_table(np.random.default_rng(1).dirichlet(np.full(6, 0.3), size=40))


def histories(users: int, H: int = 7) -> np.ndarray:
    return np.random.default_rng(2).integers(-1, 40, size=(users, H)).astype(np.int32)


def test_what_is_declared_free_is_exact_and_declaring_all_spends_nothing() -> None:
    table, clicks = topics(), histories(30)
    everything = declarations(CATEGORIES, (frozenset(CATEGORIES),) * 30)
    got = split_report(clicks, table, everything, mu=0.1, name="x", key=KEY)
    assert got.exempt.all()
    np.testing.assert_allclose(got.exact + got.noised.values, additive.coefficients(clicks, table), atol=1e-15)
    np.testing.assert_allclose(got.decoded(additive.population(got.noised)), additive.coefficients(clicks, table), atol=1e-15)


def test_declaring_nothing_is_the_plain_report() -> None:
    table, clicks = topics(), histories(30)
    got = split_report(clicks, table, declarations(CATEGORIES, (frozenset(),) * 30), mu=1.0, name="x", key=KEY)
    plain = additive.report(clicks, table, mu=1.0, name="x", key=KEY)
    np.testing.assert_array_equal(got.noised.values, plain.values)
    assert (got.exact == 0).all()
    assert not got.exempt.any()
    assert got.event == plain.event


def test_at_infinite_budget_both_parts_add_up_to_the_plain_coefficients() -> None:
    table, clicks = topics(), histories(30)
    mixed = declarations(CATEGORIES, (LIGHT, frozenset(), frozenset(CATEGORIES)) * 10)
    got = split_report(clicks, table, mixed, mu=math.inf, name="x", key=KEY)
    np.testing.assert_allclose(got.exact + got.noised.values, additive.coefficients(clicks, table), atol=1e-15)


@given(place=st.integers(0, 6), old=st.sampled_from(PROTECTED), new=st.sampled_from(PROTECTED))
@settings(max_examples=100, deadline=None)
def test_replacing_a_protected_click_moves_the_noised_part_by_at_most_the_bound_and_the_exact_part_not_at_all(
    place: int, old: int, new: int
) -> None:
    table, declared = topics(), declarations(CATEGORIES, (LIGHT,) * 3)
    clicks = histories(3)
    clicks[1, place] = old
    other = clicks.copy()
    other[1, place] = new
    one, two = (split_report(c, table, declared, mu=math.inf, name="x", key=KEY) for c in (clicks, other))
    np.testing.assert_array_equal(one.exact, two.exact)
    np.testing.assert_array_equal(one.exempt, two.exempt)
    assert np.linalg.norm(one.noised.values[1] - two.noised.values[1]) <= table.diameter / 7 * (1 + 1e-12)


def test_the_protected_part_has_the_declared_noise() -> None:
    """KS at level 1e-4, 12,000 numbers."""
    table, clicks = topics(), histories(2000)
    declared = declarations(CATEGORIES, (LIGHT,) * 2000)
    got, plain = (split_report(clicks, table, declared, mu=mu, name="x", key=KEY) for mu in (1.0, math.inf))
    noise = (got.noised.values - plain.noised.values).ravel() / got.noised.noise_std
    for factor, expected in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert bool(stats.kstest(noise / factor, "norm").pvalue > 1e-4) is expected


def impressions(clicked: list[list[int]], shown: list[int]) -> Impressions:
    n, C = len(clicked), len(shown)
    flags = np.array([[place in row for place in range(C)] for row in clicked]).ravel()
    ptr = C * np.arange(n + 1, dtype=np.int64)
    empty = np.zeros(2, np.int64)
    return Impressions(40, empty, np.empty(0, np.int32), np.zeros(n, np.int32), ptr, np.tile(np.array(shown, np.int32), n), flags)


def test_free_labels_are_told_and_protected_ones_answer_among_themselves() -> None:
    """Shown: film, politics, health, sport, politics. Chi-squared at level 1e-4 over three protected candidates, 20,000 answers."""
    declared = declarations(CATEGORIES, (LIGHT,))
    data = impressions([[0]] * 10 + [[2]] * 20_000, [0, 1, 2, 3, 5])
    got = split_labels(data, declared, epsilon=1.0, key=KEY)
    assert got.told[:10].all()
    assert not got.told[10:].any()
    assert (got.places[:10] == 0).all()
    counts = np.bincount(got.places[10:], minlength=5)
    assert counts[[0, 3]].sum() == 0
    law = output_table(randomised_response(3, 1.0))[1]
    assert stats.chisquare(counts[[1, 2, 4]], law * 20_000).pvalue > 1e-4
    assert got.event == randomised_response(3, 1.0).event("label")


def test_whether_a_label_is_told_does_not_depend_on_which_protected_candidate_was_clicked() -> None:
    """Several clicks: a free one is told only where no protected one was clicked. Replacing 1 by 2, clicked already, changes nothing."""
    declared = declarations(CATEGORIES, (LIGHT,))
    for clicked in ([0, 1, 2], [0, 2], [0, 4], [1]):
        assert not split_labels(impressions([clicked], [0, 1, 2, 3, 5]), declared, epsilon=1.0, key=KEY).told[0]
    assert split_labels(impressions([[0, 3]], [0, 1, 2, 3, 5]), declared, epsilon=1.0, key=KEY).told[0]


def test_declared_labels_at_infinite_epsilon_are_the_clicks_and_their_likelihood_is_that_of_second_code() -> None:
    declared = declarations(CATEGORIES, (LIGHT,))
    data = impressions([[x] for x in range(5)], [0, 1, 2, 3, 5])
    np.testing.assert_array_equal(split_labels(data, declared, epsilon=math.inf, key=KEY).places, range(5))
    pi, epsilon = np.array([0.3, 0.1, 0.2, 0.15, 0.25]), 1.2
    got = split_labels(data, declared, epsilon=epsilon, key=KEY)
    Z = math.exp(epsilon) + 2
    response = {x: {y: (math.exp(epsilon) if x == y else 1) / Z for y in (1, 2, 4)} for x in (1, 2, 4)}
    for i, y in enumerate(got.places.tolist()):
        expected = pi[y] if got.told[i] else sum(pi[x] * response[x][y] for x in (1, 2, 4)) * Z
        fit = split_log_likelihood(pi[got.places], np.full(5, 0.55), got)[i]
        assert fit == pytest.approx(math.log(expected), rel=1e-12)


def test_a_category_that_no_item_has_is_refused() -> None:
    with pytest.raises(ValueError, match="weather"):
        declarations(CATEGORIES, (frozenset({"weather"}),))
    with pytest.raises(ValueError, match="no click"):
        split_labels(impressions([[]], [0, 1]), declarations(CATEGORIES, (LIGHT,)), epsilon=1.0, key=KEY)
