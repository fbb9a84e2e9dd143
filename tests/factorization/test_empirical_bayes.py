"""Noised counts are read as well as an oracle that knows their prior reads them, at every ratio of
counts to noise."""

import numpy as np
import pytest

from fedrec.factorization.empirical_bayes import ItemPosterior, denoise_counts, regress
from fedrec.factorization.sparse_means import sparse_means


def zipf(m: int, most: float) -> np.ndarray:
    return most * np.arange(1, m + 1) ** -0.8


@pytest.mark.parametrize("std", [1e-6, 1e-2, 1.0, 30.0])
def test_no_count_is_further_from_the_truth_than_its_noise_explains(std: float) -> None:
    """A count of 2,000 with noise of std 1 is 2,000, though the prior's grid is coarser than the
    noise."""
    truth = zipf(2000, 2000.0)
    noisy = truth + std * np.random.default_rng(1).standard_normal(len(truth))
    found = denoise_counts(noisy, std=std, features=None)
    # 2,000 normal numbers pass 5 std with probability 1e-3, shrinkage adds less than 1
    assert float(np.abs(found - truth).max()) < 6 * std
    # the fixed draw's own mean square is 1.00 std^2 within .03
    assert float(np.mean((found - truth) ** 2)) <= 1.02 * std**2


def test_shrinkage_gains_where_noise_is_larger_than_most_counts() -> None:
    truth = zipf(2000, 200.0)
    noisy = truth + 10 * np.random.default_rng(2).standard_normal(len(truth))
    found = denoise_counts(noisy, std=10.0, features=None)
    assert float(np.mean((found - truth) ** 2)) < 0.2 * float(
        np.mean((np.maximum(noisy, 0) - truth) ** 2)
    )
    assert float(found.min()) >= 0


def test_counts_without_noise_come_back() -> None:
    np.testing.assert_array_equal(
        denoise_counts(np.array([3.0, -1.0, 0.0]), std=0.0, features=None), [3.0, 0.0, 0.0]
    )


@pytest.mark.slow
def test_a_trusted_prior_keeps_a_few_slopes_from_explaining_noise() -> None:
    """Pure noise, 100 fixed draws: the worst posterior mean of a trusted prior is less than half as
    large as without trust, and the slopes' variance stays what it was taken for."""
    features = np.random.default_rng(3).standard_normal((500, 20))
    worst = {0.0: 0.0, 1.0: 0.0}
    for seed in range(100):
        noise = 5 * np.random.default_rng([4, seed]).standard_normal(500)
        for trust in worst:
            found = regress(noise, np.full(500, 25.0), features, sweeps=30, start=0.02, trust=trust)
            worst[trust] = max(worst[trust], float(np.mean(found.mean**2)))
        assert found.slope_variance == pytest.approx(0.001, rel=0.05)
    assert worst[1.0] < 0.5 * worst[0.0]


@pytest.mark.parametrize("size", [6.0, 40.0, 2000.0])
def test_few_numbers_that_stand_out_of_noise_keep_their_size_and_the_others_lose_theirs(
    size: float,
) -> None:
    """200 of 100,000. The error is that of the 200 alone, about one each, and of those that noise
    hides: half of what the 200 are is far more than was seen in 10 draws (a fifth, at 6)."""
    rng = np.random.default_rng(8)
    truth = np.zeros(100_000)
    truth[:200] = size * rng.choice([-1, 1], 200)
    noisy = truth + rng.standard_normal(len(truth))
    found = sparse_means(noisy)
    assert float(np.sum((found - truth) ** 2)) < min(0.5 * 200 * size**2, 3 * len(truth) / 100)
    assert (np.abs(found) <= np.abs(noisy)).all()
    assert (found * noisy >= 0).all()
    np.testing.assert_allclose(sparse_means(-noisy), -found)


@pytest.mark.slow
def test_of_noise_and_of_what_only_the_sum_of_many_numbers_shows_nothing_is_made() -> None:
    """Numbers of a tenth of the noise each; 20 draws, whose largest share of the noise's energy
    was 2e-5."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        noisy = np.sqrt(1 + 0.1**2) * rng.standard_normal(20_000)
        assert float(np.sum(sparse_means(noisy) ** 2)) < 1e-4 * 20_000
    assert not sparse_means(np.zeros(5)).any()
    assert sparse_means(np.zeros(0)).shape == (0,)


def test_parameters_are_how_much_means_follow_their_own_observations() -> None:
    rng = np.random.default_rng(2)
    variance = rng.uniform(0.1, 2, 40)
    features = rng.standard_normal((40, 3))
    observed = rng.standard_normal(40)

    def read(values: np.ndarray) -> ItemPosterior:
        return regress(values, variance, features, sweeps=1, start=0.5)

    steps = [read(observed + unit).mean - read(observed).mean for unit in np.eye(40)]
    np.testing.assert_allclose(read(observed).follows, np.diag(steps), rtol=1e-9)
