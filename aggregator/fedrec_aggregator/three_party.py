"""One of three aggregators: the rules of `sharing.one_of_three` over a ledger, with the same calls
as an aggregator that sums alone.

NOT YET REVIEWED from outside. What is promised, and against whom, is in `fedrec.sharing`.

Who may report, what a plan may cost and when a round is over is decided as in `core.Aggregator`. In
place of sums it holds shares until all three agree on the users (`sharing.holding`). Threads apply
the rules one at a time; none of them asks a peer meanwhile (`peers`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrec.errors import (
    FedRecError,
    PrivacyError,
    ProtocolError,
    RefusedError,
    RunError,
    UnreachableError,
)
from fedrec.federation.protocol import (
    DIFFER,
    AttemptNonce,
    Opening,
    Phase,
    Receipt,
    Refusal,
    RoundStatus,
    ShareEndpoint,
)
from fedrec.federation.releases import PartyStreams
from fedrec.federation.wire import refused, report_digest
from fedrec.operations import logs
from fedrec.randomness import Noise
from fedrec.sharing.layout import plan_layout
from fedrec.sharing.one_of_three import OneOfThree
from fedrec.sharing.protocol import AttemptProgress, Standing
from fedrec.sharing.shared_users import TOO_FEW
from fedrec_aggregator.collection import Collection
from fedrec_aggregator.core import Aggregator, ClientEndpoint
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits
from fedrec_aggregator.outputs import OutputStore
from fedrec_aggregator.peers import HeardPeer, PeerEndpoint, packed_list
from fedrec_aggregator.share_intake import ShareIntake, ThreePartyAttempt

log = logging.getLogger(__name__)

_BEAT_S = 0.02
"""How often one who waits looks again."""


class ThreePartyAggregator(Aggregator):
    """Aggregator `place` of 0, 1, 2. names: of all three with their keys, in order. peers: the
    other two, by place."""

    aggregation = "three-party"

    def __init__(
        self,
        ledger: ReleaseLedger,
        limits: Limits,
        *,
        noise: Noise,
        place: int,
        names: Sequence[bytes],
        peers: Mapping[int, PeerEndpoint],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(ledger, limits, noise=noise, clock=clock)
        self.place = place
        self._sleep = sleep
        self._store = OutputStore(ledger, enrolled=self.enrolled)
        self._peers = {i: HeardPeer(endpoint) for i, endpoint in peers.items()}
        rounds_noise = PartyStreams(self._noise, place)
        self._party = OneOfThree(
            place, names, self._peers, self._store, rounds_noise, folder=ledger.folder
        )
        self._shares = dict[tuple[str, int], ThreePartyAttempt]()
        self._away = dict[int, str]()
        self._turn = threading.RLock()  # the rules; nobody holds it while a peer is asked
        self._intake = ShareIntake(
            self._party, self._turn, ledger, limits, place=place, attempts=self._shares
        )
        self._asking = threading.Lock()  # one thread asks the peers at a time

    # --- the clients' side ---

    def attempt(self, run: str, round: int) -> AttemptNonce:
        """The attempt that takes shares.

        Raises RefusedError (`RUN_UNKNOWN`, `ROUND_UNKNOWN`, `ROUND_CLOSED`)."""
        with self._turn:
            progress = self._party.progress(run, round)
            if progress is None or progress.ended:
                raise refused(
                    self._absent(run, round),
                    f"round {round} of run {run!r} is not open here",
                    "Wait for the server to open it.",
                )
            if progress.closed:
                raise refused(
                    Refusal.ROUND_CLOSED, f"round {round} of run {run!r} takes no more reports"
                )
            found = AttemptNonce(progress.attempt, progress.nonce, progress.ticket)
        if not found.ticket:
            self._advance(run, round)
        return found

    def share_endpoint(self, sender: str, *, max_users: int | None = None) -> ShareEndpoint:
        """What the client of that name may do. max_users: as in `client_endpoint`."""
        return _ShareEndpoint(self, sender, max_users)

    def report(self, sender: str, run: str, round: int, batch: bytes) -> Receipt:
        """Hold the shares of every user that is the sender's.

        A bad batch is a receipt, never an exception."""
        attempt = self._shares.get((run, round))
        if attempt is None:
            return Receipt(0, {self._absent(run, round).value: 1})
        self._close_when_due(run, round, attempt)
        return self._intake.take(sender, run, round, attempt, batch)

    # --- the server's side ---

    def collections(self) -> tuple[Collection, ...]:
        """Rounds in memory as they are now."""
        with self._turn:
            return tuple(
                self._seen(run, attempt, self._party.progress(run, round))
                for (run, round), attempt in self._shares.items()
            )

    def open_round(self, opening: Opening) -> RoundStatus:
        """Begin the attempt that the opening names, or find it; an attempt of 0 asks where the
        round is: `SHORT` where it may be opened.

        Raises RefusedError.
        """
        key = (opening.run, opening.round)
        # not under the lock of enrolments and openings: a peer may hang until its call's deadline
        self._advance(*key)
        with self._one_at_a_time:
            if (done := self._known(opening)) is not None:
                return done
            now = self._shares.get(key)
            if opening.attempt and not (
                now and (now.number, now.quorum) == (opening.attempt, opening.quorum)
            ):
                self._begin(opening)
        if opening.attempt:
            self._advance(*key)
        try:
            return self._status(*key)
        except RefusedError as refusal:
            if opening.attempt or refusal.code != Refusal.ROUND_UNKNOWN:
                raise
            last = self._store.attempt(*key)
            return RoundStatus(*key, opening.digest, Phase.SHORT, last, self.enrolled())

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Where the round is; waits up to `wait_s` for it to be released or short. Raises
        RefusedError, and RunError where the disk fails (ask again)."""
        patient_until = self._clock() + wait_s
        while True:
            found = self._look(run, round)
            if found.phase in {Phase.RELEASED, Phase.SHORT} or self._clock() >= patient_until:
                return found
            self._sleep(_BEAT_S)

    def _look(self, run: str, round: int) -> RoundStatus:
        if (attempt := self._shares.get((run, round))) is not None:
            self._close_when_due(run, round, attempt)
            attempt.failure = None
        self._advance(run, round)
        if attempt is not None and attempt.failure is not None:
            raise attempt.failure
        return self._status(run, round)

    def close(self, run: str, round: int) -> RoundStatus:
        """Take no more shares. Raises as `status`."""
        self._stop_taking(run, round)
        return self.status(run, round)

    def release(self, run: str, round: int) -> bytes:
        """`record.packed_output` of a published round, the same bytes every time.

        Raises RefusedError (`BUSY`: not published yet)."""
        try:
            with self._turn:
                return self._party.output(run, round)
        except ProtocolError as failure:
            self._status(run, round)
            raise refused(
                Refusal.BUSY, failure.cause, "Ask again when its status says so."
            ) from None

    def tick(self) -> None:
        """Close what is due and go on with every round.

        What fails is logged, and waits for the server to ask again."""
        for (run, round), attempt in tuple(self._shares.items()):
            self._close_when_due(run, round, attempt)
            if attempt.failure is None:
                self._advance(run, round)
                if attempt.failure is not None:
                    logs.say_failure(log, "not-released", attempt.failure, run=run, round=round)

    # --- the peers' side ---

    def standing(self, run: str, round: int) -> Standing:
        """What a peer may know."""
        with self._turn:
            return self._party.standing(run, round)

    def held(self, run: str, round: int, attempt: int) -> bytes:
        """`peers.packed_list` of whom it holds, for a peer.

        Raises RefusedError (`ROUND_UNKNOWN`)."""
        said = self.standing(run, round)
        if said.attempt != attempt or said.held is None:
            raise refused(
                Refusal.ROUND_UNKNOWN,
                f"attempt {attempt} at round {round} has no list here",
                "Ask where the round is.",
            )
        return packed_list(said.held)

    def key(self, run: str, round: int, attempt: int, *, caller: int) -> bytes:
        """The masking key of an attempt, for the aggregator before this one alone.

        Raises RefusedError (`FORBIDDEN`)."""
        try:
            with self._turn:
                return self._party.key(run, round, attempt, caller=caller)
        except ProtocolError as failure:
            raise refused(Refusal.FORBIDDEN, failure.cause, failure.remedy) from None

    def explicit(
        self, run: str, round: int, attempt: int, first: int, last: int, *, caller: int
    ) -> bytes:
        """Explicit shares of agreed users, of aggregator 1 for 2 alone.

        Raises RefusedError (`FORBIDDEN`)."""
        try:
            with self._turn:
                return self._party.explicit(run, round, attempt, first, last, caller=caller)
        except ProtocolError as failure:
            raise refused(Refusal.FORBIDDEN, failure.cause, failure.remedy) from None

    def openings(self, run: str, round: int, attempt: int) -> bytes:
        """Its terms of the checks, for a peer. Raises RefusedError (`ROUND_UNKNOWN`)."""
        try:
            with self._turn:
                return self._party.openings(run, round, attempt)
        except ProtocolError as failure:
            raise refused(Refusal.ROUND_UNKNOWN, failure.cause, failure.remedy) from None

    # --- how it goes on ---

    def _begin(self, opening: Opening) -> None:
        question, plan = self._question(opening)
        run = opening.run
        key = (opening.run, opening.round)
        needed = max(self.limits.min_cohort, opening.quorum)
        named = bytes.fromhex(report_digest(opening.digest, opening.quorum))
        try:
            length = plan_layout(question, plan).length
        except PrivacyError as failure:
            raise refused(Refusal.WRONG_QUESTION, failure.cause, failure.remedy) from None
        with self._turn:
            digest = bytes.fromhex(opening.digest)
            try:
                self._party.open(
                    run, question, plan, digest, attempt=opening.attempt, needed=needed, named=named
                )
            except UnreachableError as failure:
                # before it can give up an output, it must know that no peer published its own
                raise refused(Refusal.BUSY, failure.cause, failure.remedy) from None
            except RefusedError:
                raise
            except RunError:
                if self._store.attempt(*key) == opening.attempt:
                    self._forget_round(*key)  # it is on disk all the same: the one before is over
                raise
            except ProtocolError as failure:
                raise refused(Refusal.ROUND_CLOSED, failure.cause, failure.remedy) from None
            self._store.quorums[key] = opening.quorum
            deadline_s = self._clock() + min(opening.timeout_s, self.limits.max_round_s)
            numbers = opening.digest, opening.attempt, opening.quorum, needed
            self._shares[key] = ThreePartyAttempt(question, plan, *numbers, deadline_s, length)

    def _advance(self, run: str, round: int) -> None:
        """Ask the peers and do what follows; nothing where another thread is at it."""
        attempt = self._shares.get((run, round))
        with self._turn:
            if attempt is None and (
                self._store.published(run, round) or self._store.kept(run, round) is None
            ):
                return
        if not self._asking.acquire(blocking=False):
            return
        try:
            while self._advance_once(run, round):
                pass
        except UnreachableError:
            pass  # `_note_away` said who; asked again at the next tick
        except FedRecError as failure:
            if attempt is None:
                raise
            attempt.failure = (
                refused(Refusal.BUDGET, failure.cause, failure.remedy)
                if isinstance(failure, PrivacyError)
                else failure
            )
        finally:
            self._asking.release()

    def _advance_once(self, run: str, round: int) -> bool:
        """Whether that led on, so that it goes on at once; in between, peers and clients are
        answered."""
        with self._turn:
            before = self._party.progress(run, round)
            stood = self._party.standing(run, round)
        wanted = before.wanted if before else None
        for i, peer in self._peers.items():
            wants_key = (
                i == (self.place + 1) % 3
                and before is not None
                and not before.ticket
                and not before.ended
            )
            wants_explicit = wanted if (self.place, i) == (2, 1) else None
            wants = {"wants_key": wants_key, "wants_openings": bool(before and before.opened)}
            peer.listen(
                run,
                round,
                attempt=before.attempt if before else 0,
                wants_explicit=wants_explicit,
                **wants,
            )
            self._note_away(i, peer.failure(run, round))
        with self._turn:
            self._party.advance(run, round)
            after = self._party.progress(run, round)
            stands = self._party.standing(run, round)
            self._note_end(run, round, before, after)
            if published := self._store.published(run, round):
                self._forget_round(run, round)
        return (
            after is not None
            and not after.ended
            and not published
            and (after.wanted, stands) != (wanted, stood)
        )

    def _note_end(
        self, run: str, round: int, before: AttemptProgress | None, after: AttemptProgress | None
    ) -> None:
        """A warning where lists differ, and why an attempt ended; each once."""
        if before is None or after is None or before.attempt != after.attempt:
            return
        where: dict[str, Any] = {"run": run, "round": round, "attempt": after.attempt}
        for i, count in {} if before.differ else after.differ.items():
            cause = f"{count} users differ between its list of users and this one"
            remedy = "Few are of clients cut off. Of many, ask its operator: it or a client lies."
            logs.say(
                log,
                "lists-differ",
                level=logging.WARNING,
                **where,
                sender=f"aggregator-{i + 1}",
                cause=cause,
                remedy=remedy,
            )
        if after.ended and not before.ended:
            where |= {"users": after.users, "cause": after.ended}
            logs.say(log, "attempt-ended", level=logging.WARNING, **where)

    def _note_away(self, place: int, failure: FedRecError | None) -> None:
        """Said once, until it answers again or says otherwise: peers are asked at every tick."""
        cause = failure.cause if failure else ""
        if failure and self._away.get(place) != cause:
            logs.say_failure(log, "peer-away", failure, sender=f"aggregator-{place + 1}")
        self._away[place] = cause

    def _forget_round(self, run: str, round: int) -> None:
        self._party.forget(run, round)
        self._shares.pop((run, round), None)
        for peer in self._peers.values():
            peer.forget(run, round)

    def _close_when_due(self, run: str, round: int, attempt: ThreePartyAttempt) -> None:
        if self._clock() >= attempt.deadline_s:
            self._stop_taking(run, round)

    def _stop_taking(self, run: str, round: int) -> None:
        with self._turn:
            self._party.close(run, round)

    def _seen(
        self, run: str, attempt: ThreePartyAttempt, progress: AttemptProgress | None
    ) -> Collection:
        phase = (
            Phase.SHORT
            if progress is None or progress.ended
            else Phase.RELEASING
            if progress.closed
            else Phase.OPEN
        )
        users = progress.users if progress else 0
        rejected = attempt.rejected
        if progress is not None and progress.ended:
            rejected = rejected + Counter(
                {f"{DIFFER}{i + 1}": count for i, count in progress.differ.items()}
            )
        return Collection(
            run, attempt.question, attempt.digest, attempt.plan, attempt.number,
            attempt.deadline_s, None, attempt.quorum, attempt.needed,
            phase, reported=users, rejected=rejected,
        )  # fmt: skip

    def _status(self, run: str, round: int) -> RoundStatus:
        with self._turn:
            if (done := self.ledger.released(run, round)) is not None:
                return done
            attempt = self._shares.get((run, round))
            progress = self._party.progress(run, round)
            kept = self._store.kept(run, round)
            if kept is not None and (progress is None or progress.attempt == kept.attempt):
                known = self.ledger.attempt(run, round)
                digest = known.digest if known else ""
                quorum = attempt.quorum if attempt else 0
                return RoundStatus(
                    run,
                    round,
                    digest,
                    Phase.RELEASING,
                    kept.attempt,
                    self.enrolled(),
                    kept.users,
                    quorum=quorum,
                )
            if attempt is None or progress is None:
                raise refused(
                    self._absent(run, round),
                    f"round {round} of run {run!r} is not open here",
                    "Open it again.",
                )
            if progress.ended and progress.ended != TOO_FEW:
                raise refused(
                    Refusal.ROUND_UNKNOWN,
                    f"attempt {progress.attempt} at round {round} ended: {progress.ended}",
                    "Open it again.",
                )
            return self._seen(run, attempt, progress).status(
                now_s=self._clock(), enrolled=self.enrolled()
            )


@dataclass(frozen=True)
class _ShareEndpoint(ClientEndpoint):
    aggregator: ThreePartyAggregator

    def attempt(self, run: str, round: int) -> AttemptNonce:
        return self.aggregator.attempt(run, round)
