"""Prefix sums with correlated noise: bound, law of the noise, price by other code, and what a crash
finds again."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedrec.privacy import correlated, gaussian
from fedrec.privacy.accounting import delta_of, epsilon_of
from fedrec.randomness import SecretStreams

STEP = 2.0**-9
STREAM = SecretStreams(b"s" * 32)


def keys(weeks: int) -> list[bytes]:
    return [STREAM.key("counts", round=week) for week in range(1, weeks + 1)]


def factor_of(T: int) -> np.ndarray:
    """C by binomials in fractions, each rounded to a multiple of 1/64."""
    column = [float(Fraction(round(Fraction(math.comb(2 * k, k), 4**k) * 64), 64))
              for k in range(T)]  # fmt: skip
    C = np.zeros((T, T))
    for k, c in enumerate(column):
        C += c * np.eye(T, k=-k)
    return C


def drawn(T: int, *, size: int, std: float) -> np.ndarray:
    """(T, size) noise of every week, in real units."""
    return STEP * np.array(
        [
            correlated.week_noise((size,), step=STEP, std=std, horizon=T, keys=keys(t))
            for t in range(1, T + 1)
        ]
    )


def test_without_noise_nothing_is_added() -> None:
    assert correlated.widened(0) == (1.0, 1.0)
    none = correlated.week_noise((3, 4), step=STEP, std=0.0, horizon=9, keys=keys(5))
    assert none.shape == (3, 4)
    assert not none.any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 24), st.integers(1, 40))
def test_a_persons_disjoint_weeks_move_all_releases_by_at_most_the_column_norm(
    seed: int, T: int, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    D = np.zeros((T, rows))
    D[rng.integers(T, size=rows), np.arange(rows)] = rng.standard_normal(rows)
    D /= np.linalg.norm(D)
    assert np.linalg.norm(factor_of(T) @ D) <= correlated.column_norm(T) * (1 + 1e-12)
    first = np.eye(T)[:, :1]
    assert np.linalg.norm(factor_of(T) @ first) == pytest.approx(correlated.column_norm(T))
    # one row in several weeks, its squares summing to 1: more than the column norm
    again = np.full((T, 1), T**-0.5)
    assert T == 1 or np.linalg.norm(factor_of(T) @ again) > correlated.column_norm(T)


@pytest.mark.parametrize("T", [1, 7])
def test_the_noise_of_every_prefix_sum_has_its_distribution_and_no_other(T: int) -> None:
    std = 0.7
    noise = drawn(T, size=6_000, std=std)
    told = np.cumsum(noise, axis=0)
    by_hand = np.linalg.norm(np.tril(np.ones((T, T))) @ np.linalg.inv(factor_of(T)), axis=1)
    assert correlated.prefix_norms(T) == pytest.approx(by_hand)
    for t in range(T):
        pvalues = [
            stats.kstest(told[t], "norm", args=(0, by_hand[t] * std * wrong)).pvalue
            for wrong in (1, 2 / 3, 3 / 2)
        ]
        assert pvalues[0] > 1e-4
        assert max(pvalues[1:]) < 1e-9
    # C undone, weeks are independent; off by the rounding to the grid, far below 5 / sqrt(6000)
    whitened = np.corrcoef(factor_of(T) @ noise) if T > 1 else np.eye(1)
    assert np.abs(whitened - np.eye(T)).max() < 5 / math.sqrt(6_000)


@pytest.mark.parametrize("epsilon", [0.5, 5.0])
def test_all_weeks_cost_what_an_integral_of_the_drawn_noise_says(epsilon: float) -> None:
    """The price of the worst person against noise as it is drawn: its covariance is estimated, the
    likelihood ratio integrated, and nothing of the accountant is used but what it claims."""
    T, delta = 12, 1e-5
    mu = next(m for m in np.geomspace(10, 0.01, 4_000) if epsilon_of(m, delta) <= epsilon)
    norm, lattice = correlated.widened(T)
    std = gaussian.noise_std(radius=norm, mu=mu, coarsest_step=lattice * STEP)
    noise = drawn(T, size=40_000, std=std)
    covariance = noise @ noise.T / noise.shape[1]
    shift = np.eye(T)[0]  # all of the year in its first week
    seen = math.sqrt(shift @ np.linalg.solve(covariance, shift))
    # the estimate has a standard error of 1 / sqrt(2 n), T directions: within 3%
    assert seen == pytest.approx(mu, rel=0.03)
    exact = np.linalg.norm(factor_of(T)[:, 0]) / std

    def excess(x: float) -> float:
        here, there = stats.norm.pdf(x, exact), stats.norm.pdf(x)
        return float(max(here - math.exp(epsilon) * there, 0.0))

    begins = exact / 2 + epsilon / exact
    found, _ = integrate.quad(excess, begins, begins + 30, epsabs=1e-14)
    assert found == pytest.approx(delta_of(exact, epsilon), rel=1e-6)
    assert delta * 0.97 <= found <= delta


def test_what_is_released_follows_from_the_private_sums_of_the_proof_alone() -> None:
    """V_t, computed from M_t as the proof has it, and rounded, is what is released; to the bit."""
    T, std = 9, 0.5
    rng = np.random.default_rng(3)
    X = rng.integers(-300, 300, (T, 50))
    c = (factor_of(T)[:, 0] * 64).astype(np.int64)
    V = list[np.ndarray]()
    w = list[np.ndarray]()
    for t in range(T):
        key = correlated.derive(keys(T)[t], "numbers/0")
        z = correlated.sample(50, std=std / STEP * 64, key=key)
        w.append(z - sum((c[k] * w[t - k] for k in range(1, t + 1)), np.zeros(50, int)) // 64)
        M = sum((c[k] * X[t - k] for k in range(t + 1)), np.zeros(50, int)) + z
        V.append(M - sum((c[k] * V[t - k] for k in range(1, t + 1)), np.zeros(50, int)) // 64)
        noise = correlated.week_noise((50,), step=STEP, std=std, horizon=T, keys=keys(t + 1))
        np.testing.assert_array_equal(X[t] + noise, (V[t] + 32) // 64)


def test_a_week_is_derived_again_to_the_bit_and_no_two_weeks_share_noise() -> None:
    twice = [
        correlated.week_noise((70_000,), step=STEP, std=1.0, horizon=4, keys=keys(3))
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*twice)
    noise = drawn(4, size=4_000, std=1.0)
    whitened = factor_of(4) @ noise
    assert np.abs(np.corrcoef(whitened) - np.eye(4)).max() < 5 / math.sqrt(4_000)
    # past a chunk, numbers are no repetition of those before
    assert abs(np.corrcoef(twice[0][:4_000], twice[0][2**16 : 2**16 + 4_000])[0, 1]) < 0.08


@pytest.mark.parametrize("weeks", [0, 5])
def test_no_week_beyond_the_horizon_is_noised(weeks: int) -> None:
    with pytest.raises(ValueError, match="planned"):
        correlated.week_noise((3,), step=STEP, std=1.0, horizon=4, keys=keys(weeks))
    with pytest.raises(ValueError, match="between 1 and 366"):
        correlated.column_norm(367)
