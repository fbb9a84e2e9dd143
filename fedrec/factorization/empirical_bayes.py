"""Reading noised sums: priors fitted to the releases themselves and to public features, then
posterior moments; and how loud noised counts let each item be heard.

Guarantee: post-processing. Everything here sees released numbers, their known noise and public
features, so it costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from fedrec.arrays import Float64s

USUAL_BIASES = 0.15
"""Mean square of item biases over data sets of ratings on [-2, 2]: what they are taken for as long
as noise hides it."""


@dataclass(frozen=True)
class ItemPosterior:
    """mean, variance (m,) of a coordinate of every item; prior variances of what features leave
    open, and of their slopes.

    follows: (m,) how much each mean follows its own observation, the diagonal of what makes means
    of observations; their sum is the effective number of parameters."""

    mean: Float64s
    variance: Float64s
    item_variance: float
    slope_variance: float
    follows: Float64s | float = 0.0


def regress(
    observed: Float64s,
    variance: Float64s,
    features: Float64s,
    *,
    sweeps: int = 10,
    start: float = 0.02,
    trust: float = 0.0,
) -> ItemPosterior:
    """theta_j = f_j' beta + e_j, observed with known variances: posterior of theta, both prior
    variances by EM.

    observed, variance: (m,), variance > 0. features: (m, p). beta ~ N(0, slope_variance), e ~ N(0,
    item_variance). Items that were hardly measured lean on what similar items show; well measured
    ones keep their own number. start: of item_variance and of the mean of (f' beta)^2; EM moves
    away from it slowly where noise hides both, so that it is then what they are taken for. trust:
    how much the start of slope_variance weighs in it, relative to the p slopes (a scaled inverse
    chi-squared prior): p numbers say little of their own variance.
    """
    p = features.shape[1]
    item = start
    slope = start / float(np.mean(np.sum(features**2, axis=1)))
    expected = trust * slope
    scratch = np.empty_like(features)  # fresh memory for each product costs more than the product
    for _ in range(sweeps):
        precision = 1 / (variance + item)
        np.multiply(features, precision[:, None], out=scratch)
        covariance = np.linalg.inv(scratch.T @ features + np.eye(p) / slope)
        beta = covariance @ (features.T @ (precision * observed))
        fit = features @ beta
        kept = item * precision
        error = kept * (observed - fit)
        np.matmul(features, covariance, out=scratch)
        scratch *= features
        fit_variance = np.sum(scratch, axis=1)
        used = item
        item = max(float(np.mean(error**2 + item * (1 - kept) + kept**2 * fit_variance)), 1e-6)
        found = float((beta @ beta + np.trace(covariance)) / p)
        slope = max((found + expected) / (1 + trust), 1e-9)
    variances = used * (1 - kept) + (1 - kept) ** 2 * fit_variance
    follows = kept + (1 - kept) * fit_variance * precision
    return ItemPosterior(fit + error, variances, item, slope, follows)


def denoise_counts(
    noisy: Float64s, *, std: float, features: Float64s | None, bins: int = 8
) -> Float64s:
    """Posterior means of non-negative counts under a prior of no fixed shape, fitted by EM on a
    grid (Kiefer & Wolfowitz 1956).

    noisy: (m,) with noise of known std; without noise they come back, clipped at 0. Where there are
    public features, items are first grouped by the count the features predict, and every group has
    its own prior.
    """
    if std == 0:
        return np.maximum(noisy, 0.0)
    posterior = np.zeros(len(noisy))
    groups = _predicted_groups(noisy, std, features, bins)
    for group in np.unique(groups):
        chosen = groups == group
        posterior[chosen] = _nonparametric(noisy[chosen], std)
    return posterior


def expected_counts(
    noisy: Float64s, *, std: float, expected: Float64s, features: Float64s | None
) -> Float64s:
    """Posterior means of counts near what is `expected` of each: the variance of what that leaves
    open grows with it, as a count's does.

    noisy: (m,) with noise of known std. expected: (m,) from other people, in the same unit; the
    slope on it is fitted too.
    """
    unit = np.sqrt(expected + 0.05 * float(expected.mean()) + 1e-12)
    columns = expected[:, None] / max(float(expected.std()), 1e-12)
    F = columns if features is None else np.column_stack([columns, features])
    found = regress(noisy / unit, (std / unit) ** 2, F / unit[:, None], sweeps=12)
    return np.maximum(found.mean * unit, 0.0)


def _predicted_groups(
    noisy: Float64s, std: float, features: Float64s | None, bins: int
) -> npt.NDArray[np.int64]:
    """Equal groups by a ridge prediction of the count from features alone."""
    m = len(noisy)
    if features is None or m < 20 * bins:
        return np.zeros(m, np.int64)
    centred = noisy - noisy.mean()
    found = regress(centred, np.full(m, std**2), features, sweeps=8)
    total = std**2 + found.item_variance
    normal = features.T @ features / total + np.eye(features.shape[1]) / found.slope_variance
    predicted = features @ np.linalg.solve(normal, features.T @ centred / total)
    ranks = np.empty(m, np.int64)
    ranks[np.argsort(predicted, kind="stable")] = np.arange(m)
    return ranks * bins // m


def _nonparametric(noisy: Float64s, std: float, *, cells: int = 60, sweeps: int = 30) -> Float64s:
    """The prior is a histogram, and an atom at 0: a posterior mean within a cell is a truncated
    normal's, however narrow the noise.

    Atoms alone would put a well measured number between two of them at the mean of the prior.
    """
    top = max(float(noisy.max()), std) * 1.1
    edges = np.concatenate([[0.0], np.geomspace(min(0.02 * std, top / 50), top, cells)])
    below = (edges - noisy[:, None]) / std
    mass = np.diff(scipy.special.ndtr(below), axis=1)
    density = np.exp(-0.5 * below**2) / math.sqrt(2 * math.pi)
    means = noisy[:, None] + std * -np.diff(density, axis=1) / np.maximum(mass, 1e-300)
    means = np.column_stack([np.zeros(len(noisy)), np.clip(means, edges[:-1], edges[1:])])
    likelihood = np.column_stack([density[:, 0] / std, mass / np.diff(edges)]) + 1e-300
    prior = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(sweeps):
        joint = likelihood * prior
        prior = np.mean(joint / joint.sum(axis=1, keepdims=True), axis=0)
    joint = likelihood * prior
    return np.asarray((joint * means).sum(axis=1) / joint.sum(axis=1), np.float64)


def tail_weights(counts: Float64s, *, noise_std: float, exponent: float) -> Float64s:
    """omega (m,) proportional to (c + 0.3 noise_std)^-exponent, scaled to sum c omega^2 = sum c;
    for users scaled to their budget later.

    counts: (m,) >= 0, released, in any unit. noise_std: of the release that omega will weigh, in
    units of one user's budget. Ada-DPALS eq. 11 with an offset: among items that the noise hides,
    counts tell little, and all get about the same.
    """
    c = np.asarray(counts, np.float64) + 1e-9
    omega = (c + 0.3 * noise_std) ** -exponent
    return np.asarray(omega / math.sqrt(float(c @ omega**2) / float(c.sum())), np.float64)
