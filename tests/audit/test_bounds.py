import math

import numpy as np
import pytest
from scipy import special, stats

from fedrec.auditing.bounds import Counts, limits, lower_bound, region, through_gdp
from fedrec.privacy.accounting import delta_of, epsilon_of, mu_for


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (5.0, 1e-5)])
def test_a_bound_is_below_the_truth_in_a_thousand_audits(epsilon: float, delta: float) -> None:
    """At 90% confidence and 1,000 independent audits of a mechanism that is exactly as private as
    claimed.

    Alarms are then Binomial(1000, <= .1); more than 131 have a probability below 1e-3.
    """
    mu = mu_for(epsilon, delta)
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(1000):
        inside = rng.normal(mu, size=400)
        outside = rng.normal(size=400)
        alarms += (
            lower_bound(inside, outside, delta=delta, gaussian=True, confidence=0.9).epsilon
            > epsilon
        )
    assert alarms <= 131


def test_a_bound_comes_close_with_many_draws_and_half_the_noise_is_caught() -> None:
    rng = np.random.default_rng(2)
    mu = mu_for(5.0, 1e-5)
    for factor, low, high in (
        (1, 4.5, 5.0),
        (2, 9.9, epsilon_of(2 * mu, 1e-5)),
        (1 / 2, 1.9, epsilon_of(mu / 2, 1e-5)),
    ):
        found = lower_bound(
            rng.normal(factor * mu, size=40_000), rng.normal(size=40_000), delta=1e-5, gaussian=True
        )
        assert low <= found.epsilon <= high
        assert (found.by, found.draws, found.confidence) == ("gaussian", 80_000, 0.999)


def test_the_region_bound_of_randomised_response_assumes_nothing_and_is_nearly_epsilon() -> None:
    rng = np.random.default_rng(3)
    epsilon = 2.0
    keep = 1 / (1 + math.exp(-epsilon))
    inside = (rng.random(40_000) < keep).astype(float)
    outside = (rng.random(40_000) >= keep).astype(float)
    found = lower_bound(inside, outside, delta=1e-5, gaussian=False)
    assert found.by == "region"
    assert 1.85 < found.epsilon <= epsilon


def test_limits_are_clopper_and_pearsons() -> None:
    for hits, runs in ((0, 50), (7, 50), (50, 50)):
        tpr, fpr = (float(limit[0]) for limit in limits(Counts(hits, runs, hits, runs), 0.98))
        interval = stats.binomtest(hits, runs).proportion_ci(0.98, method="exact")
        assert tpr == pytest.approx(interval.low, abs=1e-12)
        assert fpr == pytest.approx(interval.high, abs=1e-12)


def test_the_region_holds_with_equality_for_the_worst_pair_of_gaussians() -> None:
    """At the threshold where delta(epsilon) is reached, log((TPR - delta) / FPR) is epsilon: with
    counts so large that limits are tight."""
    mu = 1.0
    epsilon = 1.5
    delta = delta_of(1.0, 1.5)
    threshold = mu / 2 + epsilon / mu
    tpr = special.ndtr(mu - threshold)
    fpr = special.ndtr(-threshold)
    n = 10**13
    counts = Counts(round(tpr * n), n, round(fpr * n), n)
    assert region(*limits(counts, 0.999), delta)[0] == pytest.approx(epsilon, rel=1e-3)
    assert through_gdp(*limits(counts, 0.999), delta)[0] == pytest.approx(mu, rel=1e-3)


def test_chance_shows_nothing() -> None:
    rng = np.random.default_rng(4)
    assert (
        lower_bound(rng.normal(size=5000), rng.normal(size=5000), delta=1e-5, gaussian=True).epsilon
        < 0.1
    )
    assert region(*limits(Counts(0, 100, 0, 100), 0.999), 1e-5)[0] == 0.0
    assert through_gdp(*limits(Counts(0, 100, 0, 100), 0.999), 1e-5)[0] < 0
