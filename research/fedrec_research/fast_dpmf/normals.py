"""Fresh normal numbers within compiled loops: Box-Muller on words of Philox, by a key and a
counter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedrec.arrays import Floats
from fedrec.numerics import compiled

u32 = np.uint32


u64 = np.uint64


f32 = np.float32


i32 = np.int32


_FAST = {"contract", "reassoc", "nsz", "nnan", "ninf"}


@njit(inline="always")
def _half_round(constant: Any, word: Any) -> tuple[Any, Any]:
    product = u64(constant) * u64(word)
    return u32(product >> u64(32)), u32(product)


@njit(inline="always")
def _philox(a: Any, b: Any, c: Any, d: Any, key_0: Any, key_1: Any) -> tuple[Any, Any, Any, Any]:
    """Ten rounds of Philox4x32 on the counter (a, b, c, d)."""
    for _ in range(10):
        high_0, low_0 = _half_round(0xD2511F53, a)
        high_1, low_1 = _half_round(0xCD9E8D57, c)
        a = u32(high_1 ^ b ^ key_0)
        b = low_1
        c = u32(high_0 ^ d ^ key_1)
        d = low_0
        key_0 = u32(key_0 + u32(0x9E3779B9))
        key_1 = u32(key_1 + u32(0xBB67AE85))
    return a, b, c, d


@njit(inline="always")
def _radius(word: Any) -> Any:
    """sqrt(-2 log u), u uniform on the multiples of 2^-31 in (0, 1]; log as in Cephes' logf."""
    # spelled out: numba finds `view` only so
    u = np.float32((f32(i32(word >> u32(1))) + f32(1)) * f32(2.0**-31))
    bits = u.view(np.int32)
    mantissa = np.int32((bits & i32(0x7FFFFF)) | i32(0x3F800000))
    m = mantissa.view(np.float32)
    high = m > f32(1.41421356)
    f = (f32(0.5) * m if high else m) - f32(1)
    exponent = f32(i32(bits >> i32(23)) - i32(127)) + (f32(1) if high else f32(0))
    p = f32(7.0376836292e-2) * f - f32(1.1514610310e-1)
    p = p * f + f32(1.1676998740e-1)
    p = p * f - f32(1.2420140846e-1)
    p = p * f + f32(1.4249322787e-1)
    p = p * f - f32(1.6668057665e-1)
    p = p * f + f32(2.0000714765e-1)
    p = p * f - f32(2.4999993993e-1)
    p = p * f + f32(3.3333331174e-1)
    log = f + (p * f - f32(0.5)) * f * f + exponent * f32(0.69314718)
    return np.sqrt(max(f32(-2) * log, f32(0)))


@njit(inline="always")
def _direction(word: Any) -> tuple[Any, Any]:
    """A uniform point of the circle: an angle in [-pi/4, pi/4) from 30 bits, its quadrant from the
    other two."""
    x = f32(i32(word) >> i32(2)) * f32(2.0**-29 * np.pi / 4)
    z = x * x
    sine = (
        (f32(-1.9515295891e-4) * z + f32(8.3321608736e-3)) * z - f32(1.6666654611e-1)
    ) * z * x + x
    cosine = (
        (
            (f32(2.443315711809948e-5) * z - f32(1.388731625493765e-3)) * z
            + f32(4.166664568298827e-2)
        )
        * z
        * z
        - f32(0.5) * z
        + f32(1)
    )
    swap = (word & u32(1)) == u32(1)
    sign = f32(1) if (word & u32(2)) == u32(2) else f32(-1)
    return sign * (sine if swap else cosine), sign * (cosine if swap else sine)


@njit(inline="always")
def _four(i: Any, b: Any, c: Any, d: Any, key_0: Any, key_1: Any) -> tuple[Any, Any, Any, Any]:
    """Four normals of one counter."""
    w, x, y, z = _philox(u32(i), b, c, d, key_0, key_1)
    first, (cosine, sine) = _radius(w), _direction(x)
    second, (further_cosine, further_sine) = _radius(y), _direction(z)
    return first * cosine, first * sine, second * further_cosine, second * further_sine


@compiled(fastmath=_FAST, error_model="numpy")
def fill_normals(
    out: Floats, width: int, key: int, row: int | np.int64, round: int, table: int | np.int64
) -> None:
    """out[:width] = standard normals of (key, row, round, table), float32; `width` is a multiple of
    4, row and round below 2^32.

    A length that the compiler knows makes the loop over a short row run in vector registers too:
    three times as fast.

    Philox4x32-10 (Salmon et al. 2011) turns (position, row, round, table) under a 64-bit key into
    four words; Box and Muller turn two words into two normals, with the single-precision
    polynomials of Cephes for log, sine and cosine, so that the loop runs in vector registers. A
    row's numbers depend on key and counter alone: neither threads nor the order of rows shows in
    them.

    Philox is no cipher, and the tails end at 6.56 standard deviations: good enough for a Markov
    chain. Noise that pays for a guarantee comes from `fedrec.privacy.gaussian` alone.
    """
    key_0 = u32(key)
    key_1 = u32(u64(key) >> u64(32))
    n = width // 4
    b = u32(row)
    c = u32(round)
    d = u32(table)
    if n == 4:
        for i in range(4):
            out[i], out[4 + i], out[8 + i], out[12 + i] = _four(i, b, c, d, key_0, key_1)
    elif n == 8:
        for i in range(8):
            out[i], out[8 + i], out[16 + i], out[24 + i] = _four(i, b, c, d, key_0, key_1)
    else:
        for i in range(n):
            out[i], out[n + i], out[2 * n + i], out[3 * n + i] = _four(i, b, c, d, key_0, key_1)


@compiled(fastmath=_FAST)
def diffuse(
    values: Floats, at: int, width: int, keep: float, noise_std: float, normals: Floats
) -> None:
    """values[at:at+width] = keep times itself + noise_std times normals[:width]."""
    a = values.dtype.type(keep)
    s = values.dtype.type(noise_std)
    for c in range(width):
        values[at + c] = a * values[at + c] + s * normals[c]
