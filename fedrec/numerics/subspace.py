"""Leading eigenvectors of a positive semidefinite matrix that is known by its products alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedrec.arrays import Float64s

SWEEPS = 8


def leading_eigenvectors(
    product: Callable[[Float64s], Float64s], *, size: int, rank: int, rng: np.random.Generator
) -> tuple[Float64s, Float64s]:
    """(size, rank) eigenvectors and (rank,) eigenvalues, largest first, of the matrix that
    `product` multiplies (size, .) blocks by.

    Randomised subspace iteration (Halko, Martinsson, Tropp 2011, Alg. 4.4).
    """
    Q = np.linalg.qr(product(rng.standard_normal((size, min(rank + 20, size)))))[0]
    for _ in range(SWEEPS):
        Q = np.linalg.qr(product(Q))[0]
    values, rotation = np.linalg.eigh(Q.T @ product(Q))
    order = np.argsort(values)[::-1][:rank]
    return np.asarray((Q @ rotation)[:, order]), np.asarray(values[order])
