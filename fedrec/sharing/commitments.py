"""Commitments of an attempt at a round: its ticket, and hashes of shares by which two holders know
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
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedrec.sharing.shares import SEEDS

NONCE_BYTES = 32
HASH_BYTES = 32
ID_BYTES = 16


class Listed(Protocol):
    """An entry of a list that aggregators compare: a user, or a range of users."""

    @property
    def packed(self) -> bytes:
        """All of it, of one length for every entry of a list."""


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


COMMITTED_BYTES = 2 * ID_BYTES + 3 * HASH_BYTES
"""Of one user in a list that aggregators compare."""


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


def named_range(named: bytes, first: int, last: int, attempt: int) -> bytes:
    """What the ticket of three leaves names: what the ticket without leaves would, the range of
    pseudonyms (their first two bytes) and the attempt of the roots."""
    return hashlib.sha256(
        b"fedrec/range" + named + struct.pack("<HHI", first, last, attempt)
    ).digest()


def commitment(ticket: bytes, report: bytes, number: int, blind: bytes, content: bytes) -> bytes:
    """The hash of share `number`. A seed (numbers 0 and 1) has no other blind than itself: b""."""
    if (number == SEEDS) != bool(blind):
        raise ValueError(f"share {number} has {'a' if number == SEEDS else 'no'} blind of its own")
    return hashlib.sha256(
        b"fedrec/share" + ticket + report + bytes([number]) + blind + content
    ).digest()


def batch_digest(ticket: bytes, users: Sequence[Listed]) -> bytes:
    """Digest of the users, or ranges, that are summed, in order: what aggregators compare directly
    with each other."""
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
