"""The length of a step comes from the release where it says something, and from the model where it
does not."""

import numpy as np
import pytest

from fedrec.factorization.default_ratings.client import units_of
from fedrec.factorization.default_ratings.scales import StepScales
from fedrec.federation.messages import Release

ENERGY = 0.03
SIZES = ((1.0, 1.0),)
TRUE = np.array([1.0, 0.5, 0.4, 0.1, 0.006, 0.03, 0.2, 0.02])
"""One, ratio, mean square of a residual, excess of the noise, what tastes add times what there is
to add, its square, two mean squares of directions."""


def scales(users: int) -> StepScales:
    return StepScales.expected(
        0.7, np.array([0.4, 0.1]), 0.06, stds=(0.25, 0.5), alpha=1.5, users=users, sizes=SIZES
    )


def answer_of(expected: StepScales, std: float) -> Release:
    sums = expected.users * TRUE / units_of(expected.units, 2) * np.sqrt(ENERGY)
    return Release(
        {"scales/0": sums[None] + std * np.random.default_rng(1).standard_normal((1, len(TRUE)))},
        {"scales/0": std},
    )


def read(expected: StepScales, std: float) -> StepScales:
    return expected.after(
        answer_of(expected, std), "scales/0", units=units_of(expected.units, 2), energy=ENERGY
    )


def test_many_users_without_noise_are_believed() -> None:
    found = read(scales(1_000_000), 0.0)
    assert found.ratio == pytest.approx(0.5, rel=1e-3)
    assert found.residual == pytest.approx(0.4, rel=1e-3)
    assert found.noise == pytest.approx(0.8, rel=1e-3)
    np.testing.assert_allclose(found.known, [0.2, 0.02], rtol=1e-2)
    assert (found.added, found.slope) == pytest.approx((0.03, 0.2), rel=1e-2)
    assert found.slope_std < 0.01


def test_noise_that_hides_everything_leaves_what_was_expected() -> None:
    expected = scales(100)
    found = read(expected, 1e9)
    assert (found.ratio, found.residual, found.noise) == pytest.approx(
        (expected.ratio, expected.residual, expected.noise), rel=1e-3
    )
    np.testing.assert_allclose(found.known, expected.known, rtol=1e-3)
    assert (found.added, found.slope, found.slope_std) == pytest.approx((0.06, 1.0, 0.5), rel=1e-3)


@pytest.mark.parametrize("std", [0.0, 1.0, 100.0, 1e6])
def test_no_release_makes_a_step_endless(std: float) -> None:
    found = read(scales(50), std)
    assert found.ratio > 0
    assert found.residual > 0
    assert 0.02 <= found.noise <= 2
    assert float(found.known.min()) > 0
    assert found.added > 0


def test_means_of_few_ratings_are_what_items_learned_without_them_would_leave() -> None:
    """Ratings of a user's mean, an item's bias and its taste; both numbers of an item are least
    squares over its eight ratings: leaving each of them out says what the means should be."""
    rng = np.random.default_rng(3)
    items, each = 4000, 8
    # as many of either sign, of one size: bias and taste follow every rating by 1 / each
    own = rng.permuted(np.tile([1.0, -1.0], (items, each // 2)), axis=1)
    seen = 0.3 * own * rng.normal(0, 1, (items, 1)) + rng.normal(0, 0.8, (items, each))
    plain = seen - seen.mean(axis=1, keepdims=True)
    residual = plain - own * np.mean(own * plain, axis=1, keepdims=True)
    without = plain / (1 - 1 / each)
    left = residual / (1 - 2 / each)
    expected = scales(1_000_000)

    def told(plain: np.ndarray, residual: np.ndarray, **fitted: tuple[float, float]) -> StepScales:
        gain = plain - residual
        squares = np.mean(residual**2)
        means = [0.5, squares, squares - expected.noise, np.mean(gain * plain), np.mean(gain**2)]
        sums = expected.users * np.array([1.0, *means, 0.2, 0.02]) * np.sqrt(ENERGY)
        units = units_of(expected.units, 2)
        release = Release({"scales/0": (sums / units)[None]}, {"scales/0": 0.0})
        return expected.after(release, "scales/0", units=units, energy=ENERGY, **fitted)

    truth = told(without, left)
    corrected = told(plain, residual, fitted=(1 / each, 1 / each))
    naive = told(plain, residual)
    for name in ("noise", "residual", "slope"):
        assert getattr(corrected, name) == pytest.approx(getattr(truth, name), rel=1e-6), name
        assert getattr(naive, name) != pytest.approx(getattr(truth, name), rel=0.2), name
