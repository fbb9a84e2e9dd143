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
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges

Words = npt.NDArray[np.uint64]

_ID_KEY = b"fedrec/1/ids    "
_EIGHT = np.array([8 << 56], np.uint64)
_SIXTEEN = np.array([16 << 56], np.uint64)
"""Last words of messages of one and of two words: their length in bytes."""
_BLOCK = 1 << 13
"""Messages that NumPy hashes at a time: their states stay in the second-level cache."""
_FEW_EVENTS = 1 << 17
"""Up to so many events NumPy hashes in less than compiling would take."""
_Word = Any
"""Arrays where Python calls the functions below, one number in compiled code."""


def id_words(ids: Sequence[str]) -> Words:
    """(len(ids),) the word of each id, from its UTF-8 bytes."""
    out = np.empty(len(ids), np.uint64)
    for start in range(0, len(ids), _BLOCK):
        some = [name.encode("utf-8", "surrogatepass") for name in ids[start : start + _BLOCK]]
        out[start : start + _BLOCK] = _hashed_texts(some)
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
    for start in range(0, len(words), _BLOCK):
        some = words[start : start + _BLOCK]
        out[start : start + _BLOCK] = _finish(*_absorb(*_start(*_halves(key)), some), _EIGHT)
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
    if len(items) <= _FEW_EVENTS:
        users = np.repeat(user_words, np.diff(user_ptr))
        for start in range(0, len(items), _BLOCK):
            part = slice(start, start + _BLOCK)
            state = _absorb(*_start(low, high), users[part])
            out[part] = _finish(*_absorb(*state, item_words[items[part]]), _SIXTEEN)
        return out

    hash_events = _compiled_events()

    def piece(start: int, stop: int) -> None:
        hash_events(low[0], high[0], user_ptr, items, user_words, item_words, out, start, stop)

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


def _halves(key: bytes) -> tuple[Words, Words]:
    """(1,) each: arrays wrap where NumPy's numbers would warn."""
    if len(key) < 16:
        raise ValueError(f"a key has 16 bytes or more, found {len(key)}")
    low, high = np.frombuffer(key[:16], "<u8").astype(np.uint64).reshape(2, 1)
    return low, high


def _rotated(word: _Word, bits: _Word) -> _Word:
    return (word << bits) | (word >> (np.uint64(64) - bits))


def _round(a: _Word, b: _Word, c: _Word, d: _Word) -> tuple[_Word, _Word, _Word, _Word]:
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


def _start(low: _Word, high: _Word) -> tuple[_Word, _Word, _Word, _Word]:
    return (
        low ^ np.uint64(0x736F6D6570736575),
        high ^ np.uint64(0x646F72616E646F6D),
        low ^ np.uint64(0x6C7967656E657261),
        high ^ np.uint64(0x7465646279746573),
    )


def _absorb(
    a: _Word, b: _Word, c: _Word, d: _Word, word: _Word
) -> tuple[_Word, _Word, _Word, _Word]:
    a, b, c, d = _round(a, b, c, d ^ word)
    a, b, c, d = _round(a, b, c, d)
    return a ^ word, b, c, d


def _finish(a: _Word, b: _Word, c: _Word, d: _Word, last: _Word) -> _Word:
    """`last`: the remaining bytes, and the length modulo 256 in the highest byte."""
    a, b, c, d = _absorb(a, b, c, d, last)
    c = c ^ np.uint64(0xFF)
    for _ in range(4):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


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


@cache
def _compiled_events() -> Any:
    """`_hash_events` for many events, compiled with what it calls."""
    from numba.extending import register_jitable  # here: few processes hash so many

    for function in (_rotated, _round, _start, _absorb, _finish):
        register_jitable(function)
    return compiled()(_hash_events)


def _hashed_texts(texts: Sequence[bytes]) -> Words:
    """One hash for each text, those of one length together."""
    out = np.empty(len(texts), np.uint64)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        padded = np.zeros((len(places), length // 8 * 8 + 8), np.uint8)
        together = b"".join(texts[place] for place in places.tolist())
        padded[:, :length] = np.frombuffer(together, np.uint8).reshape(len(places), length)
        padded[:, -1] = length & 255
        state = _start(*_halves(_ID_KEY))
        *whole, last = padded.view("<u8").T
        for word in whole:
            state = _absorb(*state, word)
        out[places] = _finish(*state, last)
    return out
