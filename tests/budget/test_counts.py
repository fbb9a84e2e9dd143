import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedrec.budget import counts
from fedrec.budget.counts import CountPrior, LogNormal
from fedrec.data.interactions import Interactions

Floats = npt.NDArray[np.float64]
M = 25


def interactions_of(histories: list[set[int]]) -> Interactions:
    users = np.repeat(np.arange(len(histories)), [len(h) for h in histories])
    items = np.array([j for h in histories for j in h], np.int64)
    return Interactions.from_columns(
        users, items, None, num_users=len(histories), num_items=M, value_range=(0, 1), kind="clicks"
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, M - 1), max_size=M), min_size=1, max_size=10),
    st.integers(1, 30),
    st.data(),
)
def test_removing_a_user_moves_the_sums_by_at_most_the_bound(
    h: list[set[int]], limit: int, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(h) - 1))
    everybody = interactions_of(h)
    emptied = interactions_of([x if k != gone else set() for k, x in enumerate(h)])
    with_user, without = (
        counts.clipped_contributions(i, limit=limit) for i in (everybody, emptied)
    )
    sums = [
        np.bincount(i.items, c.values, minlength=M)
        for i, c in ((everybody, with_user), (emptied, without))
    ]
    assert np.linalg.norm(sums[0] - sums[1]) <= with_user.bound * (1 + 1e-12)


def test_clipped_contributions_have_the_limit_s_norm_at_most_and_are_plain_counts_under_it() -> None:  # fmt: skip
    data = interactions_of([{1, 2, 3, 4}, {5}])
    np.testing.assert_allclose(
        counts.clipped_contributions(data, limit=1).values, [0.5, 0.5, 0.5, 0.5, 1.0]
    )
    np.testing.assert_array_equal(counts.clipped_contributions(data, limit=9).values, np.ones(5))
    assert counts.clipped_contributions(data, limit=9).bound == 3.0


def test_clipping_at_one_leaves_larger_counts() -> None:
    np.testing.assert_array_equal(counts.at_least_one(np.array([-4.0, 0.3, 7.5])), [1.0, 1.0, 7.5])


@pytest.mark.parametrize(
    ("family", "parameters", "density"),
    [
        (LogNormal(), (1.5, math.log(0.8)), stats.lognorm(s=0.8, scale=math.exp(1.5)).pdf),
    ],
)
@pytest.mark.parametrize("noisy", [-9.0, 0.0, 2.0, 40.0, 61.0])
def test_posterior_means_agree_with_adaptive_quadrature(
    family: CountPrior, parameters: tuple[float, float], density: stats.rv_continuous, noisy: float
) -> None:
    noise_std = 5.0

    def moment(power: int) -> float:
        def integrand(t: float) -> float:  # over log c
            c = math.exp(t)
            return (
                c**power * c * float(density(c)) * math.exp(-0.5 * ((noisy - c) / noise_std) ** 2)
            )

        return float(
            integrate.quad(
                integrand,
                -40,
                math.log(noise_std * 40),
                limit=400,
                points=[math.log(max(noisy, 1))],
            )[0]
        )

    got = counts._moments(family, parameters, np.array([noisy]), noise_std)
    assert got.mean[0] == pytest.approx(moment(1) / moment(0), rel=2e-3)
    assert got.std[0] == pytest.approx(
        math.sqrt(moment(2) / moment(0) - (moment(1) / moment(0)) ** 2), rel=5e-3
    )


@pytest.mark.parametrize(
    ("prior", "parameters", "truth"),
    [
        (LogNormal(), (math.log(20.0), math.log(1.4)), stats.lognorm(s=1.4, scale=20.0)),
    ],
    ids=["log-normal"],
)
def test_a_planted_long_tail_is_found_under_noise_as_well_as_by_who_knows_it_and_better_than_by_clipping(
    prior: CountPrior, parameters: tuple[float, float], truth: stats.rv_continuous
) -> None:
    rng = np.random.default_rng(0)
    true = truth.rvs(4000, random_state=rng)
    noisy = true + rng.normal(0, 15.0, 4000)
    posterior = counts.shrink(noisy, noise_std=15.0, prior=prior)
    oracle = counts._moments(prior, parameters, noisy, 15.0).mean
    errors = [
        float(np.sqrt(np.mean((x - true) ** 2)))
        for x in (posterior.mean, oracle, counts.at_least_one(noisy))
    ]
    assert errors[0] < 1.01 * errors[1]
    assert errors[0] < 0.95 * errors[2]
    assert posterior.mean.mean() == pytest.approx(true.mean(), rel=0.05)
    # it knows how wrong it is
    assert np.sqrt(np.mean(posterior.std**2)) == pytest.approx(errors[0], rel=0.1)
    logs = posterior.log_mean - np.log(true)
    assert abs(float(logs.mean())) < 0.1


def test_vanishing_noise_gives_the_counts_back() -> None:
    true = np.random.default_rng(0).pareto(1.0, 500) + 1
    np.testing.assert_allclose(counts.shrink(true, noise_std=1e-9).mean, true, rtol=1e-8)
    np.testing.assert_array_equal(counts.shrink(true, noise_std=0.0).mean, true)


def test_pure_noise_and_tiny_catalogues_still_give_finite_positive_counts() -> None:
    rng = np.random.default_rng(0)
    for noisy in (rng.normal(0, 100, 300), np.full(5, -800.0), np.array([3.0])):
        posterior = counts.shrink(noisy, noise_std=100.0)
        assert bool(np.isfinite(posterior.log_mean).all())
        assert bool(np.all(posterior.mean > 0))


def test_larger_sums_never_get_smaller_posterior_means() -> None:
    noisy = np.linspace(-50, 400, 300)
    assert bool(np.all(np.diff(counts.shrink(noisy, noise_std=20.0).mean) > 0))


def test_sums_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        counts.shrink(np.array([1.0, np.nan]), noise_std=1.0)
