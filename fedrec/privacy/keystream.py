"""A stream of random 64-bit words from a secret key: AES-256 in counter mode.

Deployed noise is made from it with a key of the operating system, reproducible experiments with a
key of a seeded stream (`fedrec.randomness`). To tell the words from uniform ones without the key is
to break AES (within 2^64 blocks per key; a release of 23 million numbers takes 2^25).

Coins, integers and subsets are drawn from it exactly; randomised answers and padding are made of
them. Every draw compares whole 64-bit words with integers, and no floating-point uniform is
involved. A key is used once.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedrec.arrays import Bools, Int64s, UInt64s

KEY_BYTES = 32  # of AES-256
_TAIL_WORDS = 2  # `update_into` asks for room for one more cipher block than it writes
# relative; more than the few roundings with which a caller computes a probability
_ROUNDING = Fraction(1, 2**48)


def derive(key: bytes, purpose: str) -> bytes:
    """A key of its own for each purpose: SHA-256 of both.

    Raises ValueError on fewer than 32 bytes of key."""
    if len(key) < KEY_BYTES:
        raise ValueError(f"a key must have at least {KEY_BYTES} bytes, found {len(key)}")
    return hashlib.sha256(b"fedrec/keystream/" + purpose.encode() + b"/" + key).digest()


class Keystream:
    """The words of (key, section); sections of one key are disjoint stretches of 2^64 blocks of the
    same counter."""

    def __init__(self, key: bytes, *, section: int, buffer_words: int) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"an AES-256 key has {KEY_BYTES} bytes, found {len(key)}")
        counter = section.to_bytes(8, "big") + bytes(8)
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        self._zeros = memoryview(bytes(8 * buffer_words))
        self._room = np.empty(buffer_words + _TAIL_WORDS, "<u8")
        self._bytes = memoryview(self._room.view(np.uint8))  # type: ignore[arg-type]
        self._words: UInt64s = self._room[:buffer_words].astype(np.uint64, copy=False)

    def next_words(self) -> UInt64s:
        """The next `buffer_words` words, in a buffer that the next call overwrites."""
        self._encryptor.update_into(self._zeros, self._bytes)
        if self._words.base is None:  # a big-endian machine: the copy above must follow
            self._words[:] = self._room[: len(self._words)]
        return self._words


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
