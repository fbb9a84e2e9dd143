"""Discrete Gaussian noise on the integers, P(z) ~ exp(-z^2 / (2 std^2)), exact and fast.

Method. Let k = 2^shift be the power of two with std / k in [32, 64) (k = 1 below 32). Draw x >= 0
with weight exp(-(k x)^2 / (2 std^2)), y uniform in [0, k), and accept z = k x + y with probability
exp(-y (y + 2 k x) / (2 std^2)): the product is exp(-z^2 / (2 std^2)). A sign bit makes it
two-sided, where minus zero is rejected (rejection as in Ducas et al. 2013, BLISS). One try takes
two 64-bit words: 64 bits for x; in the other the sign, y, and at least 28 bits of the acceptance
uniform.

Exactness. Words are the leading bits of uniforms of unlimited length, and each comparison is made
on the leading bits only where it cannot come out otherwise. For x: floor(2^64 C_i) of the
cumulative C_i is computed with 50 digits and a proven error; a word equal to one decides nothing.
For acceptance: double arithmetic is off by less than 2^-48 (five roundings and an `exp` right to 8
units in the last place, on an argument below 1/2), we leave a margin of 2^-40. What stays
undecided, once in 2^28 tries or less, is settled in decimal arithmetic of growing precision with
more bits of the keystream. The law is therefore exact for uniform words; AES stands for those. It
is not constant-time: who can time a draw to nanoseconds learns about it; an aggregator shows its
release only after the whole of it is drawn.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s, UInt64s
from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges
from fedrec.privacy.keystream import Keystream, derive

SMALLEST_STD = 0.5
LARGEST_STD = 2.0**40
"""In grid steps. Below, hardly a draw is not zero; above, 64 bits have no room for a sign, y and 28
bits of the acceptance uniform."""
SECTION = 1 << 16
"""Draws that share a section of the keystream; fixed, so that neither threads nor the size change a
draw."""
_BUFFER_WORDS = 1 << 14
_GUIDE_BITS = 11
_MARGIN = 2.0**-40
_DIGITS = 50
"""Words of keystream fetched at a time, 128 KB; leading bits that find a place in the table, so
that a search takes a step or two; the margin of acceptance and the digits with which exact
arithmetic begins, both of the docstring above."""


@dataclass(frozen=True)
class Law:
    """What the fast path knows of one std: thresholds floor(2^64 C_i), and where to start looking
    by a word's leading bits."""

    std: float
    shift: int
    thresholds: UInt64s
    guide: npt.NDArray[np.int16]

    @property
    def base_std(self) -> float:
        """std / 2^shift, exactly."""
        return math.ldexp(self.std, -self.shift)


def sample(size: int, *, std: float, key: bytes) -> Int64s:
    """(size,) independent draws, a function of (key, std) alone: a longer sample begins with the
    shorter one.

    key: at least 32 bytes, secret and used once. Raises ValueError on a shorter key or a std
    outside [0.5, 2^40].
    """
    return _sample(size, law_of(std), derive(key, "discrete-gaussian"), margin=_MARGIN)


@lru_cache(maxsize=32)
def law_of(std: float) -> Law:
    """The tables of one std. Raises ValueError outside [0.5, 2^40]."""
    if not SMALLEST_STD <= std <= LARGEST_STD:
        raise ValueError(f"std must be in [{SMALLEST_STD}, 2^40] grid steps, found {std!r}")
    shift = max(0, math.frexp(std)[1] - 6)
    thresholds = _thresholds(math.ldexp(std, -shift))
    starts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
    return Law(std, shift, thresholds, np.searchsorted(thresholds, starts).astype(np.int16))


