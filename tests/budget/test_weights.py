from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.factorization import empirical_bayes, weights
from fedrec.factorization.weights import UserWeights
from tests.histories import clicks_of

Floats = npt.NDArray[np.float64]
M = 30

histories = st.lists(st.sets(st.integers(0, M - 1), max_size=M), min_size=1, max_size=12)
counts = st.lists(st.floats(1, 1e6), min_size=M, max_size=M).map(lambda c: np.array(c, np.float64))
budgets = st.floats(1e-6, 1e6)
exponents = st.floats(0, 1)


def exact_squares(result: UserWeights, interactions: Interactions) -> list[Fraction]:
    """Each user's sum of squares in rational arithmetic: no rounding of ours hides in the check."""
    w = [Fraction(float(x)) for x in result.values]
    ptr = interactions.user_ptr
    return [
        sum((x * x for x in w[ptr[k] : ptr[k + 1]]), Fraction(0))
        for k in range(interactions.num_users)
    ]


@settings(max_examples=60, deadline=None)
@given(histories, counts, budgets, exponents)
def test_normalised_weights_spend_exactly_the_budget_and_never_more(
    h: list[set[int]], n: Floats, budget: float, mu: float
) -> None:
    data = clicks_of(h, M)
    result = weights.normalised(data, n, mu=mu, budget=budget)
    for history, squares in zip(h, exact_squares(result, data), strict=True):
        assert squares <= Fraction(budget)
        if history:
            assert float(squares) == pytest.approx(budget, rel=1e-13)


@settings(max_examples=60, deadline=None)
@given(histories, counts, budgets, exponents)
def test_no_way_of_weighting_lets_a_user_pass_the_budget(
    h: list[set[int]], n: Floats, budget: float, mu: float
) -> None:
    data = clicks_of(h, M)
    for result in (
        weights.adaptive_as_printed(data, n, mu=mu, budget=budget),
        weights.adaptive_as_printed(data, n, mu=mu, budget=budget, slack=4.0),
        weights.am_ssp_as_printed(data, n, budget=budget),
        weights.uniform(data, budget=budget),
        weights.clipped(data, n, budget=budget),
    ):
        assert result.bound**2 == pytest.approx(budget)
        assert all(squares <= Fraction(budget) for squares in exact_squares(result, data))


@settings(max_examples=40, deadline=None)
@given(histories, counts, exponents, st.data())
def test_removing_a_user_moves_weighted_sums_by_at_most_the_bound_and_leaves_the_others_alone(
    h: list[set[int]], n: Floats, mu: float, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(h) - 1))
    everybody = clicks_of(h, M)
    rest = clicks_of([x for k, x in enumerate(h) if k != gone] or [set()], M)
    sums = []
    others = []
    for interactions in (everybody, rest):
        result = weights.normalised(interactions, n, mu=mu, budget=2.0)
        sums.append(np.bincount(interactions.items, result.values, minlength=M))
        others.append(result.values)
    assert np.linalg.norm(sums[0] - sums[1]) <= result.bound * (1 + 1e-12)
    stays = everybody.users != gone
    assert others[0][stays].tobytes() == others[1].tobytes()


def test_eq_16_is_what_a_lagrangian_would_choose_and_eq_11_its_special_case() -> None:
    n = np.array([1.0, 10.0, 400.0])
    for gamma in (0.0, 1.0):
        expected = n ** (-(gamma + 1) / 4) / np.sqrt(np.sum(n ** ((1 - gamma) / 2)) / (50 * 0.3))
        got = weights.task_weights(
            n, mu=weights.exponent(gamma), budget=0.6, num_users=50, slack=2.0
        )
        np.testing.assert_allclose(got, expected)
        # the relaxed constraint of eq. 10 is met with equality
        assert np.sum(n * got**2) / 50 == pytest.approx(0.3)


def test_eq_12_scales_down_whoever_exceeds_the_budget_and_nobody_else() -> None:
    data = clicks_of([{0, 1}, {0, 1, 2}], M)
    task = np.zeros(M)
    task[:3] = (0.3, 0.4, 1.2)
    got = weights.clipped(data, task, budget=0.36)
    # norm .5 is below the root of the budget
    np.testing.assert_array_equal(got.values[:2], (0.3, 0.4))
    np.testing.assert_allclose(got.values[2:], np.array((0.3, 0.4, 1.2)) * 0.6 / 1.3)


