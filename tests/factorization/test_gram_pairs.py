"""Grams that stand out of their noise, told without an eigenvector where one that is close does."""

import math

import numpy as np
import pytest

from fedrec.factorization.default_clicks.gram_pairs import denoised, stands_out

K = 60
STD = 1.0
EDGE = STD * math.sqrt(2 * K)


@pytest.mark.parametrize("over", [0.0, 0.2, 1.2, 2.0, 10.0])
@pytest.mark.parametrize("exact", [False, True])
def test_what_stands_out_is_what_denoising_leaves(over: float, exact: bool) -> None:
    """A direction of popular items over the noise's edge, and noise alone; without noise any."""
    rng = np.random.default_rng(3)
    popular = np.linspace(2, 1, K)
    popular /= np.linalg.norm(popular)
    noise = rng.normal(size=(K, K)) * STD
    gram = over * EDGE * np.outer(popular, popular) + (0 if exact else (noise + noise.T) / 2)
    std = 0.0 if exact else STD
    expected = bool(denoised(gram, noise_std=std, rank=1).shrunk.any())
    assert stands_out(gram, noise_std=std) == expected
    assert expected == (over > 0 if exact else over > 1)