def _sample(size: int, law: Law, key: bytes, *, margin: float) -> Int64s:
    draws = np.empty(size, np.int64)

    def sections(first: int, last: int) -> None:
        for section in range(first, last):
            _fill_section(
                draws[section * SECTION : (section + 1) * SECTION], law, key, section, margin
            )

    map_ranges(sections, -(-size // SECTION))
    return draws


def _fill_section(out: Int64s, law: Law, key: bytes, section: int, margin: float) -> None:
    stream = Keystream(key, section=section, buffer_words=_BUFFER_WORDS)
    precision = 0.5 / law.std / law.std
    done = undecided = 0
    while done < len(out):
        words = stream.next_words()
        at = 0
        while at < len(words) and done < len(out):
            at, done, stuck = _draw(
                words, at, law.thresholds, law.guide, law.shift, precision, margin, out, done
            )
            if stuck:
                undecided += 1
                more = _more_bits(derive(key, f"undecided/{section}/{undecided}"))
                z = settle(int(words[at]), int(words[at + 1]), law, more)
                at += 2
                if z is not None:
                    out[done] = z
                    done += 1


@compiled()
def _draw(
    words: UInt64s, at: int, thresholds: UInt64s, guide: npt.NDArray[np.int16], shift: int,
    precision: float, margin: float,
    out: Int64s, done: int,
) -> tuple[int, int, bool]:  # fmt: skip
    """Draw until the words or the places run out, or a try is undecided: (next word, next place,
    undecided)."""
    one = np.uint64(1)
    bits = np.uint64(shift)
    mask = (one << bits) - one
    unit = 0.5 ** (63 - shift)
    slack = margin + unit
    while at < len(words) and done < len(out):
        u = words[at]
        v = words[at + 1]
        x = np.int64(guide[np.int64(u >> np.uint64(64 - _GUIDE_BITS))])
        while u > thresholds[x]:
            x += 1
        if u == thresholds[x]:
            return at, done, True
        y = np.int64((v >> one) & mask)
        base = x << shift
        exponent = np.float64(y) * np.float64(y + 2 * base) * precision
        uniform = np.float64(v >> (bits + one)) * unit
        if uniform >= 1 - exponent - slack:
            accepted = math.exp(-exponent)
            if abs(uniform - accepted) <= slack:
                return at, done, True
            if uniform > accepted:
                at += 2
                continue
        z = base + y
        negative = (v & one) == one
        at += 2
        if z == 0 and negative:
            continue
        out[done] = -z if negative else z
        done += 1
    return at, done, False


def settle(u: int, v: int, law: Law, more: Iterator[int]) -> int | None:
    """The outcome of one try (None: rejected), exactly: words u and v, and further bits of both
    uniforms from `more`."""
    x = _settle_base(u, law.base_std, more)
    y = (v >> 1) & ((1 << law.shift) - 1)
    if not _settle_acceptance(
        v >> (1 + law.shift), 63 - law.shift, y, x << law.shift, law.std, more
    ):
        return None
    z = (x << law.shift) + y
    negative = v & 1
    return None if z == 0 and negative else -z if negative else z


def _settle_base(u: int, base_std: float, more: Iterator[int]) -> int:
    """The smallest i with U < C_i, where u is the first 64 bits of U."""
    bits = 64
    digits = _DIGITS
    while True:
        cumulative, error = _cumulative(base_std, digits)
        with decimal.localcontext(prec=digits + bits):
            low = Decimal(u) / 2**bits
            high = Decimal(u + 1) / 2**bits
        for i, bound in enumerate(cumulative):
            if high <= bound - error:
                return i
            if low < bound + error:
                break  # undecided
        u = (u << 64) | next(more)
        bits = bits + 64
        digits = digits + 25


def _settle_acceptance(
    r: int, bits: int, y: int, base: int, std: float, more: Iterator[int]
) -> bool:
    """Whether R < exp(-y (y + 2 base) / (2 std^2)), where r is the first `bits` bits of R."""
    digits = _DIGITS
    while y:
        with decimal.localcontext(prec=digits + bits):
            accepted = (-Decimal(y * (y + 2 * base)) / (2 * Decimal(std) ** 2)).exp()
            error = Decimal(10) ** (8 - digits)
            if Decimal(r + 1) / 2**bits <= accepted - error:
                return True
            if Decimal(r) / 2**bits >= accepted + error:
                return False
        r = (r << 64) | next(more)
        bits = bits + 64
        digits = digits + 25
    return True  # exp(0) = 1


@lru_cache(maxsize=32)
def _cumulative(base_std: float, digits: int) -> tuple[list[Decimal], Decimal]:
    """C_i = P(x <= i) for x >= 0, weights exp(-i^2 / (2 base_std^2)), up to the last below 1 -
    error; and a bound on the error.

    With q = exp(-1 / base_std^2), each weight is the one before times a factor, and each factor the
    one before times q, in 15 more digits. A rounding there is below 10^(-digits - 14), relatively,
    and weight i has 8 (i + 1)^2 of them at most, i <= 64 sqrt(5 digits), that of the exponent with
    them: less than its last digit once it is rounded to `digits`. As many terms are added, and the
    terms left out are below 10^-(digits + 1): together less than 10^(6 - digits); 10^(8 - digits)
    is declared.
    """
    with decimal.localcontext(prec=digits + 15):
        factor = (-1 / (2 * Decimal(base_std) ** 2)).exp()
        q = factor**2
        weights = [Decimal(1)]
        smallest = Decimal(10) ** -(digits + 1)
        while weights[-1] > smallest:
            weights.append(weights[-1] * factor)
            factor *= q
    with decimal.localcontext(prec=digits):
        total = sum(weights)
        running = Decimal(0)
        cumulative = []
        for weight in weights:
            running += weight
            cumulative.append(running / total)
        return cumulative, Decimal(10) ** (8 - digits)


def _thresholds(base_std: float) -> UInt64s:
    """floor(2^64 C_i) until it is 2^64 - 1, each certain."""
    digits = _DIGITS
    while True:
        cumulative, error = _cumulative(base_std, digits)
        with decimal.localcontext(prec=2 * digits):
            # both ends of what C_i may be: equal, they are floor(2^64 C_i)
            low = [math.floor((c - error) * 2**64) for c in cumulative if c + error < 1]
            # as above
            high = [math.floor((c + error) * 2**64) for c in cumulative if c + error < 1]
        if low == high:
            last = low.index(2**64 - 1)
            return np.array(low[: last + 1], np.uint64)
        digits += 25


def _more_bits(key: bytes) -> Iterator[int]:
    stream = Keystream(key, section=0, buffer_words=64)
    while True:
        yield from (int(word) for word in stream.next_words().copy())
