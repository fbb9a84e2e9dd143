"""Protocol between the parties, whatever carries it: in one process, over gRPC, or over Flower.

    server                          aggregator                         client
    join(terms)            ------------------------------------>       translates its data
                                    enroll(pseudonyms)          <-     one per user, kept
    open_run(plan)         ->       keeps the plan
    open_round(opening)    ->       accumulators of zeros
    ask(question)          ------------------------------------>       checks plan, limit, ledger;
                                                                       charges itself
                                    report(batch)               <-     one bounded report per user
                                    checks, clips, adds; at the deadline
                                    charges its ledger, noises once
    release                <-       the same bytes, however often asked

A round is collected again after a crash (`attempt` counts), and released once. The rules are IETF
DAP's: report ids and replay check, one report per user and round, minimum cohort and quorum, plan,
question and quorum hashed into every report, stable codes.

Parties keep the newest head that they have seen of an aggregator's ledger (how many entries, and
their hash), and `follow` it. The ledger is a chain of hashes, each over the one before it and the
SHA-256 of an entry. The SHA-256 of every entry after the head must lead from it to the head that
the ledger states. A ledger that was put back to an earlier state, or another one, cannot show that,
whatever its later entries are. The entries themselves, with counts of users and runs of others,
stay with the aggregator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

from fedrec.errors import RefusedError

# they bring numba and scipy, which serving and whoever only names a refusal does without
if TYPE_CHECKING:
    from fedrec.data.kinds import Kind
    from fedrec.federation.messages import Question
    from fedrec.privacy.calibration import Plan

TOKEN_BYTES = 16
"""Length of a user's pseudonym and of a report's id."""
RESTORE_LEDGER = (
    "Its operator must restore the newest backup of its ledger. Where that is gone for good, "
    "what it released since is counted by the clients' ledgers alone; to go on all the same, start "
    "once with --new-aggregator-ledger."
)
"""Remedy of a ledger that does not hold what was seen of it."""
STATEMENT = "fedrec-statement/1"
"""Format of what an aggregator signs of a run."""
DEPARTURE = "fedrec-departure/1"
"""Format of what it signs of a person who left."""


class Refusal(StrEnum):
    """Why a report or a request was turned away; the codes are stable."""

    NOT_ENROLLED = "not-enrolled"  # the sender, or a user of the batch
    FORBIDDEN = "forbidden"  # the role may not do this, or the user belongs to another sender
    RUN_UNKNOWN = "run-unknown"
    ROUND_UNKNOWN = "round-unknown"  # never opened, or forgotten in a crash: it may be opened again
    ROUND_CLOSED = "round-closed"
    WRONG_PLAN = "wrong-plan"  # another plan than the one the run was opened with
    WRONG_QUESTION = "wrong-question"  # another question than the one the round was opened with
    REPLAYED = "replayed"  # this report id was counted already
    ALREADY_REPORTED = "already-reported"  # this user was counted already, under another id
    MALFORMED = "malformed"
    OUT_OF_RANGE = "out-of-range"  # an integer has more bits than the format allows
    UNKNOWN_ITEM = "unknown-item"
    TOO_LARGE = "too-large"  # more bytes, users or items than the operator allows
    OVERFLOW = "overflow"  # the sums could pass 2^63
    BUSY = "busy"  # no memory or thread is free for it now: send it again
    TOO_FEW = "too-few"  # the minimum cohort, or the quorum, was not there at the deadline
    BUDGET = "budget"  # a ledger or a limit refuses
    # the aggregator's is not the pinned one, or not of the authority that vouches for it
    WRONG_CERTIFICATE = "wrong-certificate"
    # a public array was sent as a difference to one that this client does not have: send all
    ARRAYS_UNKNOWN = "arrays-unknown"
    # its version of the messages is not ours, nor an adjacent one (`federation.round_messages`)
    WRONG_PROTOCOL = "wrong-protocol"
    STALE_LEDGER = "stale-ledger"  # the ledger is older than what another party has seen of it
    # lost for good: of three aggregators, one's share of a round that another has published; of a
    # stream, what the noise of a week was derived from
    LOST_SHARE = "lost-share"


def refused(code: Refusal, cause: str, remedy: str = "Nothing was counted.") -> RefusedError:
    """A refusal with its stable code."""
    return RefusedError(code.value, cause, remedy)


class Phase(StrEnum):
    """Where a round is."""

    OPEN = "open"
    RELEASING = "releasing"
    RELEASED = "released"
    # minimum cohort or quorum was missed: nothing was released, nothing was spent, it may be opened
    # again
    SHORT = "short"


@dataclass(frozen=True)
class Opening:
    """A round as the server opens it: what will be reported and released, without the public
    arrays, whose hash is in `digest`.

    `header` is `wire.question_header`; `digest` is `wire.question_digest` of the same question.
    `ledger_head` is the last head of the aggregator's ledger that the server has seen ("" for
    none): a ledger that does not know it has gone back in time. `timeout_s` is how long reports are
    taken, at most what the aggregator's operator allows. `quorum` is how many users must have
    reported before anything is released, the aggregator's own minimum cohort where that is more:
    every report names it (`wire.report_digest`). `attempt`: of three aggregators, the number that
    all of them begin, 0 to ask where the round is.
    """

    run: str
    round: int
    header: bytes
    digest: str
    timeout_s: float
    ledger_head: str = ""
    quorum: int = 0
    attempt: int = 0


DIFFER = "lists-differ-"
"""Begins a code of `RoundStatus.rejected`: in how many people two of three aggregators hold other
lists of a short round. The places of both, or of the other one, follow."""
BETWEEN = "-and-"


@dataclass(frozen=True)
class RoundStatus:
    """What the server may know of a round: counts of users, never a report, nor how many bytes
    came: that tells how much users rated.

    `quorum`: as in the opening. `rejected` is by `Refusal`; `clipped` reports were shrunk.
    `release_sha256` and `ledger_head` are set when the round is released; `remaining_s` while it is
    open.
    """

    run: str
    round: int
    digest: str
    phase: Phase
    attempt: int = 1
    enrolled: int = 0
    reported: int = 0
    clipped: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    remaining_s: float = 0.0
    release_sha256: str = ""
    ledger_head: str = ""
    quorum: int = 0


@dataclass(frozen=True)
class LedgerHead:
    """How far a ledger reached when it was seen: how many entries, and their chain's hash (""
    before the first)."""

    number: int = 0
    head: str = ""


OWN_HEADS = 256
"""So many of its own heads a client tells: of a ledger that grew by more for other aggregators, the
length alone is compared."""


@dataclass(frozen=True)
class OwnLedger:
    """What a client tells of its own ledger: how many entries, and the chain's hash after each of
    the last ones."""

    number: int = 0
    heads: tuple[str, ...] = ()

    @property
    def end(self) -> LedgerHead:
        """The newest."""
        return LedgerHead(self.number, self.heads[-1] if self.heads else "")

    def follows(self, seen: LedgerHead) -> bool:
        """Whether a chain that reached `seen` once may be this one now."""
        back = self.number - seen.number
        if back < 0:
            return False
        told = self.heads[-1 - back] if back < len(self.heads) else seen.head
        return not seen.head or told == seen.head


@dataclass(frozen=True)
class LedgerGrowth:
    """How a ledger reached `head` since a head that was asked about: the SHA-256 of each entry
    after that one; `more` entries follow."""

    head: LedgerHead
    entries_sha256: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True)
class SignedStatement:
    """What an aggregator's ledger says of a run, or of a person who left
    (`certificates.statements`), its signature (hexadecimal) and the PEM certificate of the key;
    both "" where there is no key."""

    statement: str
    signature: str = ""
    certificate: str = ""


@dataclass(frozen=True)
class Budget:
    """What an aggregator has spent over all runs in its ledger, and what its operator's limit
    leaves; epsilons at `delta`.

    left_epsilon: of the largest run that is still possible; infinite without a limit. noise: where
    it is drawn, "seeded" in a rehearsal.
    """

    spent_epsilon: float
    limit_epsilon: float
    delta: float
    left_epsilon: float
    unit: str
    noise: Literal["system", "seeded"]


@dataclass(frozen=True)
class Receipt:
    """What the aggregator did with a batch: users counted, and users turned away by `Refusal`.

    Never an exception for a bad batch."""

    accepted: int
    rejected: Mapping[str, int]


class ReportEndpoint(Protocol):
    """The aggregator as one client sees it; the sender's name is the transport's business."""

    def enroll(self, tokens: Sequence[bytes]) -> int:
        """Make these users known; again is the same.

        Returns how many users this sender has. Raises RefusedError."""

    def growth(self, since: LedgerHead, own: OwnLedger) -> LedgerGrowth:
        """How the aggregator's ledger grew since that head. own: this client's ledger, which must
        follow from what it was. Raises RefusedError (`STALE_LEDGER`) where either has gone back."""

    def report(self, run: str, round: int, batch: bytes) -> Receipt:
        """Hand in a batch made by `report_batches.pack_reports`. Raises UnreachableError."""

    def forget(self, token: bytes) -> SignedStatement:
        """Count this user no more; again is the same statement.

        Raises RefusedError (`NOT_ENROLLED`: never known)."""


@dataclass(frozen=True)
class AttemptNonce:
    """What one of three aggregators tells clients of an attempt: its nonce, and the ticket that
    follows from all three (b"" before)."""

    attempt: int
    nonce: bytes
    ticket: bytes


class ShareEndpoint(ReportEndpoint, Protocol):
    """One of three aggregators as one client sees it: `report` takes
    `sharing.record.pack_shares`."""

    def attempt(self, run: str, round: int) -> AttemptNonce:
        """The attempt at a round that takes shares.

        Raises RefusedError (`ROUND_UNKNOWN`, `ROUND_CLOSED`) or UnreachableError."""


class ReleaseEndpoint(Protocol):
    """The aggregator as the server sees it."""

    def enrolled(self) -> int:
        """Users enrolled now."""

    def open_run(self, run: str, plan: Plan) -> None:
        """Fix the plan of a run; again with the same plan is the same. Raises RefusedError."""

    def open_round(self, opening: Opening) -> RoundStatus:
        """Open, or find as it is. A round that was short, lost in a crash before its release, or
        open with another quorum starts anew.

        Raises RefusedError.
        """

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Where the round is; waits up to `wait_s` for it to leave the open phase.

        Raises RefusedError."""

    def close(self, run: str, round: int) -> RoundStatus:
        """No more reports will come: release now if minimum cohort and quorum are there.

        Raises RefusedError."""

    def release(self, run: str, round: int) -> bytes:
        """`wire.pack_release` of a released round, the same bytes every time.

        Raises RefusedError."""


