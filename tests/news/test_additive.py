import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.errors import PrivacyError
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import delta_of, mu_for
from fedrec.privacy.bounded_mean import Coefficients, Population
from fedrec.randomness import Streams

KEY = Streams(7).key("report")


def topics(items: int = 40, width: int = 6, seed: int = 1) -> bounded_mean.TopicTable:
    return bounded_mean.topic_table(
        np.random.default_rng(seed).dirichlet(np.full(width, 0.3), size=items)
    )


def directions(items: int = 40, width: int = 6, seed: int = 1) -> bounded_mean.TopicTable:
    rows = np.random.default_rng(seed).standard_normal((items, width))
    return bounded_mean.topic_table(rows / np.linalg.norm(rows, axis=1, keepdims=True))


BOTH = pytest.mark.parametrize("table", [topics(), directions()], ids=["topics", "directions"])


def histories(users: int, H: int, items: int = 40, seed: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    table = rng.integers(items, size=(users, H)).astype(np.int32)
    table[rng.random((users, H)) < 0.2] = -1
    return table


@BOTH
def test_at_infinite_budget_the_report_is_the_average_of_public_rows(
    table: bounded_mean.TopicTable,
) -> None:
    clicks = histories(9, 7)
    got = bounded_mean.report(clicks, table, mu=math.inf, name="history", key=KEY)
    plain = [sum((table.weights[j] for j in row if j >= 0), np.zeros(6)) / 7 for row in clicks]
    np.testing.assert_allclose(got.values, plain, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(bounded_mean.coefficients(clicks, table), got.values)
    np.testing.assert_array_equal(
        bounded_mean.decode(got, bounded_mean.population(got)), got.values
    )
    np.testing.assert_allclose(
        topics().weights,
        np.random.default_rng(1).dirichlet(np.full(6, 0.3), size=40),
        atol=2.0**-20,
    )


def test_reports_of_people_with_one_history_have_noise_of_their_own() -> None:
    """Correlation of two people's noise over 200 numbers below 7 standard errors; of one key it is
    1."""
    table = topics(width=200)
    clicks = np.repeat(histories(1, 7), 5, axis=0)
    keys = [Streams(7).key(f"user/{k}") for k in range(5)]
    got = bounded_mean.report_each(clicks, table, mu=1.0, name="history", keys=keys).values
    z = got - bounded_mean.coefficients(clicks, table)
    assert np.abs(np.corrcoef(z) - np.eye(5)).max() < 7 / math.sqrt(200)
    again = bounded_mean.report_each(clicks[:1], table, mu=1.0, name="history", keys=keys[3:4])
    np.testing.assert_array_equal(again.values[0], got[3])


@given(place=st.integers(0, 6), old=st.integers(-1, 39), new=st.integers(-1, 39),
seed=st.integers(0, 5), user=st.integers(0, 2),
       made=st.sampled_from([topics, directions]))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_replacing_adding_or_removing_a_click_moves_one_row_by_at_most_the_declared_bound(
    place: int,
    old: int,
    new: int,
    seed: int,
    user: int,
    made: Callable[..., bounded_mean.TopicTable],
) -> None:
    table = made(seed=seed)
    clicks = histories(3, 7)
    clicks[user, place] = old
    other = clicks.copy()
    other[user, place] = new
    moved = np.linalg.norm(
        bounded_mean.coefficients(clicks, table) - bounded_mean.coefficients(other, table), axis=1
    )
    assert moved[user] <= table.diameter / 7 * (1 + 1e-12)
    assert (np.delete(moved, user) == 0).all()


@given(
    rows=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=1, max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_the_diameter_is_the_largest_of_all_pairs_and_zero(rows: list[list[int]]) -> None:
    table = np.array(rows, np.int64)
    brute = max([math.dist(x, y) for x, y in combinations([*rows, [0, 0, 0]], 2)])
    assert brute <= bounded_mean.diameter(table) <= brute * (1 + 1e-15) + 1e-300


def test_the_diameter_of_many_blocks_is_that_of_all_pairs_and_one_hot_rows_have_root_two() -> None:
    for rows in (topics(items=2600, width=4).rows, directions(items=2600, width=12).rows):
        everyone = (rows**2).sum(1)[:, None] + (rows**2).sum(1) - 2 * rows @ rows.T
        assert bounded_mean.diameter(rows) == pytest.approx(math.sqrt(everyone.max()), rel=1e-15)
    assert bounded_mean.topic_table(np.eye(5)).diameter == pytest.approx(math.sqrt(2), rel=1e-15)
    assert bounded_mean.topic_table(np.array([[0.6, 0.8], [-0.6, -0.8]])).diameter == pytest.approx(
        2, rel=1e-5
    )
    # a click against padding
    assert bounded_mean.topic_table(np.full((3, 4), 0.25)).diameter == pytest.approx(0.5, rel=1e-15)


@BOTH
def test_noise_has_the_declared_std_and_not_two_thirds_or_three_halves_of_it(
    table: bounded_mean.TopicTable,
) -> None:
    """KS at level 1e-4, 12,000 numbers; and the declared std is the calibrated one for the table's
    own diameter."""
    clicks = histories(2000, 7)
    mu = mu_for(5.0, 1e-5)
    got = bounded_mean.report(clicks, table, mu=mu, name="history", key=KEY)
    noise = (got.values - bounded_mean.coefficients(clicks, table)).ravel()
    assert got.noise_std == pytest.approx(table.diameter / 7 / mu, rel=1e-6)
    for factor, expected in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert (
            bool(stats.kstest(noise / (got.noise_std * factor), "norm").pvalue > 1e-4) is expected
        )


@pytest.mark.parametrize(("epsilon", "std"), [(1, 0.1055), (5, 0.0252), (10, 0.0141)])
@pytest.mark.parametrize("signed", [False, True])
def test_epsilon_equals_an_independent_computation(
    epsilon: float, std: float, signed: bool
) -> None:
    """H = 50; one-hot topics: sqrt2 / (H mu), and opposite directions: 2 / (H mu); and the hockey
    stick of two Gaussians on a grid."""
    std, shift = (std * math.sqrt(2), 2 / 50) if signed else (std, math.sqrt(2) / 50)
    table = bounded_mean.topic_table(np.vstack([np.eye(32), -np.eye(32)]) if signed else np.eye(32))
    mu = mu_for(epsilon, 1e-5)
    s = bounded_mean.noise_std(table, 50, mu=mu)
    assert s == pytest.approx(std, abs=9e-5)
    z = np.linspace(-12 * s, shift + 12 * s, 400_001)
    p = stats.norm.pdf(z, shift, s)
    q = stats.norm.pdf(z, 0, s)
    assert np.maximum(p - math.exp(epsilon) * q, 0).sum() * (z[1] - z[0]) == pytest.approx(
        1e-5, rel=1e-3
    )
    assert delta_of(mu, epsilon) <= 1e-5


def test_the_lattice_is_paid_for() -> None:
    table = topics()
    mu = 3.0
    s = bounded_mean.noise_std(table, 50, mu=mu)
    step = 2.0**-20 / 50
    assert table.diameter / 50 / math.sqrt(s**2 - 4 * step**2) <= mu
    values = bounded_mean.report(histories(5, 50), table, mu=mu, name="x", key=KEY).values / step
    # on the grid: nothing hides below it
    np.testing.assert_allclose(values, np.rint(values), rtol=0, atol=1e-6)


def test_population_and_decoding_are_those_of_a_gaussian_posterior() -> None:
    """40,000 users from a known law: moments within 5 standard errors, and the decoded ones as good
    as with the true moments."""
    rng = np.random.default_rng(4)
    mean = np.array([0.2, 0.1, 0.3])
    root = np.array([[0.1, 0, 0], [0.05, 0.08, 0], [0, 0.02, 0.03]])
    s = 0.1
    truth = mean + rng.standard_normal((40_000, 3)) @ root.T
    event = bounded_mean.report(histories(1, 7), topics(), mu=1.0, name="x", key=KEY).event
    reports = Coefficients(truth + s * rng.standard_normal(truth.shape), s, event)
    over = bounded_mean.population(reports)
    C = root @ root.T
    np.testing.assert_allclose(over.mean, mean, atol=5 * 0.16 / 200)
    np.testing.assert_allclose(over.covariance, C, atol=5 * 0.04 / 200)
    posterior = mean + (reports.values - mean) @ np.linalg.solve(C + s**2 * np.eye(3), C)
    errors = [
        np.square(d - truth).mean()
        for d in (bounded_mean.decode(reports, over), posterior, reports.values)
    ]
    assert errors[0] < 1.01 * errors[1] < 0.7 * errors[2]
    np.testing.assert_allclose(
        bounded_mean.decode(reports, Population(mean, C)), posterior, atol=1e-12
    )


def test_planted_interests_are_found_from_noised_reports() -> None:
    """Each user reads one of 5 topics: at epsilon 5 and H = 50 the decoded coefficients name it for
    all but one in a hundred."""
    table = bounded_mean.topic_table(np.eye(5)[np.arange(100) % 5])
    rng = np.random.default_rng(5)
    truth = rng.integers(5, size=1000)
    clicks = 5 * rng.integers(20, size=(1000, 50)) + np.where(
        rng.random((1000, 50)) < 0.6, truth[:, None], rng.integers(5, size=(1000, 50))
    )
    reports = bounded_mean.report(
        clicks.astype(np.int32), table, mu=mu_for(5.0, 1e-5), name="history", key=KEY
    )
    assert (
        bounded_mean.decode(reports, bounded_mean.population(reports)).argmax(1) == truth
    ).mean() > 0.99


def test_a_row_is_a_function_of_its_own_history_the_key_and_nothing_else() -> None:
    table = topics()
    clicks = histories(4, 7)
    both = [
        bounded_mean.report(c, table, mu=1.0, name="x", key=KEY).values
        for c in (clicks, np.concatenate([clicks[:2], clicks[2:][::-1]]))
    ]
    np.testing.assert_array_equal(both[0][:2], both[1][:2])
    assert (
        bounded_mean.report(clicks, table, mu=1.0, name="x", key=Streams(8).key("a")).values
        != both[0]
    ).all()


def test_bad_tables_and_histories_are_refused() -> None:
    for bad in (
        np.array([[0.8, 0.7]]),
        np.array([[-0.1, 1.0]]),
        np.array([[1e9, 0.0]]),
        np.array([[np.nan, 0.5]]),
        np.zeros((0, 2)),
    ):
        with pytest.raises(ValueError):
            bounded_mean.topic_table(bad)
    for history in (np.array([[40]]), np.array([[-2]]), np.zeros((2, 0), int), np.array([1])):
        with pytest.raises(ValueError):
            bounded_mean.coefficients(history, topics())
    with pytest.raises(PrivacyError, match="finer"):
        bounded_mean.report(np.array([[0]]), topics(), mu=1e7, name="x", key=KEY)
