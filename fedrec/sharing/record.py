"""Bytes of three-party aggregation: what a device sends to each aggregator, and what an aggregator gives the server.

Little endian, of lengths that the question alone decides, never pickle. A user's content is two seeds (aggregator 0), a seed, a blind
and the explicit share (1), or the explicit share, the blind and the other seed (2).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedrec.federation.messages import Question
from fedrec.sharing.commitments import COMMITTED_BYTES, HASH_BYTES, Committed, commitment, committed
from fedrec.sharing.layout import layout
from fedrec.sharing.ring import SEED_BYTES, UInt64s
from fedrec.sharing.shares import SEEDS, expanded, share

BLIND_BYTES = 32
_OUTPUT, _SHARES = b"FRO1", b"FRS1"
_SENT = struct.Struct(f"<4s{HASH_BYTES}sBI")
_BATCH_WORDS = 2**23
"""Of expanded shares in memory at a time."""


@dataclass(frozen=True)
class SharedUser:
    """One user's part of what one aggregator gets: who, which hashes, and its two shares, in the order own, following."""

    committed: Committed
    shares: tuple[bytes, bytes] = field(repr=False)
    blind: bytes = field(default=b"", repr=False)

    def fits(self, aggregator: int, length: int) -> bool:
        """Whether both shares and the blind have the lengths of a row of so many numbers."""
        sizes = [8 * length if number == SEEDS else SEED_BYTES for number in _numbers(aggregator)]
        return [len(share) for share in self.shares] == sizes and len(self.blind) == (BLIND_BYTES if SEEDS in _numbers(aggregator) else 0)

    def is_committed(self, aggregator: int, ticket: bytes) -> bool:
        """Whether both shares are those of the hashes: what another holder compares."""
        found = (
            commitment(ticket, self.committed.report, number, self.blind if number == SEEDS else b"", content)
            for number, content in zip(_numbers(aggregator), self.shares, strict=True)
        )
        said = (self.committed.hashes[number] for number in _numbers(aggregator))
        return all(hmac.compare_digest(a, b) for a, b in zip(found, said, strict=True))


def addressed(
    numbers: UInt64s, reports: Sequence[bytes], users: Sequence[bytes], ticket: bytes, *, secret: bytes
) -> tuple[list[SharedUser], ...]:
    """What each of three aggregators gets of consecutive users, under a ticket that all three stated alike.

    numbers: (n, L) plain. Seeds and blinds are of the client's secret, the ticket, the report id and the numbers themselves: the same
    again is the same bytes, a new attempt is fresh, and numbers that changed within an attempt are not shared under the seeds of the old.
    """
    keys = [_keys(secret, ticket, report, row) for report, row in zip(reports, numbers, strict=True)]
    seeds = np.frombuffer(b"".join(part for key in keys for part in key[:SEEDS]), np.uint8).reshape(len(keys), SEEDS, SEED_BYTES)
    shares = share(numbers, seeds)
    found: tuple[list[SharedUser], ...] = ([], [], [])
    for k, (report, user) in enumerate(zip(reports, users, strict=True)):
        contents = [shares.seeds[k, 0].tobytes(), shares.seeds[k, 1].tobytes(), shares.explicit[k].astype("<u8").tobytes()]
        blind = keys[k][SEEDS]
        hashes = tuple(commitment(ticket, report, n, blind if n == SEEDS else b"", content) for n, content in enumerate(contents))
        committed = Committed(report, user, hashes)  # type: ignore[arg-type]
        for aggregator, sent in enumerate(found):
            own, following = _numbers(aggregator)
            sent.append(SharedUser(committed, (contents[own], contents[following]), blind if SEEDS in (own, following) else b""))
    return found


def _keys(secret: bytes, ticket: bytes, report: bytes, row: UInt64s) -> list[bytes]:
    """Two seeds and the blind of the explicit share."""
    of = ticket + report + hashlib.sha256(row.astype("<u8").tobytes()).digest()
    return [hmac.digest(secret, b"fedrec/share-seeds" + of + bytes([number]), "sha256") for number in range(SEEDS + 1)]


