"""The item update without features, in closed form: theta_j from (A_j, b_j) alone (Ada-DPALS Alg. 1
l. 7, Krichene et al. 2023).

Guarantee: post-processing of released statistics, no cost. `ridge` is public, or a function of
released counts, and is added here, outside the sum over users. Alg. 1 l. 5 prints it inside, as
w_ij (x x' + lambda I); then lambda I is part of what a user contributes, with norm up to
sqrt(Gamma^4 + 2 lambda Gamma^2 + d lambda^2) instead of the Gamma^2 that the proof of Thm 3.3 uses
(5.9 times at d = 32, lambda = Gamma^2).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedrec.arrays import Float64s, Floats
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.numerics.packed import unpack
from fedrec.numerics.threads import map_ranges

_BLOCK = 512  # matrices unpacked at a time


def pseudo_inverse(statistics: ItemStatistics, *, ridge: float | Floats) -> Float64s:
    """The printed rule: theta_j = (projection of A_j + ridge_j I on the PSD cone)^+ b_j; (m, d)
    float64.

    Directions in which noise left no positive eigenvalue get 0. A small positive one is divided by,
    however small: the printed rule is unstable there, and `projected` is what one wants.
    """

    def invert(eigenvalues: Float64s, ridges: Float64s) -> Float64s:
        shifted = eigenvalues + ridges
        cutoff = (
            shifted.shape[1] * np.finfo(np.float64).eps * np.abs(shifted).max(axis=1, keepdims=True)
        )
        return np.where(shifted > cutoff, 1.0 / np.where(shifted > cutoff, shifted, 1.0), 0.0)

    return _solve(statistics, ridge, invert)


def projected(statistics: ItemStatistics, *, ridge: float | Floats) -> Float64s:
    """theta_j = (projection of A_j on the PSD cone + ridge_j I)^-1 b_j, as in the papers' public
    code; (m, d) float64, ridge > 0."""
    if not bool(np.all(np.asarray(ridge) > 0)):
        raise ValueError(
            f"the projected solution needs a positive ridge, found {float(np.min(ridge))!r}"
        )

    def invert(eigenvalues: Float64s, ridges: Float64s) -> Float64s:
        return np.asarray(1.0 / (np.maximum(eigenvalues, 0.0) + ridges), np.float64)

    return _solve(statistics, ridge, invert)


def _solve(
    statistics: ItemStatistics,
    ridge: float | Floats,
    invert: Callable[[Float64s, Float64s], Float64s],
) -> Float64s:
    """theta_j = Q invert(eigenvalues, ridge_j) Q' b_j with A_j = Q diag(eigenvalues) Q', in blocks
    of bounded memory."""
    m, d = statistics.moment.shape
    ridges = np.broadcast_to(np.asarray(ridge, np.float64), (m,))
    out = np.empty((m, d), np.float64)

    def piece(start: int, stop: int) -> None:
        for low in range(start, stop, _BLOCK):
            block = slice(low, min(low + _BLOCK, stop))
            eigenvalues, Q = np.linalg.eigh(unpack(statistics.gram[block].astype(np.float64), d))
            along = np.einsum("jri,jr->ji", Q, statistics.moment[block].astype(np.float64))
            out[block] = np.einsum(
                "jri,ji->jr", Q, along * invert(eigenvalues, ridges[block, None])
            )

    map_ranges(piece, m)
    return out
