"""An attempt at a round at one of three aggregators, in memory only, and the seam between agreeing
on what is summed and summing it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedrec.arrays import UInt64s
from fedrec.federation.messages import Question
from fedrec.privacy.calibration import Plan
from fedrec.sharing.commitments import NONCE_BYTES, Listed
from fedrec.sharing.protocol import Peer, Standing
from fedrec.sharing.shares import SEED_BYTES


class SharedBatch(Protocol):
    """What an attempt adds up: users' shares (`shared_users`), or sums of ranges
    (`range_sums`)."""

    def everybody(self) -> tuple[Listed, ...]:
        """Whom it holds, in the order in which lists are compared."""

    def alike(self, lists: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        """Who stands in all lists alike."""

    def count(self, listed: Sequence[Any]) -> int:
        """People, also after `close`."""

    def go_on(
        self, run: str, attempt: Attempt, theirs: Mapping[int, Standing], peers: Mapping[int, Peer]
    ) -> None:
        """After all agreed: the next step towards `Attempt.summed`, or the attempt's end.

        Raises UnreachableError; asked again, it goes on."""

    def told(self, said: Standing) -> Standing:
        """With what peers may know of its steps."""

    def packed(self) -> tuple[UInt64s, ...]:
        """(rows, columns) a block: this aggregator's term of the sums, not masked."""

    def close(self) -> None:
        """Forget what was held; the sums stay."""


@dataclass
class Attempt:
    """In memory only: a crash ends it. named: what its ticket names of the question. needed:
    people.

    held: fixed once no more are taken. alike, agreed: who all three hold, and the digest of it.
    summed: digest of who is in the sums, once they are final. ended: why nothing comes of it."""

    number: int
    question: Question
    plan: Plan
    named: bytes
    needed: int
    batch: SharedBatch = field(repr=False)
    nonce: bytes = field(default_factory=lambda: os.urandom(NONCE_BYTES))
    key: bytes = field(default_factory=lambda: os.urandom(SEED_BYTES), repr=False)
    following_key: bytes = field(default=b"", repr=False)
    ticket: bytes = b""
    held: tuple[Any, ...] | None = None
    alike: tuple[Any, ...] = ()
    agreed: bytes = b""
    summed: bytes = b""
    people: int = 0
    ended: str = ""

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """Its own masking key and the following aggregator's."""
        return self.key, self.following_key

    def end(self, why: str) -> None:
        """Nothing comes of it: what it holds is forgotten."""
        self.ended = why
        self.batch.close()


@dataclass(frozen=True)
class AttemptProgress:
    """What the server and clients may know of an attempt. ticket: b"" until it is fixed. users:
    whose shares are held.

    closed: no more are taken. ended: why nothing will come of it. wanted: positions of the users
    who are summed next, in the agreed list. opened: of its own openings, as long as it waits for
    the others'.
    """

    attempt: int
    nonce: bytes
    ticket: bytes
    users: int
    closed: bool
    ended: str
    wanted: tuple[int, int] | None = None
    opened: bytes = b""
    rows: int = 0