def opened(users: Sequence[SharedUser], aggregator: int, length: int) -> Iterator[tuple[UInt64s, UInt64s]]:
    """The two shares (n, length) that an aggregator holds of these users, a part of them at a time."""
    few = max(1, _BATCH_WORDS // max(length, 1))
    for start in range(0, len(users), few):
        some = users[start : start + few]
        own, following = (_rows([user.shares[k] for user in some], n, length) for k, n in enumerate(_numbers(aggregator)))
        yield own, following


def _rows(contents: Sequence[bytes], number: int, length: int) -> UInt64s:
    joined = b"".join(contents)
    if number == SEEDS:
        return np.frombuffer(joined, "<u8").astype(np.uint64).reshape(len(contents), length)
    return expanded(np.frombuffer(joined, np.uint8).reshape(len(contents), SEED_BYTES), length)


def _numbers(aggregator: int) -> tuple[int, int]:
    """Of the shares that it holds: its own, and the following."""
    return aggregator, (aggregator + 1) % 3


def pack_shares(users: Sequence[SharedUser], aggregator: int, ticket: bytes) -> bytes:
    """What one aggregator is sent of these users: ticket, its number, how many; then each user's id, pseudonym, hashes, shares, blind."""
    parts = [_SENT.pack(_SHARES, ticket, aggregator, len(users))]
    for user in users:
        parts += [user.committed.packed, *user.shares, user.blind]
    return b"".join(parts)


def user_bytes(aggregator: int, length: int) -> int:
    """Of one user of `length` numbers in `pack_shares`."""
    numbers = _numbers(aggregator)
    shares = sum(8 * length if number == SEEDS else SEED_BYTES for number in numbers)
    return COMMITTED_BYTES + shares + (BLIND_BYTES if SEEDS in numbers else 0)


def read_shares(content: bytes, aggregator: int, length: int) -> tuple[bytes, list[SharedUser]]:
    """Ticket and users of `pack_shares`. Raises ValueError where it is not as long as it must be, or for another aggregator."""
    if len(content) < _SENT.size:
        raise ValueError("shares without a head")
    magic, ticket, number, users = _SENT.unpack_from(content)
    each = user_bytes(aggregator, length)
    if magic != _SHARES or number != aggregator or len(content) != _SENT.size + users * each:
        raise ValueError(f"these are no shares of {length} numbers a user for aggregator {aggregator}")
    sizes = [8 * length if n == SEEDS else SEED_BYTES for n in _numbers(aggregator)]
    found = list[SharedUser]()
    for start in range(_SENT.size, len(content), each):
        own = start + COMMITTED_BYTES
        following, blind, end = own + sizes[0], own + sum(sizes), start + each
        shares = content[own:following], content[following:blind]
        found.append(SharedUser(committed(content[start:own]), shares, content[blind:end]))
    return ticket, found


def packed_output(ticket: bytes, users: int, parts: Sequence[UInt64s]) -> bytes:
    """Ticket, number of users, and the numbers of every block."""
    return b"".join((_OUTPUT, ticket, struct.pack("<I", users), *(part.astype("<u8").tobytes() for part in parts)))


def read_output(content: bytes, question: Question) -> tuple[bytes, int, tuple[UInt64s, ...]]:
    """Ticket, users and blocks of an aggregator's output. Raises ValueError where it has not the question's shape."""
    shapes, at = [(part.spec.rows, part.spec.columns) for part in layout(question).parts], 40
    if len(content) != at + 8 * sum(rows * columns for rows, columns in shapes) or content[:4] != _OUTPUT:
        raise ValueError(f"an output of round {question.round} has another length, found {len(content)} bytes")
    parts = list[UInt64s]()
    for rows, columns in shapes:
        parts.append(np.frombuffer(content, "<u8", rows * columns, at).astype(np.uint64).reshape(rows, columns))
        at += 8 * rows * columns
    return content[4:36], struct.unpack("<I", content[36:40])[0], tuple(parts)
