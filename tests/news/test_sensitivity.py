import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.impressions import Impressions, News
from fedrec.errors import SettingsError
from fedrec.news.labels import report_clicks, report_impressions, share_without_click
from fedrec.news.sensitivity import eligible, exempt, opened, report_labels
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.selection import output_table, randomised_response, subset_selection
from fedrec.randomness import Streams

KEY = Streams(9).key("split")
CATEGORIES = tuple(["film", "politics", "health", "sport"][j % 4] for j in range(40))
OPEN = ("film", "sport")
OPEN_ITEMS = np.array([name in OPEN for name in CATEGORIES])
PROTECTED = [j for j in range(40) if CATEGORIES[j] in ("politics", "health")]
B = 6
H = 7


def news(
    categories: tuple[str, ...] = CATEGORIES, subcategories: tuple[str, ...] | None = None
) -> News:
    blank = ("",) * len(categories)
    ids = tuple(f"N{j}" for j in range(len(categories)))
    return News(ids, blank, blank, categories, subcategories or blank, ((),) * len(categories))


def topics() -> bounded_mean.TopicTable:
    return bounded_mean.topic_table(np.random.default_rng(1).dirichlet(np.full(B, 0.3), size=40))


def histories(users: int) -> np.ndarray:
    return np.random.default_rng(2).integers(-1, 40, size=(users, H)).astype(np.int32)


def test_at_infinite_budget_both_parts_add_up_to_the_plain_coefficients() -> None:
    table = topics()
    clicks = histories(30)
    got = bounded_mean.report(clicks, opened(table, news(), OPEN), mu=math.inf, name="x", key=KEY)
    assert got.values.shape == (30, 2 * B)
    np.testing.assert_allclose(
        bounded_mean.folded(got.values, got.told),
        bounded_mean.coefficients(clicks, table),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        bounded_mean.decode(got, bounded_mean.population(got)),
        bounded_mean.coefficients(clicks, table),
        atol=1e-12,
    )


def test_declaring_nothing_is_the_plain_table_and_a_guarantee_without_a_note() -> None:
    table = topics()
    assert opened(table, news(), ()) is table
    assert exempt(()) == ""


def test_open_clicks_are_told_exactly_and_protected_ones_reach_the_noised_part_alone() -> None:
    table = topics()
    clicks = histories(50)
    got = bounded_mean.report(clicks, opened(table, news(), OPEN), mu=0.1, name="x", key=KEY)
    alone = bounded_mean.coefficients(
        np.where(np.isin(clicks, np.flatnonzero(OPEN_ITEMS)), clicks, -1), table
    )
    np.testing.assert_allclose(got.values[:, B:], alone, atol=1e-12)
    np.testing.assert_array_equal(got.variances, [got.noise_std**2] * B + [0.0] * B)


@given(
    place=st.integers(0, H - 1),
    old=st.sampled_from([-1, *PROTECTED]),
    new=st.sampled_from([-1, *PROTECTED]),
)
@settings(max_examples=100, deadline=None)
def test_replacing_a_protected_click_moves_the_noised_part_by_at_most_the_bound_and_the_told_part_not_at_all(
    place: int, old: int, new: int
) -> None:
    table = opened(topics(), news(), OPEN)
    clicks = histories(3)
    clicks[1, place] = old
    other = clicks.copy()
    other[1, place] = new
    one, two = (
        bounded_mean.report(c, table, mu=math.inf, name="x", key=KEY).values
        for c in (clicks, other)
    )
    np.testing.assert_array_equal(one[:, B:], two[:, B:])
    assert np.linalg.norm(one[1] - two[1]) <= table.diameter / H * (1 + 1e-12)


def test_the_diameter_is_reached_by_protected_items_and_is_not_that_of_all() -> None:
    rows = np.zeros((40, B))
    rows[0, 0] = rows[3, 1] = 1.0  # a film and a sport, sqrt2 apart
    rows[1, 2] = 0.5
    rows[2, 3] = 0.25
    table = bounded_mean.topic_table(rows)
    assert table.diameter == pytest.approx(math.sqrt(2))
    assert opened(table, news(), OPEN).diameter == pytest.approx(math.hypot(0.5, 0.25))


def test_the_noise_has_the_std_of_the_protected_diameter_and_its_price_is_the_declared_one() -> None:  # fmt: skip
    """KS at level 1e-4, 12,000 numbers."""
    table = opened(topics(), news(), OPEN)
    clicks = histories(2000)
    mu = mu_for(3.0, 1e-5)
    got, bare = (
        bounded_mean.report(clicks, table, mu=m, name="x", key=KEY) for m in (mu, math.inf)
    )
    noise = (got.values - bare.values)[:, :B].ravel() * H * mu / table.diameter
    for factor, expected in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert bool(stats.kstest(noise / factor, "norm").pvalue > 1e-4) is expected
    assert epsilon_of(table.diameter / H / got.noise_std, 1e-5) == pytest.approx(3.0, rel=1e-6)
    assert got.event.mu == mu


