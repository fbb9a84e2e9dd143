"""Uniform draws from a secret key, exact: coins, integers, subsets. What randomised answers and
padding are made of.

Every draw compares whole 64-bit words with integers; no floating-point uniform is involved. AES
stands for uniform words (`fedrec.privacy.keystream`). A key is used once.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fedrec.arrays import Bools, Int64s, UInt64s
from fedrec.privacy.keystream import Keystream, derive

# relative; more than the few roundings with which a caller computes a probability
_ROUNDING = Fraction(1, 2**48)


def coins(size: int, *, probability: float, key: bytes) -> Bools:
    """(size,) independent coins, True with at least `probability` and at most (1 + 2^-48)
    `probability` + 2^-64.

    Rounded up, so that what protects (padding, lying) should be True. 0 and 1 are exact. Raises
    ValueError outside [0, 1].
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability lies in [0, 1], found {probability!r}")
    threshold = math.ceil(Fraction(probability) * (1 + _ROUNDING) * 2**64)
    if threshold >= 2**64 or threshold == 0:
        return np.full(size, threshold > 0)
    return np.asarray(_words(size, key, section=0) < np.uint64(threshold))


def integers(size: int, *, below: int, key: bytes) -> Int64s:
    """(size,) independent integers, each of 0 .. below - 1 equally likely, by rejection.

    Raises ValueError where below < 1."""
    if not 1 <= below < 2**63:
        raise ValueError(f"need at least one integer and fewer than 2^63, found {below!r}")
    divisor = np.uint64(below)
    top = np.uint64(2**64 - 1 - 2**64 % below)
    drawn = _words(size, key, section=0)
    section = 0
    while len(rejected := np.flatnonzero(drawn > top)):
        section += 1
        drawn[rejected] = _words(len(rejected), key, section=section)
    return np.asarray(drawn % divisor, np.int64)


def subsets(size: int, *, members: int, of: int, key: bytes) -> Int64s:
    """(size, members) independent ordered draws without replacement from 0 .. of - 1 (Fisher-Yates,
    stopped early)."""
    if not 0 <= members <= of:
        raise ValueError(f"cannot draw {members!r} of {of!r}")
    pool = np.tile(np.arange(of), (size, 1))
    rows = np.arange(size)
    for t in range(members):
        pick = t + integers(size, below=of - t, key=derive(key, f"subsets/{t}"))
        pool[:, t], pool[rows, pick] = pool[rows, pick], pool[:, t].copy()
    return pool[:, :members]


def _words(size: int, key: bytes, *, section: int) -> UInt64s:
    stream = Keystream(derive(key, "uniform"), section=section, buffer_words=max(size, 1))
    return stream.next_words()[:size].copy()
