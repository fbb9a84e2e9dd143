"""Public numbers with as many bits as their noise leaves meaning in, rounded once, by the server,
before anybody computes with them.

What a recipe broadcasts it rounds itself, as it used to cast to float32, and it learns around the
rounded numbers: devices, server and a run that is resumed then hold the same ones. Results are
float32 numbers of few bits, which `coding` writes as small integers. Rounding what was released is
post-processing: it costs nothing, and no promise rests on it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s

ROW_BITS = 3
"""A row's step is 1/16 to 1/8 of its root mean square: rounding is 0.03 to 0.13% of its energy, in
5 to 6 bits a number if they are normal.

Below what any release leaves: a row measured as well as 30 to 1 would need more.
"""
NUMBER_BITS = 6
"""Significant bits of single numbers (a bias, a weight): off by at most 0.8%."""


def rounded_rows(X: npt.NDArray[np.floating], *, bits: int = ROW_BITS) -> Float32s:
    """X (m, d), each row on a grid of its own: the largest power of two up to its root mean square,
    over 2^bits.

    All coordinates of a row share the step: of a product v_j . u with u of similar size in every
    direction, that is the least error for the bits (reverse water-filling). Rows of zeros stay.
    Ties go to even.
    """
    X = np.asarray(X, np.float64)
    sizes = np.sqrt(np.mean(X**2, axis=1, keepdims=True))
    exponents = np.frexp(sizes)[1] - 1 - bits  # 2^(e - 1) <= size < 2^e
    return _float32(np.ldexp(np.rint(np.ldexp(X, -exponents)), exponents))


def rounded_numbers(x: npt.NDArray[np.floating], *, bits: int = NUMBER_BITS) -> Float32s:
    """Each number of x, of any shape, with `bits` significant bits. Ties go to even."""
    mantissas, exponents = np.frexp(np.asarray(x, np.float64))
    return _float32(np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits))


def _float32(rounded: npt.NDArray[np.float64]) -> Float32s:
    return np.asarray(rounded + 0.0, np.float32)  # -0.0 + 0.0 is 0.0: one zero, one way to write it