def test_what_is_told_makes_the_guess_of_the_rest_better() -> None:
    """Users read one topic, in open and in protected items alike: knowing the open part, decoding
    errs by less than without it."""
    rng = np.random.default_rng(5)
    rows = np.zeros((40, 2))
    rows[np.arange(40), np.arange(40) // 4 % 2] = 1.0
    table = bounded_mean.topic_table(rows)
    taste = rng.integers(0, 2, 4000)
    clicks = (
        rng.integers(0, 5, (4000, H)) * 8 + 4 * taste[:, None] + rng.integers(0, 4, (4000, H))
    ).astype(np.int32)
    truth = bounded_mean.coefficients(clicks, table)
    errors = []
    for each in (table, opened(table, news(), OPEN)):
        got = bounded_mean.report(clicks, each, mu=0.3, name="x", key=KEY)
        errors.append(
            float(((bounded_mean.decode(got, bounded_mean.population(got)) - truth) ** 2).mean())
        )
    assert errors[1] < 0.5 * errors[0]


def test_an_item_is_open_only_where_all_its_categories_are_and_protected_where_it_has_none() -> None:  # fmt: skip
    mixed = news(("film", "film", "", "sport"), ("film|sport", "film|health", "", "golf"))
    table = bounded_mean.topic_table(np.eye(4))
    assert opened(table, mixed, OPEN).open_items.tolist() == [True, False, False, True]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("categories", "said"),
    [(("weather",), "weather"), (("film", "sport", "politics", "health"), "nothing to protect")],
)
def test_a_category_that_no_item_has_and_opening_everything_are_refused(
    categories: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        opened(topics(), news(), categories)


def impressions(clicked: list[list[int]], shown: list[int]) -> Impressions:
    n = len(clicked)
    C = len(shown)
    flags = np.array([[place in row for place in range(C)] for row in clicked]).ravel()
    ptr = C * np.arange(n + 1, dtype=np.int64)
    empty = np.zeros(2, np.int64)
    return Impressions(
        40,
        empty,
        np.empty(0, np.int32),
        np.zeros(n, np.int32),
        ptr,
        np.tile(np.array(shown, np.int32), n),
        flags,
    )


SHOWN = [0, 1, 2, 3, 5]  # film, politics, health, sport, politics


def test_open_labels_are_told_and_protected_ones_answer_among_themselves() -> None:
    """Chi-squared at level 1e-4 over three protected candidates, 20,000 answers."""
    data = impressions([[0]] * 10 + [[2]] * 20_000, SHOWN)
    got = report_labels(data, OPEN_ITEMS, epsilon=1.0, key=KEY, mechanism=randomised_response)
    places = got.single
    assert (places[:10] == 0).all()
    counts = np.bincount(places[10:], minlength=5)
    assert counts[[0, 3]].sum() == 0
    law = output_table(randomised_response(3, 1.0))[1]
    assert stats.chisquare(counts[[1, 2, 4]], law * 20_000).pvalue > 1e-4
    assert got.event == randomised_response(3, 1.0).event("label")


def test_whether_a_label_is_told_does_not_depend_on_which_protected_candidate_was_clicked() -> None:
    """Several clicks: an open one is told only where no protected one was clicked.

    Replacing 1 by 2, clicked already, changes nothing."""
    for clicked, told in (
        ([0, 1, 2], False),
        ([0, 2], False),
        ([0, 4], False),
        ([1], False),
        ([0, 3], True),
    ):
        got = report_labels(
            impressions([clicked], SHOWN),
            OPEN_ITEMS,
            epsilon=1.0,
            key=KEY,
            mechanism=subset_selection,
        )
        assert bool(got.reported[[0, 3]].any()) is told


def test_without_open_items_labels_are_the_plain_ones_and_without_protected_ones_they_are_the_clicks() -> None:  # fmt: skip
    data = impressions([[0], [2, 3], [4]], SHOWN)
    nothing = report_labels(
        data, np.zeros(40, bool), epsilon=1.0, key=KEY, mechanism=subset_selection
    )
    np.testing.assert_array_equal(
        nothing.reported,
        report_clicks(data, epsilon=1.0, key=KEY, mechanism=subset_selection).reported,
    )
    everything = report_labels(
        data, np.ones(40, bool), epsilon=1.0, key=KEY, mechanism=subset_selection
    )
    assert everything.single.tolist()[::2] == [0, 4]
    assert everything.single[1] in (2, 3)
    with pytest.raises(ValueError, match="no click"):
        report_labels(
            impressions([[]], SHOWN), OPEN_ITEMS, epsilon=1.0, key=KEY, mechanism=subset_selection
        )


def test_the_eligible_candidates_give_the_likelihood_of_second_code() -> None:
    pi = np.array([0.3, 0.1, 0.2, 0.15, 0.25])
    epsilon = 1.2
    Z = math.exp(epsilon) + 2
    for click in range(5):
        got = report_labels(
            impressions([[click]], SHOWN),
            OPEN_ITEMS,
            epsilon=epsilon,
            key=KEY,
            mechanism=randomised_response,
        )
        among = eligible(got, OPEN_ITEMS[np.array(SHOWN)])
        y = got.single[0]
        told = y in (0, 3)
        expected = (
            pi[y] * math.exp(epsilon)
            if told
            else sum(pi[x] * (math.exp(epsilon) if x == y else 1) / Z for x in (1, 2, 4)) * Z
        )
        assert (pi * (among + math.expm1(epsilon) * got.reported)).sum() == pytest.approx(
            expected, rel=1e-12
        )


@pytest.mark.parametrize("epsilon", [1.0, 4.0, math.inf])
def test_the_share_of_impressions_without_a_click_is_found_from_their_answers(
    epsilon: float,
) -> None:
    """40,000 answers: the standard error is at most .011 at epsilon 1, five of them are allowed
    (false alarm below 1e-6)."""
    clicked = [[] if i % 4 == 0 else [i % 5] for i in range(40_000)]
    got = report_impressions(
        impressions(clicked, SHOWN), epsilon=epsilon, key=KEY, mechanism=subset_selection
    )
    assert share_without_click(got, mechanism=subset_selection) == pytest.approx(0.25, abs=0.055)
