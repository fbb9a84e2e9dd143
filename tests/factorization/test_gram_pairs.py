"""Grams that stand out of their noise, told without an eigenvector where one that is close does."""

import math

import numpy as np
import pytest

from fedrec.factorization.default_clicks.gram_pairs import shared
from fedrec.factorization.default_clicks.spectrum import denoised, stands_out

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


def test_directions_that_features_tell_take_no_place_from_those_that_they_do_not() -> None:
    """Two tastes of 120 items, one of which features hold, in no more directions than features
    have: both are kept, and what different items share is what was planted."""
    rng = np.random.default_rng(5)
    m, rank = 120, 30
    told, untold = (np.linalg.qr(rng.normal(size=(m, 1)))[0] for _ in range(2))
    popular = np.full(m, 0.05)
    planted = 3.0 * told @ told.T + 2.0 * untold @ untold.T
    content = np.column_stack([told, rng.normal(size=(m, 40)) / m])
    gram = planted + np.outer(popular, popular) + np.eye(m)
    found = shared(
        gram, np.diag(gram), popular, noise_std=0.0, clicks=20.0, content=content, rank=rank
    )
    assert found.public is not None, "features were looked at"
    assert found.Q.shape[1] <= rank
    made = found.Q @ found.Q.T
    for taste, size in ((told, 3.0), (untold, 2.0)):
        assert abs((taste.T @ made @ taste).item() - size) < 0.2 * size


def test_what_little_noise_changes_nothing_that_few_people_tell() -> None:
    """The sampling of 200 people outweighs noise that goes to 0: estimates go to those without."""
    rng = np.random.default_rng(4)
    clicked = rng.random((200, 80)) < 0.05 + 0.3 * rng.random(80) ** 3
    clicked[:, 1:20:2] = clicked[:, 0:20:2]  # single pairs that stand out
    units = clicked / np.sqrt(np.maximum(clicked.sum(axis=1, keepdims=True), 1))
    gram = units.T @ units
    diagonal = np.maximum(np.diag(gram), 0.01)
    known = {"clicks": float(clicked.sum(1).mean()), "users": 200.0}
    exact = shared(gram, diagonal, diagonal, noise_std=0.0, **known)
    for std in (1e-9, 1e-6, 1e-3):
        noisy = shared(gram, diagonal, diagonal, noise_std=std, **known)
        assert noisy.single is None
        np.testing.assert_allclose(
            noisy.Q @ noisy.Q.T, exact.Q @ exact.Q.T, atol=30 * std * np.abs(exact.Q).max() + 1e-12
        )
