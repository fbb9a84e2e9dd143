"""A stream of random 64-bit words from a secret key: AES-256 in counter mode.

Deployed noise is made from it with a key of the operating system, reproducible experiments with a
key of a seeded stream (`fedrec.randomness`). To tell the words from uniform ones without the key is
to break AES (within 2^64 blocks per key; a release of 23 million numbers takes 2^25).
"""

from __future__ import annotations

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedrec.arrays import UInt64s

KEY_BYTES = 32
_TAIL_WORDS = 2  # `update_into` asks for room for one more cipher block than it writes


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
