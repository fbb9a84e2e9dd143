"""Keyed hash of user and item ids, by which splits and samples are drawn: SipHash-2-4 (Aumasson,
Bernstein 2012), 64 bits.

A draw is a function of (key, user id, item id). It depends on nobody else's data, on no order and
on no numbering: one person more or less in a file changes no other person's draws. A permutation or
a shared stream would change them all.

Ids are hashed once, when they are read, to 64-bit words (`id_words`). Two ids with the same word
would share their draws, each still a function of its own id. The keys of draws come from public
seeds: nothing rests on their being secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numba
import numpy as np
import numpy.typing as npt

from fedrec.numerics.threads import map_ranges

Words = npt.NDArray[np.uint64]

_ID_KEY = b"fedrec/1/ids    "
_BYTES = 1 << 24
"""Bytes of ids that are hashed at a time."""


def id_words(ids: Sequence[str]) -> Words:
    """(len(ids),) the word of each id, from its UTF-8 bytes."""
    out = np.empty(len(ids), np.uint64)
    step = max(1, _BYTES // 16)
    for start in range(0, len(ids), step):
        some = [name.encode("utf-8", "surrogatepass") for name in ids[start : start + step]]
        ends = np.cumsum(np.fromiter(map(len, some), np.int64, len(some)))
        text = np.frombuffer(b"".join(some), np.uint8)
        _hash_texts(*_halves(_ID_KEY), text, ends, out[start : start + step])
    return out


def number_words(numbers: npt.NDArray[np.integer]) -> Words:
    """The words of numbers written in decimals: the ids of data made in memory."""
    return id_words([str(number) for number in numbers.tolist()])


@lru_cache(maxsize=16)
def first_words(count: int) -> Words:
    """The words of "0", "1", ... up to `count` - 1, read-only."""
    words = number_words(np.arange(count))
    words.flags.writeable = False
    return words


def hashed(key: bytes, words: Words) -> Words:
    """(n,) uniform 64-bit draws, one for each word. key: 16 bytes or more, of which the first 16
    count."""
    out = np.empty(len(words), np.uint64)
    _hash_words(*_halves(key), np.ascontiguousarray(words), out)
    return out


def hashed_events(
    key: bytes,
    user_ptr: npt.NDArray[np.int64],
    items: npt.NDArray[np.int32],
    user_words: Words,
    item_words: Words,
) -> Words:
    """(n,) uniform 64-bit draws, one for each event: of the key, its user's word and its item's
    word alone.

    The events of user k are `user_ptr[k]:user_ptr[k + 1]`.
    """
    out = np.empty(len(items), np.uint64)
    low, high = _halves(key)

    def piece(start: int, stop: int) -> None:
        _hash_events(low, high, user_ptr, items, user_words, item_words, out, start, stop)

    map_ranges(piece, len(user_ptr) - 1)
    return out


def below(words: Words, share: float) -> npt.NDArray[np.bool_]:
    """Whether each uniform draw falls into the first `share` (0 to 1) of all 64-bit words."""
    if not 0 <= share <= 1:
        raise ValueError(f"a share lies in [0, 1], found {share!r}")
    return (
        np.ones(len(words), np.bool_)
        if share == 1
        else np.asarray(words < np.uint64(int(share * 2.0**64)))
    )


def _halves(key: bytes) -> tuple[np.uint64, np.uint64]:
    if len(key) < 16:
        raise ValueError(f"a key has 16 bytes or more, found {len(key)}")
    low, high = np.frombuffer(key[:16], "<u8")
    return np.uint64(low), np.uint64(high)


@numba.njit(nogil=True, cache=True, inline="always")
def _rotated(word: np.uint64, bits: np.uint64) -> np.uint64:
    return (word << bits) | (word >> (np.uint64(64) - bits))


@numba.njit(nogil=True, cache=True, inline="always")
def _round(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """SipRound, Fig. 2.1."""
    a = a + b
    c = c + d
    b = _rotated(b, np.uint64(13)) ^ a
    d = _rotated(d, np.uint64(16)) ^ c
    a = _rotated(a, np.uint64(32))
    c = c + b
    a = a + d
    b = _rotated(b, np.uint64(17)) ^ c
    d = _rotated(d, np.uint64(21)) ^ a
    return a, b, _rotated(c, np.uint64(32)), d


@numba.njit(nogil=True, cache=True, inline="always")
def _start(low: np.uint64, high: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    return (
        low ^ np.uint64(0x736F6D6570736575),
        high ^ np.uint64(0x646F72616E646F6D),
        low ^ np.uint64(0x6C7967656E657261),
        high ^ np.uint64(0x7465646279746573),
    )


@numba.njit(nogil=True, cache=True, inline="always")
def _absorb(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, word: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    a, b, c, d = _round(a, b, c, d ^ word)
    a, b, c, d = _round(a, b, c, d)
    return a ^ word, b, c, d


@numba.njit(nogil=True, cache=True, inline="always")
def _finish(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, last: np.uint64) -> np.uint64:
    """`last`: the remaining bytes, and the length modulo 256 in the highest byte."""
    a, b, c, d = _absorb(a, b, c, d, last)
    c = c ^ np.uint64(0xFF)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


@numba.njit(nogil=True, cache=True)
def _hash_words(low: np.uint64, high: np.uint64, words: Words, out: Words) -> None:
    for i in range(len(words)):
        a, b, c, d = _start(low, high)
        a, b, c, d = _absorb(a, b, c, d, words[i])
        out[i] = _finish(a, b, c, d, np.uint64(8 << 56))


@numba.njit(nogil=True, cache=True)
def _hash_events(
    low: np.uint64, high: np.uint64, user_ptr: npt.NDArray[np.int64], items: npt.NDArray[np.int32],
    user_words: Words,
    item_words: Words, out: Words, start: int, stop: int,
) -> None:  # fmt: skip
    for k in range(start, stop):
        a, b, c, d = _start(low, high)
        # the user's half of the message, once for all of its items
        a, b, c, d = _absorb(a, b, c, d, user_words[k])
        for e in range(user_ptr[k], user_ptr[k + 1]):
            p, q, r, s = _absorb(a, b, c, d, item_words[items[e]])
            out[e] = _finish(p, q, r, s, np.uint64(16 << 56))


@numba.njit(nogil=True, cache=True)
def _hash_texts(
    low: np.uint64,
    high: np.uint64,
    text: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    out: Words,
) -> None:
    start = np.int64(0)
    for i in range(len(ends)):
        stop = ends[i]
        place = start
        a, b, c, d = _start(low, high)
        while stop - place >= 8:
            word = np.uint64(0)
            for n in range(8):
                word |= np.uint64(text[place + n]) << np.uint64(8 * n)
            a, b, c, d = _absorb(a, b, c, d, word)
            place += 8
        last = np.uint64((stop - start) & 255) << np.uint64(56)
        for n in range(stop - place):
            last |= np.uint64(text[place + n]) << np.uint64(8 * n)
        out[i] = _finish(a, b, c, d, last)
        start = stop