@dataclass(frozen=True)
class Terms:
    """What a run is about, all public: sent once to each client, which keeps it.

    recipe: what `recipes.client_steps` reads. kind, value_range: as in `Interactions`; news have a
    scale of 0 to 1. items: the catalogue, ids in the order of item numbers. A client translates its
    own data into these numbers and this scale, and enrols its users.
    """

    run: str
    recipe: str
    kind: Kind | Literal["news"]
    value_range: tuple[float, float]
    items: tuple[str, ...]

    @property
    def of_news(self) -> bool:
        """Whether users hold impressions of news, not ratings or clicks of items."""
        return self.kind == "news"


@dataclass(frozen=True)
class Invitation:
    """What a client gets in a round, all public.

    quorum: as in the opening of the round; what is reported names it. payloads: the question's
    arrays as `coding.coded` writes them for a client that has those of the question before; a
    transport that finds none, or a client that has not, sends all.
    """

    run: str
    plan: Plan
    question: Question
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    quorum: int = 0


@dataclass(frozen=True)
class Answer:
    """What a client tells the server: how many of its users were counted, and by code why others
    were not. Never a value.

    `refusal` is the code of a client that did not take part, and `cause` its words.
    """

    client: str
    users: int
    accepted: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""
    cause: str = ""


class Broadcast(Protocol):
    """A way from the server to the clients; returns when all have answered or the transport gave up
    on them."""

    def join(self, terms: Terms) -> Sequence[Answer]:
        """Tell every client what the run is about; each enrols its users at the aggregator."""

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """Invite every client to report.

        One that does not know the run's terms refuses with `RUN_UNKNOWN`."""