def test_app_e_as_printed_wastes_budget_by_the_erratum_and_the_half_exponent_does_not() -> None:
    data = clicks_of([{0, 1}], M)
    n = np.ones(M)
    n[:2] = (16.0, 81.0)
    printed = weights.am_ssp_as_printed(data, n, budget=4.0)
    np.testing.assert_allclose(
        printed.values, 2 * np.array((1 / 2, 1 / 3)) / np.sqrt(1 / 2 + 1 / 3)
    )
    assert np.sum(printed.values**2) == pytest.approx(4 * (1 / 4 + 1 / 9) / (1 / 2 + 1 / 3))
    exact = weights.normalised(data, n, mu=0.25, budget=4.0)
    np.testing.assert_allclose(exact.values, 2 * np.array((1 / 2, 1 / 3)) / np.sqrt(1 / 4 + 1 / 9))


def test_a_users_weights_do_not_depend_on_the_shard_it_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    data = clicks_of(
        [set(rng.choice(M, rng.integers(1, M), replace=False).tolist()) for _ in range(50)], M
    )
    n = rng.pareto(1, M) + 1
    whole = weights.normalised(data, n, mu=0.3, budget=1.0).values
    parts = [
        weights.normalised(data.users_subset(np.arange(a, a + 10)), n, mu=0.3, budget=1.0).values
        for a in range(0, 50, 10)
    ]
    monkeypatch.setattr("fedrec.numerics.threads.cores", lambda: 1)
    alone = weights.normalised(data, n, mu=0.3, budget=1.0).values
    assert whole.tobytes() == np.concatenate(parts).tobytes() == alone.tobytes()


def test_eq_16_is_the_same_in_every_shard_once_told_the_population() -> None:
    rng = np.random.default_rng(0)
    data = clicks_of(
        [set(rng.choice(M, rng.integers(1, M), replace=False).tolist()) for _ in range(20)], M
    )
    n = rng.pareto(1, M) + 1
    whole = weights.adaptive_as_printed(data, n, mu=0.25, budget=1.0).values
    shards = [data.users_subset(np.arange(a, a + 5)) for a in range(0, 20, 5)]
    parts = [
        weights.adaptive_as_printed(shard, n, mu=0.25, budget=1.0, num_users=20).values
        for shard in shards
    ]
    assert whole.tobytes() == np.concatenate(parts).tobytes()


def test_a_user_that_names_an_item_twice_is_refused() -> None:
    data = Interactions.from_columns(
        np.array([0, 1, 1]), np.array([2, 5, 5]), None, num_users=2, num_items=M, value_range=(0, 1)
    )
    with pytest.raises(ValueError, match="user 1 has item 5 twice"):
        weights.uniform(data, budget=1.0)


@pytest.mark.parametrize("bad", [0.5, -3.0, float("nan"), float("inf")])
def test_counts_below_one_or_not_finite_are_refused(bad: float) -> None:
    n = np.ones(M)
    n[4] = bad
    with pytest.raises(ValueError, match="counts of at least 1"):
        weights.normalised(clicks_of([{1}], M), n, mu=0.25, budget=1.0)


@pytest.mark.parametrize("budget", [0.0, float("inf"), float("nan")])
def test_a_budget_that_bounds_nothing_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        weights.uniform(clicks_of([{1}], M), budget=budget)


def test_tail_weights_keep_the_total_budget_and_forget_counts_that_noise_hides() -> None:
    counts = np.array([0.0, 1.0, 10.0, 1000.0])
    for exponent in (0.0, 0.25, 0.5):
        omega = empirical_bayes.tail_weights(counts, noise_std=2.0, exponent=exponent)
        assert counts @ omega**2 == pytest.approx(counts.sum())
    np.testing.assert_allclose(
        empirical_bayes.tail_weights(counts, noise_std=2.0, exponent=0.0), 1.0
    )
    exact, hidden = (
        empirical_bayes.tail_weights(counts, noise_std=std, exponent=0.25) for std in (0.0, 1e9)
    )
    np.testing.assert_allclose(exact[2] / exact[3], 100**0.25)
    np.testing.assert_allclose(hidden, 1.0, rtol=1e-5)
