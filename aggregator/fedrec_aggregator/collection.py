"""A round while its reports come in: exact sums, who is in them, and what was turned away.

In memory only, gone when the round ends."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from fedrec.arrays import Bools
from fedrec.federation.messages import BlockSpec, Question
from fedrec.federation.protocol import Phase, Receipt, Refusal, RoundStatus
from fedrec.federation.report_batches import select_users
from fedrec.federation.reports import ExactSums
from fedrec.federation.wire import refused
from fedrec.numerics.threads import PIECES
from fedrec.privacy.calibration import Plan
from fedrec_aggregator.opening_checks import CheckedBatch, Limits, names


def accumulator_bytes(specs: tuple[BlockSpec, ...]) -> int:
    """Memory that the sums of these blocks take, before any is allocated; a dense block is summed
    in pieces for all cores."""
    return sum(
        8
        * (
            spec.rows + spec.rows * spec.columns
            if spec.rows > 1
            else 1 + (1 + PIECES) * spec.columns
        )
        for spec in specs
    )


def zero_sums(question: Question, *, limits: Limits, held_bytes: int) -> ExactSums:
    """Sums of nothing yet. held_bytes: what the sums of other rounds take now.

    Raises RefusedError (`TOO_LARGE`; `BUSY`: there is no memory left; `MALFORMED`)."""
    size = accumulator_bytes(question.blocks)
    if size > limits.max_accumulator_bytes:
        raise refused(
            Refusal.TOO_LARGE,
            (
                f"the sums of a round may take {limits.max_accumulator_bytes} bytes, "
                f"these take {size}"
            ),
        )
    if size + held_bytes > limits.max_accumulator_bytes:
        raise refused(
            Refusal.BUSY,
            "other rounds hold the memory that this one needs",
            "Open it again when they have ended.",
        )
    try:
        return ExactSums(question.blocks)
    except (ValueError, MemoryError) as failure:
        code = Refusal.MALFORMED if isinstance(failure, ValueError) else Refusal.BUSY
        raise refused(
            code, f"the sums of round {question.round} cannot be held: {failure}"
        ) from None


@dataclass
class Collection:
    """One attempt at a round. `lock` guards everything that changes; `sums` is None when the round
    has ended.

    question: without its arrays. quorum: of the opening. needed: users that must have reported.
    deadline_s: on the aggregator's clock. working: a thread is releasing it. failure: why that last
    failed.
    """

    run: str
    question: Question
    digest: str
    plan: Plan
    attempt: int
    deadline_s: float
    sums: ExactSums | None
    quorum: int = 0
    needed: int = 1
    phase: Phase = Phase.OPEN
    working: bool = False
    failure: Exception | None = None
    reported: int = 0
    clipped: int = 0
    bytes_in: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _ids: set[bytes] = field(default_factory=set)
    _users: set[bytes] = field(default_factory=set)

    def receive(self, num_bytes: int) -> None:
        """Count what came in, whatever becomes of it."""
        with self.lock:
            self.bytes_in += num_bytes

    def turn_away(self, code: Refusal, users: int) -> Receipt:
        """Count a batch of which nothing is usable."""
        with self.lock:
            self.rejected[code.value] += users
        return Receipt(0, {code.value: users})

    def fold(self, checked: CheckedBatch) -> Receipt:
        """Add every user not counted yet, all of them or (`OVERFLOW`) none, unless the round has
        closed meanwhile."""
        with self.lock:
            counts = Counter({code.value: users for code, users in checked.turned_away.items()})
            accepted = self._add(checked, counts)
            self.reported += accepted
            self.rejected += counts
        return Receipt(accepted, dict(counts))

    def freeze(self, *, enrolled: int | None = None) -> Phase:
        """End the collection: nothing is added from here on. Too few users, and all is forgotten.

        With `enrolled`, only if that many have reported and they are enough: there is no one left
        to wait for.
        """
        with self.lock:
            enough = self.reported >= self.needed
            if self.phase is Phase.OPEN and (
                enrolled is None or (enough and self.reported >= enrolled)
            ):
                self.phase = Phase.RELEASING if enough else Phase.SHORT
                self._ids = set()
                self._users = set()
                if not enough:
                    self.sums = None
            return self.phase

    def give_up(self) -> Phase:
        """Forget what an open round has collected."""
        with self.lock:
            if self.phase is Phase.OPEN:
                self.phase = Phase.SHORT
                self.sums = None
                self._ids = set()
                self._users = set()
            return self.phase

    def status(self, *, now_s: float, enrolled: int) -> RoundStatus:
        """Counts only."""
        with self.lock:
            remaining_s = max(0.0, self.deadline_s - now_s) if self.phase is Phase.OPEN else 0.0
            return RoundStatus(
                self.run, self.question.round, self.digest, self.phase, self.attempt, enrolled,
                self.reported, self.clipped,
                dict(self.rejected), remaining_s, quorum=self.quorum,
            )  # fmt: skip

    def _add(self, checked: CheckedBatch, counts: Counter[str]) -> int:
        batch = checked.batch
        clipped = checked.clipped
        if self.phase is not Phase.OPEN or self.sums is None:
            counts[Refusal.ROUND_CLOSED.value] += batch.reports.num_users
            return 0
        ids, users, fresh = self._new(names(batch.ids), names(batch.tokens), counts)
        if not fresh.all():
            batch = select_users(batch, fresh, self.question.blocks)
            clipped = clipped[fresh]
        if not users:
            return 0
        try:
            self.sums.add(batch.reports)
        except ValueError:
            # the batch is sound, so this is the one rule left: the sums could pass 2^63
            counts[Refusal.OVERFLOW.value] += len(users)
            return 0
        except BaseException:
            # out of memory half way: sums that nobody can vouch for are collected again
            self.phase = Phase.SHORT
            self.sums = None
            raise
        self._ids |= ids
        self._users |= users
        self.clipped += int(clipped.sum())
        return len(users)

    def _new(
        self, ids: list[bytes], tokens: list[bytes], counts: Counter[str]
    ) -> tuple[set[bytes], set[bytes], Bools]:
        """Ids and users not counted before, nor earlier in the same batch, and (num_users,) where
        they are."""
        new_ids = set[bytes]()
        new_users = set[bytes]()
        fresh = np.zeros(len(ids), np.bool_)
        for k, (report, user) in enumerate(zip(ids, tokens, strict=True)):
            if report in self._ids or report in new_ids:
                counts[Refusal.REPLAYED.value] += 1
            elif user in self._users or user in new_users:
                counts[Refusal.ALREADY_REPORTED.value] += 1
            else:
                fresh[k] = True
                new_ids.add(report)
                new_users.add(user)
        return new_ids, new_users, fresh
