"""Bytes of three-party aggregation: what a device sends to each aggregator, and what an aggregator
gives the server.

Little endian, of lengths that the question alone decides, never pickle. A user's content is two
seeds (aggregator 0), a seed, the explicit share and a blind (1), or the other seed (2). Aggregator
1 passes the explicit share and its blind on to aggregator 2, which compares them with the hash that
it has from the client: a device sends its long share once.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedrec.arrays import UInt64s
from fedrec.federation.messages import Question
from fedrec.sharing.layout import layout
from fedrec.sharing.shares import (
    COMMITTED_BYTES,
    HASH_BYTES,
    SEED_BYTES,
    SEEDS,
    Committed,
    commitment,
    committed,
    share,
)

BLIND_BYTES = 32  # 256 bits: nobody guesses it
_OUTPUT = b"FRO1"
_SHARES = b"FRS1"
_SENT = struct.Struct(f"<4s{HASH_BYTES}sBI")
_PIECE_WORDS = 2**21
"""Numbers of one share that are worked on at a time; about ten times as many are in memory then."""


@dataclass(frozen=True)
class SharedUser:
    """One user's part of what a client sends one aggregator: who, which hashes, and shares by
    rising number (`sent_numbers`)."""

    committed: Committed
    shares: tuple[bytes, ...] = field(repr=False)
    blind: bytes = field(default=b"", repr=False)

    def fits(self, aggregator: int, length: int) -> bool:
        """Whether shares and blind have the lengths of a row of so many numbers."""
        return [len(share) for share in self.shares] == _sizes(aggregator, length) and len(
            self.blind
        ) == _blind_bytes(aggregator)

    def is_committed(self, aggregator: int, ticket: bytes) -> bool:
        """Whether the shares are those of the hashes: what another holder compares."""
        found = (
            commitment(
                ticket,
                self.committed.report,
                number,
                self.blind if number == SEEDS else b"",
                content,
            )
            for number, content in zip(sent_numbers(aggregator), self.shares, strict=True)
        )
        said = (self.committed.hashes[number] for number in sent_numbers(aggregator))
        return all(hmac.compare_digest(a, b) for a, b in zip(found, said, strict=True))


def addressed(
    numbers: UInt64s,
    reports: Sequence[bytes],
    users: Sequence[bytes],
    ticket: bytes,
    *,
    secret: bytes,
) -> tuple[list[SharedUser], ...]:
    """What each of three aggregators gets of consecutive users, under a ticket that all three
    stated alike.

    numbers: (n, L) plain. Seeds and blinds are of the client's secret, the ticket, the report id
    and the numbers themselves: the same again is the same bytes, a new attempt is fresh, and
    numbers that changed within an attempt are not shared under the seeds of the old.
    """
    keys = [
        _keys(secret, ticket, report, row) for report, row in zip(reports, numbers, strict=True)
    ]
    seeds = np.frombuffer(b"".join(part for key in keys for part in key[:SEEDS]), np.uint8).reshape(
        len(keys), SEEDS, SEED_BYTES
    )
    shares = share(numbers, seeds)
    found: tuple[list[SharedUser], ...] = ([], [], [])
    for k, (report, user) in enumerate(zip(reports, users, strict=True)):
        contents = [
            shares.seeds[k, 0].tobytes(),
            shares.seeds[k, 1].tobytes(),
            shares.explicit[k].astype("<u8").tobytes(),
        ]
        blind = keys[k][SEEDS]
        hashes = tuple(
            commitment(ticket, report, n, blind if n == SEEDS else b"", content)
            for n, content in enumerate(contents)
        )
        committed = Committed(report, user, hashes)  # type: ignore[arg-type]
        for aggregator, sent in enumerate(found):
            numbers_sent = sent_numbers(aggregator)
            sent.append(
                SharedUser(
                    committed,
                    tuple(contents[n] for n in numbers_sent),
                    blind if SEEDS in numbers_sent else b"",
                )
            )
    return found


def _keys(secret: bytes, ticket: bytes, report: bytes, row: UInt64s) -> list[bytes]:
    """Two seeds and the blind of the explicit share."""
    of = ticket + report + hashlib.sha256(row.astype("<u8").tobytes()).digest()
    return [
        hmac.digest(secret, b"fedrec/share-seeds" + of + bytes([number]), "sha256")
        for number in range(SEEDS + 1)
    ]


def noise_keys(
    numbers: UInt64s, reports: Sequence[bytes], ticket: bytes, *, secret: bytes
) -> list[bytes]:
    """Keys of the users' own noise (`layout.with_own_noise`), as fresh as seeds are: the same
    numbers again are under the same noise."""
    rows = (row.astype("<u8").tobytes() for row in numbers)
    return [
        hmac.digest(secret, b"fedrec/check-noise" + ticket + of + row, "sha256")
        for of, row in zip(reports, rows, strict=True)
    ]


def sent_numbers(aggregator: int) -> tuple[int, ...]:
    """Numbers of the shares that a client sends an aggregator, rising.

    Aggregator 2 gets share 2 from aggregator 1."""
    return ((0, 1), (1, SEEDS), (0,))[aggregator]


def explicit_bytes(length: int) -> int:
    """Bytes of one user in what aggregator 1 passes on: blind and explicit share."""
    return BLIND_BYTES + 8 * length


def explicit_of(content: bytes, length: int) -> UInt64s:
    """(n, length) explicit shares out of what was passed on of n users."""
    rows = np.frombuffer(content, np.uint8).reshape(-1, explicit_bytes(length))[:, BLIND_BYTES:]
    return np.ascontiguousarray(rows).view("<u8").astype(np.uint64, copy=False)


def passed_on_as_committed(
    content: bytes, users: Sequence[Committed], ticket: bytes, length: int
) -> bool:
    """Whether these are blind and explicit share of just these users, by the hashes that their
    clients gave this aggregator too.

    Without it aggregator 1 chooses share 2 of aggregator 2: it multiplies one user's part of the
    sum by any number, past all noise.
    """
    size = explicit_bytes(length)
    if len(content) != size * len(users):
        return False
    parts = (content[at : at + size] for at in range(0, len(content), size))
    return all(
        hmac.compare_digest(
            commitment(ticket, user.report, SEEDS, part[:BLIND_BYTES], part[BLIND_BYTES:]),
            user.hashes[SEEDS],
        )
        for user, part in zip(users, parts, strict=True)
    )


def users_a_piece(length: int) -> int:
    """Users whose shares are expanded, passed on or summed at a time."""
    return max(1, _PIECE_WORDS // max(length, 1))


def _sizes(aggregator: int, length: int) -> list[int]:
    return [8 * length if number == SEEDS else SEED_BYTES for number in sent_numbers(aggregator)]


def _blind_bytes(aggregator: int) -> int:
    return BLIND_BYTES if SEEDS in sent_numbers(aggregator) else 0


def pack_shares(users: Sequence[SharedUser], aggregator: int, ticket: bytes) -> bytes:
    """What one aggregator is sent of these users: ticket, its number, how many; then each user's
    id, pseudonym, hashes, shares, blind."""
    parts = [_SENT.pack(_SHARES, ticket, aggregator, len(users))]
    for user in users:
        parts += [user.committed.packed, *user.shares, user.blind]
    return b"".join(parts)


def user_bytes(aggregator: int, length: int) -> int:
    """Bytes of one user of `length` numbers in `pack_shares`."""
    return COMMITTED_BYTES + sum(_sizes(aggregator, length)) + _blind_bytes(aggregator)


def upload_bytes(length: int) -> int:
    """What a user of `length` numbers sends to all three."""
    return sum(user_bytes(aggregator, length) for aggregator in range(3))


def read_shares(content: bytes, aggregator: int, length: int) -> tuple[bytes, list[SharedUser]]:
    """Ticket and users of `pack_shares`.

    Raises ValueError where it is not as long as it must be, or for another aggregator."""
    if len(content) < _SENT.size:
        raise ValueError("shares without a head")
    magic, ticket, number, users = _SENT.unpack_from(content)
    each = user_bytes(aggregator, length)
    if magic != _SHARES or number != aggregator or len(content) != _SENT.size + users * each:
        raise ValueError(
            f"these are no shares of {length} numbers a user for aggregator {aggregator}"
        )
    found = list[SharedUser]()
    ends = list(itertools.accumulate(_sizes(aggregator, length), initial=COMMITTED_BYTES))
    for start in range(_SENT.size, len(content), each):
        user = content[start : start + each]
        shares = tuple(user[a:b] for a, b in itertools.pairwise(ends))
        found.append(SharedUser(committed(user[:COMMITTED_BYTES]), shares, user[ends[-1] :]))
    return ticket, found


def packed_output(ticket: bytes, users: int, parts: Sequence[UInt64s]) -> bytes:
    """Ticket, number of users, and the numbers of every block."""
    return b"".join(
        (
            _OUTPUT,
            ticket,
            struct.pack("<I", users),
            *(part.astype("<u8").tobytes() for part in parts),
        )
    )


def read_output(content: bytes, question: Question) -> tuple[bytes, int, tuple[UInt64s, ...]]:
    """Ticket, users and blocks of an aggregator's output.

    Raises ValueError where it has not the question's shape."""
    shapes = [(part.spec.rows, part.spec.columns) for part in layout(question).parts]
    at = 40
    if (
        len(content) != at + 8 * sum(rows * columns for rows, columns in shapes)
        or content[:4] != _OUTPUT
    ):
        raise ValueError(
            f"an output of round {question.round} has another length, found {len(content)} bytes"
        )
    parts = list[UInt64s]()
    for rows, columns in shapes:
        parts.append(
            np.frombuffer(content, "<u8", rows * columns, at)
            .astype(np.uint64)
            .reshape(rows, columns)
        )
        at += 8 * rows * columns
    return content[4:36], struct.unpack("<I", content[36:40])[0], tuple(parts)
