"""How often is each item rated? Bounded reports of the users, and what to make of the noisy sums.

A user sends one number for each of its items; the sum over users is released with noise
(`fedrec.privacy`).

Guarantee (user, add/remove). `Contributions.bound` is the largest L2 norm of one user's numbers,
hence the L2 sensitivity of the (m,) vector of sums, items of one user being distinct: removing the
user takes exactly its numbers away. Proofs are beside each function. Everything below "after the
release" is post-processing of the noisy sums and of public facts: no further cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import optimize, special

from fedrec.arrays import Float64s
from fedrec.budget import weights
from fedrec.data.interactions import Interactions

_NODES = 192  # of the quadrature over an item's true count
_FITTED = 2048  # order statistics from which a prior is fitted: more changes nothing and costs time


@dataclass(frozen=True)
class Contributions:
    """`values` (n,) float64, a user's number for each of its events; per user, the L2 norm is at
    most `bound`."""

    values: Float64s
    bound: float


def clipped_contributions(interactions: Interactions, *, limit: int) -> Contributions:
    """min(1, sqrt(limit / n_k)) on each item: the user's vector of ones, clipped to norm
    sqrt(limit), which is the bound."""
    ones = np.ones(interactions.num_items)
    return Contributions(
        weights.clipped(interactions, ones, budget=float(limit)).values, math.sqrt(limit)
    )


# --- after the release ---


def at_least_one(noisy: Float64s) -> Float64s:
    """max(n, 1), as the papers' public code does: weights n^-mu need positive counts."""
    return np.maximum(noisy, 1.0)


@dataclass(frozen=True)
class CountPosterior:
    """What the noisy sums say of the true ones, item by item: `mean` and `std` of the count,
    `log_mean` of its logarithm; each (m,)."""

    mean: Float64s
    std: Float64s
    log_mean: Float64s


class CountPrior(Protocol):
    """A family of densities of positive counts with two real parameters."""

    def start(self, centre: float) -> tuple[float, float]:
        """Parameters of a broad member around `centre` > 0."""

    def log_density(self, counts: Float64s, parameters: tuple[float, float]) -> Float64s:
        """Log density at counts > 0; may be unnormalised only by terms that depend on neither
        argument."""


@dataclass(frozen=True)
class LogNormal:
    """log count is Gaussian: parameters (mean, log std) of the logarithm.

    The long tail of catalogues."""

    def start(self, centre: float) -> tuple[float, float]:
        """See CountPrior."""
        return math.log(centre), math.log(1.5)

    def log_density(self, counts: Float64s, parameters: tuple[float, float]) -> Float64s:
        """See CountPrior."""
        location, spread = parameters[0], math.exp(parameters[1])
        logs = np.log(counts)
        return np.asarray(
            -0.5 * ((logs - location) / spread) ** 2 - logs - parameters[1], np.float64
        )


def shrink(noisy: Float64s, *, noise_std: float, prior: CountPrior | None = None) -> CountPosterior:
    """Empirical Bayes: fit the prior (LogNormal by default) to the noisy sums by maximum marginal
    likelihood, take posterior moments.

    noisy: (m,) = true + Gaussian noise of known std `noise_std`, in the same units. With
    `noise_std` 0 the sums are exact and come back, clipped at 0 (log_mean at the smallest positive
    sum). Raises ValueError on sums that are not finite.
    """
    y = np.asarray(noisy, np.float64)
    if not bool(np.isfinite(y).all()) or not noise_std >= 0:
        raise ValueError(
            f"counts to shrink must be finite, with a noise std >= 0, found noise std {noise_std!r}"
        )
    if noise_std == 0:
        positive = y[y > 0]
        floor = float(positive.min()) if len(positive) else 1.0
        return CountPosterior(np.maximum(y, 0.0), np.zeros_like(y), np.log(np.maximum(y, floor)))
    family = LogNormal() if prior is None else prior
    parameters = _fit(family, y, noise_std)
    return _moments(family, parameters, y, noise_std)


def _fit(family: CountPrior, noisy: Float64s, noise_std: float) -> tuple[float, float]:
    """Maximise the likelihood of evenly spaced order statistics of `noisy`; a weak pull of the
    second parameter keeps it finite."""
    quantiles = np.sort(noisy)[np.unique(np.linspace(0, len(noisy) - 1, _FITTED).astype(np.int64))]
    start = family.start(max(float(quantiles.mean()), 0.1 * noise_std))
    counts, log_weights = _quadrature(quantiles, noise_std)

    def loss(p: Float64s) -> float:
        joint = log_weights + family.log_density(counts, (float(p[0]), float(p[1])))
        return float(
            -np.mean(special.logsumexp(joint, axis=1))
            + 0.5 / len(quantiles) * ((p[1] - start[1]) / 2) ** 2
        )

    found = optimize.minimize(
        loss,
        np.array(start),
        method="Nelder-Mead",
        options={"xatol": 1e-3, "fatol": 1e-7, "maxiter": 400},
    )
    return float(found.x[0]), float(found.x[1])


def _moments(
    family: CountPrior, parameters: tuple[float, float], noisy: Float64s, noise_std: float
) -> CountPosterior:
    mean, std, log_mean = np.empty_like(noisy), np.empty_like(noisy), np.empty_like(noisy)
    for start in range(0, len(noisy), _FITTED):  # bounded memory for any catalogue
        block = slice(start, start + _FITTED)
        counts, log_weights = _quadrature(noisy[block], noise_std)
        p = special.softmax(log_weights + family.log_density(counts, parameters), axis=1)
        mean[block] = (p * counts).sum(axis=1)
        std[block] = np.sqrt((p * (counts - mean[block, None]) ** 2).sum(axis=1))
        log_mean[block] = (p * np.log(counts)).sum(axis=1)
    return CountPosterior(mean, std, log_mean)


def _quadrature(noisy: Float64s, noise_std: float) -> tuple[Float64s, Float64s]:
    """Nodes (m, K) over the true count and the log of (Gaussian likelihood x spacing) there.

    Nodes are even in u, where count = noise_std log(1 + e^u): logarithmic below the noise, linear
    above it, so that one rule serves items far above the noise and items that the noise hides. They
    reach 9 std around an item's sum and down to e^-20 std where needed.
    """
    y = noisy / noise_std
    low, high = np.where(y > 12, y - 9, -20.0), np.maximum(y, 0) + 9
    u = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, _NODES)
    c = np.logaddexp(0, u)
    # dc = sigmoid(u) du
    log_spacing = np.log((high - low)[:, None] / (_NODES - 1)) - np.logaddexp(0, -u)
    return noise_std * c, -0.5 * (c - y[:, None]) ** 2 + log_spacing
