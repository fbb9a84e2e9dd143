"""The secure aggregator's rules, without a transport: who may report, when a round ends, and that
it is released once.

`Aggregator` is the server's `ReleaseEndpoint`; `client_endpoint(sender)` is one client's
`ReportEndpoint`. Who a sender is, and who may play the server, is the transport's business. Any
thread may call anything. Batches are checked without a lock and added under their round's.

A round is released by whoever comes first after it froze: `close`, `status`, `open_round` or
`tick`, so that no client waits in `report` for seconds of noise. What is durable before what is
told in `fedrec_aggregator.ledger`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedrec.errors import FedRecError, PrivacyError, RefusedError, RunError
from fedrec.federation.messages import Question
from fedrec.federation.protocol import (
    DEPARTURE,
    TOKEN_BYTES,
    Budget,
    LedgerGrowth,
    LedgerHead,
    Opening,
    OwnLedger,
    Phase,
    Receipt,
    Refusal,
    ReportEndpoint,
    RoundStatus,
    SignedStatement,
)
from fedrec.federation.releases import release
from fedrec.federation.report_batches import announced_users
from fedrec.federation.wire import (
    pack_release,
    refused,
    report_digest,
)
from fedrec.operations import logs
from fedrec.privacy.calibration import Aggregation, Plan
from fedrec.randomness import Noise, Streams
from fedrec_aggregator import opening_checks
from fedrec_aggregator.collection import Collection, accumulator_bytes, zero_sums
from fedrec_aggregator.departure import departure_of
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import (
    Limits,
    question_of,
    require_name,
    require_plan,
    require_room,
)
from fedrec_aggregator.statement import signed, statement_of
from fedrec_aggregator.weeks import noise_of_week, require_week_after

__all__ = ["Aggregator", "Limits"]

log = logging.getLogger(__name__)

_BEAT_S = 0.5
"""How often one who waits looks at the clock again."""


class Aggregator:
    """All runs and rounds of one ledger. `noise`: seeded streams reproduce a loopback's bytes,
    system streams are for deployments.

    clock: seconds that never go back; deadlines are on it.
    """

    aggregation: Aggregation = "trusted"
    signer: tuple[Path, Path] | None = None
    """Certificate and key that statements are signed with."""

    def __init__(
        self,
        ledger: ReleaseLedger,
        limits: Limits,
        *,
        noise: Noise,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self._noise = noise
        self._clock = clock
        self._one_at_a_time = threading.Lock()  # one enrolment or opening at a time
        self._moved = threading.Condition()  # some round has changed its phase
        self._rounds = dict[tuple[str, int], Collection]()

    # --- the clients' side ---

    def client_endpoint(self, sender: str, *, max_users: int | None = None) -> ReportEndpoint:
        """What the client of that name may do. max_users: it may enrol; None for what the limits
        say."""
        return ClientEndpoint(self, sender, max_users)

    def enroll(self, sender: str, tokens: Sequence[bytes], *, max_users: int | None = None) -> int:
        """Make users known, all or none; returns how many this sender has. Raises RefusedError
        (`MALFORMED`, `FORBIDDEN`, `TOO_LARGE`).

        Takes time in proportion to the tokens, however many users there are.
        """
        most = self.limits.max_users_per_sender if max_users is None else max_users
        if not all(isinstance(token, bytes) and len(token) == TOKEN_BYTES for token in tokens):
            raise refused(Refusal.MALFORMED, f"a user's pseudonym has {TOKEN_BYTES} bytes")
        with self._one_at_a_time:
            owners = self.ledger.owners()
            if any(self.ledger.departure(token) for token in tokens):
                raise refused(
                    Refusal.FORBIDDEN,
                    "a user has left for good",
                    "Put back the client's newest state folder, which knows who.",
                )
            new = [token for token in dict.fromkeys(tokens) if token not in owners]
            if any(owners.get(token, sender) != sender for token in tokens):
                raise refused(
                    Refusal.FORBIDDEN, "a user belongs to the client that enrolled it first"
                )
            if self.ledger.enrolled_by(sender) + len(new) > most:
                raise refused(
                    Refusal.TOO_LARGE,
                    f"client {sender!r} may enrol {most} users",
                    "Ask the aggregator's operator for more.",
                )
            if new:
                self.ledger.enroll(sender, new)
            return self.ledger.enrolled_by(sender)

    def forget(self, sender: str, token: bytes) -> SignedStatement:
        """Count a user no more from here on, durably; the statement of it, the same again. A report
        that an open round holds already stays in its sum.

        Raises RefusedError (`NOT_ENROLLED`, `FORBIDDEN`), RunError where it cannot be written."""
        with self._one_at_a_time:
            left = self.ledger.departure(token)
            if left is None and token not in self.ledger.owners():
                raise refused(Refusal.NOT_ENROLLED, "this aggregator never knew this user")
            if left is None and self.ledger.owners()[token] == sender:
                left = self.ledger.depart(token)
            if left is None or getattr(left.entry, "sender", None) != sender:
                raise refused(Refusal.FORBIDDEN, "the user is another client's")
        return signed(departure_of(self.ledger, left), self.signer, form=DEPARTURE)

    def report(self, sender: str, run: str, round: int, batch: bytes) -> Receipt:
        """Check, clip and count a batch.

        A bad one is a receipt, never an exception."""
        users = min(max(announced_users(batch), 1), self.limits.max_users_per_batch)
        collection = self._rounds.get((run, round))
        if collection is None:
            return Receipt(0, {self._absent(run, round).value: users})
        collection.receive(len(batch))
        self._close_if_due(collection)
        if collection.phase is not Phase.OPEN:
            return collection.turn_away(Refusal.ROUND_CLOSED, users)
        try:
            checked = opening_checks.check(
                batch,
                collection.question.releases,
                report_digest(collection.digest, collection.quorum),
                self.limits,
                sender=sender,
                owners=self.ledger.owners(),
            )
            receipt = collection.fold(checked)
        except RefusedError as refusal:
            return collection.turn_away(Refusal(refusal.code), users)
        except MemoryError:
            return collection.turn_away(Refusal.BUSY, users)
        self._freeze(collection, enrolled=len(self.ledger.owners()))
        return receipt

    # --- both sides ---

    def growth(self, since: LedgerHead) -> LedgerGrowth:
        """How the ledger grew since that head. Raises RefusedError (`STALE_LEDGER`)."""
        return self.ledger.growth(since)

    # --- the server's side ---

    def enrolled(self) -> int:
        """Users enrolled now."""
        return len(self.ledger.owners())

    def collections(self) -> tuple[Collection, ...]:
        """Rounds in memory: open, being released, or short."""
        return tuple(self._rounds.values())

    def statement(self, run: str) -> SignedStatement:
        """What the ledger says of a run. Raises RefusedError (`RUN_UNKNOWN`)."""
        return signed(statement_of(self.ledger, run), self.signer)

    def budget(self) -> Budget:
        """What is spent over all runs, what the limit leaves, and where noise comes from."""
        spends = self.ledger.spends()
        limit = self.ledger.limit
        allowed, delta, unit = (
            (math.inf, 1e-5, "user") if limit is None else (limit.epsilon, limit.delta, limit.unit)
        )
        noise: Literal["system", "seeded"] = (
            "seeded" if isinstance(self._noise, Streams) else "system"
        )
        return Budget(spends.epsilon, allowed, delta, spends.possible, unit, noise)

    def open_run(self, run: str, plan: Plan) -> None:
        """Fix the plan of a run, if all of it can still be afforded.

        Raises RefusedError (`MALFORMED`, `WRONG_PLAN`, `BUDGET`)."""
        require_name(run)
        require_plan(
            plan, aggregation=self.aggregation, limits=self.limits, limit=self.ledger.limit
        )
        with self._one_at_a_time:
            known = self.ledger.plan(run)
            if known is None:
                require_room(plan, self.ledger)
                self.ledger.keep_plan(run, plan)
            elif known.digest() != plan.digest():
                raise refused(
                    Refusal.WRONG_PLAN,
                    f"run {run!r} was opened with another plan",
                    "Give the changed run a name of its own.",
                )

    def open_round(self, opening: Opening) -> RoundStatus:
        """Open, or find as it is. A round that was short, lost in a crash before its release, or
        open with another quorum starts anew.

        Raises RefusedError.
        """
        with self._one_at_a_time:
            # first: a round leaves memory after it is published
            collection = self._rounds.get((opening.run, opening.round))
            done = self._known(opening)
            if done is not None:
                return done
            if (
                collection is not None
                and self._close_if_due(collection) is Phase.OPEN
                and collection.quorum != opening.quorum
            ):
                collection.give_up()
            if collection is None or collection.phase is Phase.SHORT:
                collection = self._opened(opening)
        self._finish(collection)
        return self._status(opening.run, opening.round)

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Where the round is; waits up to `wait_s` for it to be released or short.

        Raises RefusedError (`ROUND_UNKNOWN`)."""
        patient_until = time.monotonic() + wait_s
        while True:
            if (collection := self._rounds.get((run, round))) is not None:
                self._close_if_due(collection)
                self._finish(collection)
            status = self._status(run, round)
            left_s = patient_until - time.monotonic()
            if status.phase in {Phase.RELEASED, Phase.SHORT} or left_s <= 0:
                return status
            with self._moved:
                if collection is None or collection.phase is status.phase:
                    self._moved.wait(min(left_s, _BEAT_S))

    def close(self, run: str, round: int) -> RoundStatus:
        """No more reports will come: release now if cohort and quorum are there.

        Raises RefusedError (`ROUND_UNKNOWN`, `BUDGET`)."""
        if (collection := self._rounds.get((run, round))) is not None:
            self._freeze(collection)
            self._finish(collection)
        return self._status(run, round)

    def release(self, run: str, round: int) -> bytes:
        """`wire.pack_release` of a released round, the same bytes every time.

        Raises RefusedError (`BUSY`: not released yet)."""
        content = self.ledger.content(run, round)
        if content is None:
            self._status(run, round)
            raise refused(
                Refusal.BUSY,
                f"round {round} of run {run!r} is not released yet",
                "Ask again when its status says so.",
            )
        return content

    def tick(self) -> None:
        """Close what is due and release what is frozen.

        What fails is logged and waits for the server to ask again."""
        for collection in tuple(self._rounds.values()):
            try:
                self._close_if_due(collection)
                if collection.failure is None:
                    self._finish(collection)
            except Exception as failure:  # one round must not hold up those of other runs
                logs.say_failure(
                    log,
                    "not-released",
                    failure,
                    quoted=isinstance(failure, FedRecError),
                    run=collection.run,
                    round=collection.question.round,
                )

    # --- opening ---

    def _known(self, opening: Opening) -> RoundStatus | None:
        """The final status of a released round.

        Raises RefusedError where the opening cannot be of this run, round and ledger."""
        if self.ledger.plan(opening.run) is None:
            raise refused(Refusal.RUN_UNKNOWN, f"run {opening.run!r} was never opened here")
        if not self.ledger.knows(opening.ledger_head):
            raise refused(
                Refusal.STALE_LEDGER,
                "the aggregator's ledger does not hold what the server has seen of it",
                "Restore the newest backup of the ledger.",
            )
        before = self.ledger.attempt(opening.run, opening.round)
        if before is not None and before.digest != opening.digest:
            raise refused(
                Refusal.WRONG_QUESTION,
                f"round {opening.round} of run {opening.run!r} was opened with another question",
            )
        return self.ledger.released(opening.run, opening.round)

    def _opened(self, opening: Opening) -> Collection:
        """A collection of zeros."""
        question, plan = self._question(opening)
        held = sum(
            accumulator_bytes(c.question.blocks)
            for c in tuple(self._rounds.values())
            if c.sums is not None
        )
        sums = zero_sums(question, limits=self.limits, held_bytes=held)
        number = self.ledger.begin(opening.run, opening.round, opening.digest)
        deadline_s = self._clock() + min(opening.timeout_s, self.limits.max_round_s)
        needed = max(self.limits.min_cohort, opening.quorum)
        collection = Collection(
            opening.run,
            question,
            opening.digest,
            plan,
            number,
            deadline_s,
            sums,
            opening.quorum,
            needed,
        )
        self._rounds[opening.run, opening.round] = collection
        return collection

    def _question(self, opening: Opening) -> tuple[Question, Plan]:
        """The checked question without its arrays, which can be afforded, and the plan it is
        of."""
        plan = self.ledger.plan(opening.run)
        assert plan is not None
        question = question_of(opening, plan)
        names = [spec.name for spec in question.releases if spec.charged]
        if plan.horizon:
            require_week_after(question, opening.run, self.ledger)
        try:
            self.ledger.afford(opening.run, question.round, plan, names)
        except PrivacyError as failure:
            raise refused(Refusal.BUDGET, failure.cause, failure.remedy) from failure
        return question, plan

    # --- ending ---

    def _close_if_due(self, collection: Collection) -> Phase:
        return (
            self._freeze(collection) if self._clock() >= collection.deadline_s else collection.phase
        )

    def _freeze(self, collection: Collection, *, enrolled: int | None = None) -> Phase:
        phase = collection.freeze(enrolled=enrolled)
        if phase is not Phase.OPEN:
            self._tell()
        return phase

    def _finish(self, collection: Collection) -> None:
        """Release a frozen round, unless another thread does.

        Raises RunError where the disk fails (ask again), RefusedError (`BUDGET`)."""
        with collection.lock:
            if collection.phase is not Phase.RELEASING or collection.working:
                return
            collection.working = True
            collection.failure = None
        try:
            self._release(collection)
        except MemoryError as failure:
            collection.failure = failure
            remedy = (
                "Give it more memory, or ask again when other rounds have ended: nothing was "
                "released."
            )
            raise RunError(
                f"the aggregator has no memory to release round {collection.question.round}", remedy
            ) from failure
        except FedRecError as failure:
            collection.failure = failure
            raise
        finally:
            collection.working = False
            self._tell()

    def _release(self, collection: Collection) -> None:
        """Charge, then noise, then keep, then publish: what nobody has seen may be done again, what
        somebody may have seen never is."""
        run = collection.run
        question = collection.question
        plan = collection.plan
        ledger = self.ledger
        names = [spec.name for spec in question.releases if spec.charged]
        if ledger.released(run, question.round) is None and collection.sums is not None:
            try:
                account = ledger.afford(run, question.round, plan, names)
                ledger.charge(run, question.round, plan, names)
            except (PrivacyError, RefusedError) as failure:
                self._forget(collection)
                raise refused(Refusal.BUDGET, failure.cause, failure.remedy) from failure
            noise = self._noise
            if plan.horizon:
                own = noise_of_week(question, run, ledger)
                noise = noise if isinstance(noise, Streams) else own
            noised, _ = release(question, collection.sums.blocks, plan, account, noise=noise)
            sha256 = ledger.store(run, question.round, pack_release(noised))
            counted = collection.status(now_s=self._clock(), enrolled=self.enrolled())
            ledger.publish(counted, sha256, bytes_in=collection.bytes_in)
        self._forget(collection)

    def _forget(self, collection: Collection) -> None:
        self._rounds.pop((collection.run, collection.question.round), None)
        collection.sums = None

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()

    # --- where a round is ---

    def _absent(self, run: str, round: int) -> Refusal:
        if self.ledger.plan(run) is None:
            return Refusal.RUN_UNKNOWN
        return (
            Refusal.ROUND_UNKNOWN
            if self.ledger.released(run, round) is None
            else Refusal.ROUND_CLOSED
        )

    def _status(self, run: str, round: int) -> RoundStatus:
        # first: a round leaves memory after it is published
        collection = self._rounds.get((run, round))
        if (done := self.ledger.released(run, round)) is not None:
            return done
        if collection is not None:
            return collection.status(now_s=self._clock(), enrolled=self.enrolled())
        raise refused(
            self._absent(run, round),
            f"round {round} of run {run!r} is not open here",
            "Open it again: nothing of it was released.",
        )


@dataclass(frozen=True)
class ClientEndpoint:
    """What one client may do, by its name. max_users: as in `Aggregator.client_endpoint`."""

    aggregator: Aggregator
    sender: str
    max_users: int | None

    def enroll(self, tokens: Sequence[bytes]) -> int:
        """See `Aggregator.enroll`."""
        return self.aggregator.enroll(self.sender, tokens, max_users=self.max_users)

    def growth(self, since: LedgerHead, own: OwnLedger) -> LedgerGrowth:
        """See `Aggregator.growth`; `own`: the client's newest entry, which is kept."""
        self.aggregator.ledger.heed(self.sender, own)
        return self.aggregator.growth(since)

    def report(self, run: str, round: int, batch: bytes) -> Receipt:
        """See `Aggregator.report`."""
        return self.aggregator.report(self.sender, run, round, batch)

    def forget(self, token: bytes) -> SignedStatement:
        """See `Aggregator.forget`."""
        return self.aggregator.forget(self.sender, token)
