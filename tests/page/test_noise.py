"""The noise that the page draws has the law it claims, and tests that would notice two thirds and
three halves of it."""

import math

import numpy as np
import pytest
from scipy import stats

from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.serving import asking

# of every test here, for honest draws; the seeds are fixed, so none is seen twice
FALSE_ALARM = 1e-4
DRAWS = 20_000


def _chi_square(draws: np.ndarray, std: float) -> float:
    """p-value of counts against P(z) ~ exp(-z^2 / (2 std^2)), cells of few expected draws put
    together."""
    reach = math.ceil(10 * std)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * std**2))
    expected = weights / weights.sum() * len(draws)
    inner = expected >= 10
    counts = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=2 * reach + 1)
    pooled = [np.append(values[inner], values[~inner].sum()) for values in (counts, expected)]
    kept = slice(None) if pooled[1][-1] >= 5 else slice(-1)
    observed, law = (values[kept] for values in pooled)
    return float(stats.chisquare(observed, law * observed.sum() / law.sum()).pvalue)


@pytest.mark.parametrize("variance", [1, 2, 16, 60])
def test_small_draws_follow_the_discrete_gaussian(node, variance):
    draws = np.array(node("draws", variance=variance, count=DRAWS, seed=f"small {variance}"))
    std = math.sqrt(variance)
    assert _chi_square(draws, std) > FALSE_ALARM
    assert _chi_square(draws, std * 2 / 3) < FALSE_ALARM
    assert _chi_square(draws, std * 3 / 2) < FALSE_ALARM


def test_draws_of_the_size_of_real_noise_pass_kolmogorov_smirnov(node):
    std = 1_234_567
    draws = np.array(node("draws", variance=std**2, count=DRAWS, seed="large"))
    # at this size the grid is finer than the test sees
    assert stats.kstest(draws / std, "norm").pvalue > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(draws / (wrong * std), "norm").pvalue < FALSE_ALARM


@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_answers_carry_noise_of_the_calibrated_std_and_independent_coefficients(
    node, planted_bundle, bundle_path, epsilon
):
    mu = mu_for(epsilon, 1e-5)
    H = planted_bundle.about.history
    B = planted_bundle.coefficients
    std = bounded_mean.noise_std(asking.public_table(planted_bundle), H, mu=mu)
    history = list(range(H))
    asked = node(
        "asks",
        bundle=str(bundle_path),
        version=planted_bundle.version,
        mu=mu,
        seed="asks",
        histories=[history] * (DRAWS // B),
    )

    noise = np.array([answer["noised"] for answer in asked]) - asking.exact(
        planted_bundle, np.array([history])
    )

    assert asked[0]["noiseStd"] == pytest.approx(std, rel=1e-6)
    assert stats.kstest(noise.ravel() / std, "norm").pvalue > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise.ravel() / (wrong * std), "norm").pvalue < FALSE_ALARM
    correlations = np.corrcoef(noise, rowvar=False)[np.triu_indices(B, 1)]
    allowed = stats.norm.isf(FALSE_ALARM / 2 / len(correlations)) / math.sqrt(len(noise))
    assert np.abs(correlations).max() < allowed


def test_noise_is_drawn_on_the_grid_of_the_sums(node, planted_bundle, bundle_path):
    asked = node(
        "asks",
        bundle=str(bundle_path),
        version=planted_bundle.version,
        mu=1.0,
        seed="grid",
        histories=[[1, 2, 3]] * 20,
    )
    steps = (
        np.array([answer["noised"] for answer in asked])
        * 2.0**bounded_mean.BITS
        * planted_bundle.about.history
    )
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)


def test_two_histories_one_title_apart_move_the_sums_by_no_more_than_is_stated(
    node, planted_bundle, bundle_path
):
    rng = np.random.default_rng(4)
    H = planted_bundle.about.history
    m = planted_bundle.size
    before = rng.integers(-1, m, (200, H))
    after = before.copy()
    after[np.arange(200), rng.integers(0, H, 200)] = rng.integers(-1, m, 200)
    cases = [
        {"history": h.tolist(), "noised": [0.0] * 8, "noiseStd": 0, "mu": 1.0}
        for h in np.concatenate([before, after])
    ]
    exact = np.array(
        [
            found["exact"]
            for found in node(
                "answers", bundle=str(bundle_path), version=planted_bundle.version, cases=cases
            )
        ]
    )
    moved = np.linalg.norm(exact[:200] - exact[200:], axis=1)
    assert moved.max() <= planted_bundle.about.sensitivity
    assert moved.max() > 0.9 * planted_bundle.about.sensitivity  # the bound is not idle