def signed_bytes(statement: str, form: str = STATEMENT) -> bytes:
    """What is signed: no other signature of the same key is taken for one."""
    return f"{form}\n{statement}".encode()


def next_hash(before: str, entry_sha256: str) -> str:
    """The chain's hash after an entry; `before` is "" for the first."""
    return hashlib.sha256(f"{before}\n{entry_sha256}".encode()).hexdigest()


def grown(head: LedgerHead, entries_sha256: Sequence[str]) -> LedgerHead:
    """The head that these entries lead to."""
    end = head.head
    for entry in entries_sha256:
        end = next_hash(end, entry)
    return LedgerHead(head.number + len(entries_sha256), end)


class HeadMemory(Protocol):
    """Where a party keeps the newest head that it has seen, over runs."""

    def ledger_head(self) -> LedgerHead:
        """The newest; `LedgerHead()` before the first."""

    def keep_ledger_head(self, head: LedgerHead) -> None:
        """Durably."""


def follow(grow: Callable[[LedgerHead], LedgerGrowth], memory: HeadMemory) -> None:
    """See that the aggregator's ledger holds what was seen of it, and keep its newest head.

    Raises RefusedError (`STALE_LEDGER`) where it does not; then nothing new is kept.
    """
    seen = memory.ledger_head()
    while True:
        growth = grow(seen)
        if grown(seen, growth.entries_sha256) != growth.head:
            cause = (
                f"the aggregator's ledger does not follow from the {seen.number} entries that "
                "were seen of it"
            )
            raise refused(Refusal.STALE_LEDGER, cause, RESTORE_LEDGER)
        if growth.head != seen:
            memory.keep_ledger_head(growth.head)
            seen = growth.head
        if not growth.more or not growth.entries_sha256:
            return
