"""Clip first: what comes out of here is bounded, and says by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s


@dataclass(frozen=True)
class BoundedRows:
    """Rows (n, d) of Euclidean norm at most `radius`: one row is one unit's whole contribution to a
    sum."""

    rows: Float64s
    radius: float


@dataclass(frozen=True)
class BoundedValues:
    """Values (n,) in [low, high]."""

    values: Float64s
    low: float
    high: float


def clip_rows(rows: npt.NDArray[np.floating], *, radius: float) -> BoundedRows:
    """Project each row on the ball of `radius` > 0 (Ada-DPALS Alg. 1 l. 2): shorter rows keep their
    bits.

    Raises ValueError where a row has a number that is not finite: no bound can be promised for it.
    """
    x = np.asarray(rows, np.float64)
    if not radius > 0 or not bool(np.isfinite(x).all()):
        raise ValueError(
            f"clipping needs finite rows and a positive radius, found radius {radius!r}"
        )
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    # one unit in the last place inside, so that recomputing the norm never finds more than the
    # radius
    factors = np.where(
        norms > radius,
        np.nextafter(radius, 0) * (1 - 4e-16 * x.shape[1]) / np.maximum(norms, radius),
        1.0,
    )
    return BoundedRows(x * factors, radius)


def clip_values(values: npt.NDArray[np.floating], *, low: float, high: float) -> BoundedValues:
    """Values cut to [low, high] (both sides: DP-CMF Alg. 1 l. 6 prints one)."""
    if not low < high:
        raise ValueError(f"need low < high, found [{low!r}, {high!r}]")
    x = np.asarray(values, np.float64)
    if not bool(np.isfinite(x).all()):
        raise ValueError("clipping needs finite values")
    return BoundedValues(np.clip(x, low, high), low, high)
