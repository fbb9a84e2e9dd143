"""Empirical-Bayes means of few values."""

from __future__ import annotations

import numpy as np

from fedrec.arrays import Float64s


def sparse_means(observed: Float64s, *, sweeps: int = 100, bins: int = 4096) -> Float64s:
    """Posterior means (n,) of numbers known with noise N(0, 1), few of which stand out of it.

    The prior is a mixture of N(0, g), g = 0 and powers of 2, its weights by EM on the numbers
    themselves (Stephens 2017, adaptive shrinkage), in bins of their size. A mean is made of the
    components with g >= 1: of smaller ones no number says anything by itself.
    """
    if not observed.any():
        return observed
    g = np.concatenate([[0.0], 2.0 ** np.arange(-4, 13)])
    size = np.arcsinh(np.abs(observed))
    found, edges = np.histogram(size, bins=bins, range=(0, max(float(size.max()), 1)))
    z = np.sinh((edges[1:] + edges[:-1]) / 2)
    likelihood = -(z[:, None] ** 2) / 2 / (1 + g) - np.log1p(g) / 2
    likelihood = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    share = np.full(len(g), 1 / len(g))
    for _ in range(sweeps):
        belongs = likelihood * share
        belongs /= belongs.sum(axis=1, keepdims=True)
        share = found @ belongs / found.sum()
    kept = np.where(g >= 1, g / (1 + g), 0)
    return np.asarray(observed * np.interp(np.abs(observed), z, belongs @ kept), np.float64)
