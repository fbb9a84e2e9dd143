"""Spectrum of a noised Gram, and what of it stands out of the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from fedrec.arrays import Float64s


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenvectors (K, r) of a noised Gram, their eigenvalues (r,) as released, and shrunk:
    0 inside the noise's edge."""

    vectors: Float64s
    values: Float64s
    shrunk: Float64s


def denoised(gram: Float64s, *, noise_std: float, rank: int) -> Spectrum:
    """The `rank` leading eigenvectors of a symmetric (K, K) Gram, largest first, their eigenvalues
    shrunk as the module says."""
    K = len(gram)
    values, vectors = scipy.linalg.eigh(gram, subset_by_index=(K - min(rank, K), K - 1))
    values = values[::-1]
    vectors = np.ascontiguousarray(vectors[:, ::-1])
    edge = noise_std * math.sqrt(2 * K)
    return Spectrum(vectors, values, np.sqrt(np.maximum(np.maximum(values, 0) ** 2 - edge**2, 0)))


def stands_out(gram: Float64s, *, noise_std: float) -> bool:
    """Whether an eigenvalue of a symmetric (K, K) Gram is outside the noise's edge.

    Where that of a vector close to the first clearly is, no eigenvector needs to be found."""
    near = np.sqrt(np.maximum(np.diag(gram), 0))
    squares = float(near @ near)
    edge = noise_std * math.sqrt(2 * len(gram))
    if squares and float(near @ gram @ near) / squares > 1.001 * edge:
        return True
    return bool(denoised(gram, noise_std=noise_std, rank=1).shrunk.any())
