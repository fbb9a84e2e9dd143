"""Shares that a device sends: its numbers as three shares, of which each aggregator gets two.

x = x_0 + x_1 + x_2 modulo 2^64. x_0 and x_1 are what two seeds of the user expand to, x_2 is the
rest and is sent as it is. Aggregator i holds x_i and x_(i+1) (replicated sharing: Araki, Furukawa,
Lindell, Nof, Ohara 2016).

Hidden from one aggregator. Aggregator 0 holds x_0 and x_1, which are of seeds alone. Aggregator 1
holds x_1 and x_2 = x - x_0 - x_1, where x_0 is of a seed that it lacks; aggregator 2 holds x_2 and
x_0, and lacks that of x_1. So any one aggregator's two shares cannot be told from 2 L uniform
numbers, whatever x is, without breaking AES-256: a number minus a uniform one is uniform. This
needs fresh seeds for every user, round and attempt: two rows under one seed differ by the
difference of what they hide. Any two aggregators have x.

Numbers of Z_2^64 are uint64 and wrap; a signed integer is its residue, and `numpy`'s view as int64
reads it back where it lies in [-2^63, 2^63).

Commitments of an attempt at a round: its ticket, and hashes of shares by which two holders know
that they hold the same.

A ticket is the hash of the run, the round, the question, the three aggregators' names and keys, and
a nonce of each for this attempt. So two attempts never have one ticket as long as one honest
aggregator draws a fresh nonce, whatever was restored or replayed; and an aggregator that was asked
another question states another ticket. A device shares under a ticket that all three state alike.

A share's hash covers a blind that its holders alone know: a seed is its own, the explicit share has
32 random bytes. Without it, aggregator 0, who has both seeds, could compute share 2 of a report
that it guesses and compare.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import UInt8s, UInt64s
from fedrec.privacy.keystream import KEY_BYTES, Keystream

SEED_BYTES = KEY_BYTES
"""Bytes of an AES-256 key."""

SEEDS = 2
"""Shares that are sent as seeds."""
NONCE_BYTES = 32  # 256 bits: two users never draw the same
HASH_BYTES = 32  # of SHA-256
ID_BYTES = 16  # 128 bits: no two are alike by chance
COMMITTED_BYTES = 2 * ID_BYTES + 3 * HASH_BYTES
"""Of one user in a list that aggregators compare."""


def expand(seed: bytes, count: int) -> UInt64s:
    """`count` uniform numbers of a seed: AES-256 in counter mode. Whoever lacks the seed cannot
    tell them from random ones.

    A seed is used for one purpose only: twice the same numbers would cancel in a difference. Raises
    ValueError on another length.
    """
    return Keystream(seed, section=0, buffer_words=count).next_words()


@dataclass(frozen=True)
class Shares:
    """Shares of consecutive users. seeds: (n, 2, 32) of the shares 0 and 1. explicit: (n, L) the
    shares 2."""

    seeds: UInt8s
    explicit: UInt64s

    def of(self, number: int) -> UInt64s:
        """(n, L) the shares of one number, 0 to 2."""
        if number == SEEDS:
            return self.explicit
        return expanded(self.seeds[:, number], self.explicit.shape[1])

    def held_by(self, aggregator: int) -> tuple[UInt64s, UInt64s]:
        """The two shares that one aggregator holds: its own number's, and the next one's."""
        return self.of(aggregator), self.of((aggregator + 1) % 3)


def fresh_seeds(num_users: int) -> UInt8s:
    """(num_users, 2, 32) of the operating system, whatever a run's seed is: shares do not show in
    the sums."""
    return np.frombuffer(os.urandom(num_users * SEEDS * SEED_BYTES), np.uint8).reshape(
        num_users, SEEDS, SEED_BYTES
    )


def share(numbers: UInt64s, seeds: UInt8s) -> Shares:
    """Shares of (n, L) numbers under (n, 2, 32) seeds, which must not have been used before."""
    length = numbers.shape[1]
    explicit = numbers - expanded(seeds[:, 0], length) - expanded(seeds[:, 1], length)
    return Shares(seeds, explicit)


def expanded(seeds: UInt8s, length: int) -> UInt64s:
    """(n, length) what (n, 32) seeds expand to."""
    out = np.empty((len(seeds), length), np.uint64)
    for row, seed in zip(out, seeds, strict=True):
        row[:] = expand(seed.tobytes(), length)
    return out


def zero_share(own: bytes, following: bytes, context: bytes, count: int) -> UInt64s:
    """(count,) F(k_i) - F(k_(i+1)) for aggregator i, of its key and the following aggregator's,
    each of 32 bytes.

    context: run, round, attempt and what is masked; used once.

    A mask is added to what an aggregator gives away, and the three masks cancel in the sum.

    Aggregator i makes a key k_i and gives it to aggregator i - 1, so that each knows two of three.
    Its mask is F(k_i) - F(k_(i+1)), with F a pseudo-random function to Z_2^64; the three add up to
    zero.

    Why. An aggregator's sum of products is of shares, one of which another aggregator may lack but
    can work out from a report that it guesses: together with the server it would compare, and know.
    The mask of an honest aggregator holds F of a key that the adversary lacks, so that what two
    honest aggregators give away tells no more than their sum does. Masks must be of one use: the
    context names what is masked.
    """
    return _of(own, context, count) - _of(following, context, count)


def _of(key: bytes, context: bytes, count: int) -> UInt64s:
    return expand(hmac.digest(key, b"fedrec/zero/" + context, "sha256"), count)


@dataclass(frozen=True)
class Committed:
    """One user in a round: report id and pseudonym, 16 bytes each, and the hashes of the shares 0,
    1, 2."""

    report: bytes
    user: bytes
    hashes: tuple[bytes, bytes, bytes]

    @property
    def packed(self) -> bytes:
        """All of it, of one length for every user."""
        return b"".join((self.report, self.user, *self.hashes))


def committed(content: bytes) -> Committed:
    """What `Committed.packed` made. Raises ValueError on another length."""
    if len(content) != COMMITTED_BYTES:
        raise ValueError(
            f"a user's ids and hashes have {COMMITTED_BYTES} bytes, found {len(content)}"
        )
    report = content[:ID_BYTES]
    user = content[ID_BYTES : 2 * ID_BYTES]
    hashes = content[2 * ID_BYTES :]
    return Committed(
        report,
        user,
        (hashes[:HASH_BYTES], hashes[HASH_BYTES : 2 * HASH_BYTES], hashes[2 * HASH_BYTES :]),
    )


def ticket(
    run: str, round: int, question: bytes, aggregators: Sequence[bytes], nonces: Sequence[bytes]
) -> bytes:
    """32 bytes. question: its digest. aggregators: names with keys, in order.

    Raises ValueError where there are not three of both."""
    if (
        len(aggregators) != 3
        or len(nonces) != 3
        or any(len(nonce) != NONCE_BYTES for nonce in nonces)
    ):
        raise ValueError(f"a ticket is of three aggregators with nonces of {NONCE_BYTES} bytes")
    digest = hashlib.sha256(b"fedrec/ticket")
    for part in (run.encode(), str(round).encode(), question, *aggregators, *nonces):
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def commitment(ticket: bytes, report: bytes, number: int, blind: bytes, content: bytes) -> bytes:
    """The hash of share `number`. A seed (numbers 0 and 1) has no other blind than itself: b""."""
    if (number == SEEDS) != bool(blind):
        raise ValueError(f"share {number} has {'a' if number == SEEDS else 'no'} blind of its own")
    return hashlib.sha256(
        b"fedrec/share" + ticket + report + bytes([number]) + blind + content
    ).digest()


def batch_digest(ticket: bytes, users: Sequence[Committed]) -> bytes:
    """Digest of the users that are summed, in order: what aggregators compare directly with each
    other."""
    return hashlib.sha256(
        b"fedrec/batch" + ticket + b"".join(user.packed for user in users)
    ).digest()


def held_alike(lists: Sequence[Sequence[Committed]]) -> list[Committed]:
    """Users whom all lists hold with the same pseudonym and hashes, by report id; who stands twice
    in a list is left out."""
    first, *others = lists
    alike = set(first).intersection(*others)
    reports = _counts([user.report for some in lists for user in set(some)])
    users = _counts([user.user for user in alike])
    return sorted(
        (u for u in alike if reports[u.report] == len(lists) and users[u.user] == 1),
        key=lambda user: user.report,
    )


def _counts(values: Sequence[bytes]) -> dict[bytes, int]:
    counts: dict[bytes, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
