"""Protocol of one of three aggregators with the other two, and what it must keep: the seams of
`one_of_three`.

An attempt at a round at one of three aggregators, in memory only, and the seam between agreeing
on what is summed and summing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedrec.federation.messages import Question
from fedrec.privacy.calibration import Plan
from fedrec.sharing.shares import Committed


@dataclass(frozen=True)
class Standing:
    """Where an aggregator is in a round, for its peers. Within an attempt what was said once stays.

    attempt: 0 before the first. nonce: of the attempt. ticket: b"" until all nonces are known.
    held: users; None until it takes no
    more. agreed: `shares.batch_digest` of the users whom all hold. coin: its own term and the
    following aggregator's, once all agreed (`checks.coin_term`). opened: SHA-256 of its terms of
    the checks. accepted: digest of the users that it sums, once it judged. ready: SHA-256 of its
    output, which it keeps. published: the output may be fetched."""

    attempt: int = 0
    nonce: bytes = b""
    ticket: bytes = b""
    held: tuple[Committed, ...] | None = None
    agreed: bytes = b""
    coin: tuple[bytes, bytes] | None = None
    opened: bytes = b""
    accepted: bytes = b""
    ready: bytes = b""
    published: bool = False


class Peer(Protocol):
    """Another aggregator, over a connection that says surely who is at its end."""

    def standing(self, run: str, round: int) -> Standing:
        """Raises UnreachableError."""

    def key(self, run: str, round: int, attempt: int) -> bytes:
        """Its masking key of an attempt, which it tells the aggregator before it and nobody else.

        Raises UnreachableError."""

    def explicit(self, run: str, round: int, attempt: int, first: int, last: int) -> bytes:
        """Blinds and explicit shares of users first..last of the agreed list, of aggregator 1 for 2
        alone. Raises UnreachableError."""

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """Its masked terms of the checks of all agreed users, `checks.opening` after each other.

        Raises UnreachableError."""


@dataclass(frozen=True)
class KeptOutput:
    """An output that an aggregator stands by: of an attempt, its ticket and the users that it sums
    (`agreed`, how many), and its bytes."""

    attempt: int
    ticket: bytes
    agreed: bytes
    users: int
    content: bytes


class Store(Protocol):
    """What survives a crash of one of three.

    A call that returns is durable; one that fails may have happened or not."""

    def attempt(self, run: str, round: int) -> int:
        """The highest attempt that was begun; 0 for none."""

    def begin(self, run: str, round: int, attempt: int, digest: bytes) -> None:
        """Never to be begun again. digest: of the question, one for all attempts at a round.

        Raises ProtocolError on another."""

    def charge(self, run: str, question: Question, plan: Plan) -> None:
        """Charge the releases of a round, those that are charged for it already not again.

        Raises BudgetExceededError."""

    def keep(self, run: str, round: int, output: KeptOutput) -> None:
        """In place of what an earlier attempt kept, which was not published."""

    def kept(self, run: str, round: int) -> KeptOutput | None:
        """What was kept last."""

    def abandon(self, run: str, round: int) -> None:
        """Forget what was kept; it was not published and never will be."""

    def publish(self, run: str, round: int) -> None:
        """From here on what is kept is the round's only output."""

    def published(self, run: str, round: int) -> bool:
        """Whether it may leave."""


@dataclass(frozen=True)
class AttemptProgress:
    """What the server and clients may know of an attempt. ticket: b"" until it is fixed. users:
    whose shares are held; of an attempt that had too few, who were held alike. differ: as
    `Attempt.differ`.

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
    differ: Mapping[int, int] = field(default_factory=dict)
