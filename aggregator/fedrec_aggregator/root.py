"""The root of a tree of aggregators: it merges its leaves' frozen sums, and is the aggregator that
servers know.

Guarantee: the one aggregator's (`core.Aggregator`), per user, add/remove: cohort and quorum are
enforced over all leaves, the ledger is charged once, and noise is drawn once, of the merged sums.
Sums are exact integers, so that a tree releases the bytes that one aggregator would. That every
user is in one sum at most follows from ranges of pseudonyms that share none
(`leaves.require_all_once`), from a leaf's own replay table, and from sums that are taken once for a
leaf, of the attempt that is under way and of the epoch in which it was opened.

    open    every leaf that answers is opened; one that was away, or was started again, is opened
            when it answers
    lost    a leaf that was opened and started again, with what it held: the attempt ends, the
            server opens the next, clients send again
    freeze  each leaf's sums are taken, checked and held; a leaf that stays away for `patience_s` is
            left out, if the quorum is there
    release charge, noise, keep, publish: as the one aggregator does

A leaf is believed as the one aggregator is. What can be seen of a lie is refused: sums of another
round, attempt or leaf, other sums than before, fewer users than it has said, more than it may have,
or sums larger than its users can make.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedrec.errors import ProtocolError, RefusedError
from fedrec.federation.leaves import LeafStanding, PartialSums, require_within_reach
from fedrec.federation.protocol import Opening, Phase, Receipt, Refusal, ReportEndpoint
from fedrec.federation.report_batches import announced_users
from fedrec.federation.reports import ExactSums
from fedrec.federation.wire import refused
from fedrec.operations import logs
from fedrec.randomness import Streams, SystemStreams
from fedrec_aggregator.collection import Collection
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.leaf_attempt import LeafAttempt, LeafVisits, ListedLeaf, distrusted
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits

log = logging.getLogger(__name__)


class RootRole(Aggregator):
    """What the root of leaves is, of one aggregator and of one of three: it takes no reports
    itself, and hears its leaves through `_visits`."""

    _visits: LeafVisits

    def shut(self) -> None:
        """End the threads that ask leaves."""
        self._visits.close()

    # --- the clients' side: there is none ---

    def client_endpoint(
        self, sender: str, *, max_users: int | None = None, names_quorum: bool = True
    ) -> ReportEndpoint:
        """Raises RefusedError (`FORBIDDEN`)."""
        raise no_reports()

    def enroll(self, sender: str, tokens: Sequence[bytes], *, max_users: int | None = None) -> int:
        """Raises RefusedError (`FORBIDDEN`)."""
        raise no_reports()

    # --- the server's side ---

    def enrolled(self) -> int:
        """Users enrolled at all leaves now; of a leaf that does not answer, as it was heard
        last."""
        self._visits.hear_all()
        return self.known_enrolled()

    def known_enrolled(self) -> int:
        """Users enrolled at all leaves as they were heard last."""
        return self._visits.enrolled

    def tick(self) -> None:
        """Tell leaves how the ledger grew, and go on with every round."""
        self._visits.hear_all()
        super().tick()


class RootAggregator(RootRole):
    """The aggregator of all `leaves`. patience_s: for a leaf that does not answer when sums are
    taken.

    Raises ValueError as `LeafVisits`.
    """

    def __init__(
        self,
        ledger: ReleaseLedger,
        limits: Limits,
        *,
        noise: Streams | SystemStreams,
        leaves: Sequence[ListedLeaf],
        patience_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ledger, limits, noise=noise, clock=clock)
        self.leaves = tuple(leaves)
        self._patience_s = patience_s
        self._attempts = dict[tuple[str, int], LeafAttempt]()
        self._visits = LeafVisits(ledger, self.leaves)

    def report(
        self, sender: str, run: str, round: int, batch: bytes, *, names_quorum: bool = True
    ) -> Receipt:
        """Turned away."""
        return Receipt(0, {Refusal.FORBIDDEN.value: max(1, announced_users(batch))})

    # --- a round ---

    def _opened(self, opening: Opening, *, attempt: int | None = None) -> Collection:
        collection = super()._opened(opening, attempt=attempt)
        named = replace(opening, attempt=collection.attempt)
        self._attempts[opening.run, opening.round] = LeafAttempt(named, self._visits)
        self._look(collection)
        return collection

    def _close_if_due(self, collection: Collection) -> Phase:
        if collection.phase is Phase.OPEN:
            self._look(collection)
        if (
            collection.phase is Phase.OPEN
            and collection.needed <= collection.reported >= self.known_enrolled() > 0
        ):
            return self._freeze(collection)
        return super()._close_if_due(collection)

    def _freeze(self, collection: Collection, *, enrolled: int | None = None) -> Phase:
        """Take no more reports. Whether enough have reported is known when all sums are held."""
        with collection.lock:
            if collection.phase is Phase.OPEN:
                collection.phase = Phase.RELEASING
        self._tell()
        return collection.phase

    def _release(self, collection: Collection) -> None:
        """Take the leaves' sums, merge them, and go on as the one aggregator; at the next tick
        where a leaf is waited for."""
        if self.ledger.released(collection.run, collection.question.round) is not None:
            super()._release(collection)
            return
        if (attempt := self._of(collection)) is None:
            return
        with attempt.turn:
            if not self._taken(collection, attempt):
                return
            self._merge(collection, attempt)
        if collection.phase is Phase.RELEASING:
            super()._release(collection)

    def _forget(self, collection: Collection) -> None:
        super()._forget(collection)
        self._attempts.pop((collection.run, collection.question.round), None)
        self._visits.hear_all(run=collection.run, round=collection.question.round, ended=True)

    def _of(self, collection: Collection) -> LeafAttempt | None:
        """What leaves hold of this very attempt."""
        attempt = self._attempts.get((collection.run, collection.question.round))
        return (
            attempt
            if attempt is not None and attempt.opening.attempt == collection.attempt
            else None
        )

    def _look(self, collection: Collection) -> None:
        """Hear every leaf, open those that are not yet, and count; a leaf that lost reports ends
        the attempt."""
        attempt = self._of(collection)
        if attempt is None or not attempt.turn.acquire(blocking=False):
            return
        try:
            plan = self.ledger.plan(collection.run)
            assert plan is not None
            if lost := attempt.look(plan, collection.deadline_s - self._clock()):
                self._end(collection, lost)
            with collection.lock:
                if collection.phase is Phase.OPEN:
                    _count(collection, attempt.standings)
        finally:
            attempt.turn.release()

    def _end(self, collection: Collection, lost: Sequence[str]) -> None:
        """Nothing of the attempt is kept; the server is told that the round is unknown, and opens
        the next."""
        say_lost(collection.run, collection.question.round, lost)
        with collection.lock:
            collection.phase = Phase.SHORT
            collection.sums = None
        for each in (self._rounds, self._attempts):
            each.pop((collection.run, collection.question.round), None)

    # --- sums ---

    def _taken(self, collection: Collection, attempt: LeafAttempt) -> bool:
        """Whether every leaf's sums are held, or its time is over.

        Raises ProtocolError on sums that cannot be its own."""
        attempt.frozen_s = self._clock() if attempt.frozen_s is None else attempt.frozen_s
        opening = attempt.opening
        question = collection.question

        def check(leaf: ListedLeaf, partial: PartialSums) -> None:
            standing = attempt.parts[leaf.name].standing
            if standing is not None and partial.reported < standing.reported:
                what = f"said that {standing.reported} users reported, and sent sums of "
                raise distrusted(leaf, f"{what}{partial.reported}")
            require_within_reach(partial, question.releases)
            about = {"run": opening.run, "round": opening.round, "attempt": opening.attempt}
            logs.say(log, "leaf-frozen", sender=leaf.name, users=partial.reported, **about)  # type: ignore[arg-type]

        lost, waiting = attempt.take(question.blocks, check)
        if lost:
            self._end(collection, lost)
            return False
        return not waiting or self._clock() - attempt.frozen_s >= self._patience_s

    def _merge(self, collection: Collection, attempt: LeafAttempt) -> None:
        """All sums into one, counted; too few, and all is forgotten."""
        partials = attempt.partials
        with collection.lock:
            _count(collection, partials)
            if collection.sums is None or collection.reported < collection.needed:
                collection.phase = Phase.SHORT
                collection.sums = None
                return
            total = ExactSums(collection.question.blocks)
            for partial in partials:
                try:
                    total.merge(ExactSums.of(collection.question.blocks, partial.blocks))
                except ValueError as failure:
                    raise ProtocolError(
                        f"the leaves' sums cannot be merged: {failure}",
                        "Ask fewer people in a round.",
                    ) from None
            collection.sums = total


def _count(collection: Collection, parts: Sequence[LeafStanding | PartialSums]) -> None:
    collection.reported = sum(part.reported for part in parts)
    collection.clipped = sum(part.clipped for part in parts)
    collection.bytes_in = sum(part.bytes_in for part in parts)
    collection.rejected = sum((Counter(part.rejected) for part in parts), Counter[str]())


def no_reports() -> RefusedError:
    """What a client is told that reports to a root."""
    return refused(
        Refusal.FORBIDDEN,
        "this is the root of leaves, which take reports",
        "Name the leaves in the client's settings.",
    )


def say_lost(run: str, round: int, lost: Sequence[str]) -> None:
    """Into the log: leaves that end an attempt."""
    cause = f"started again since they were opened: {', '.join(lost)}"
    logs.say(log, "leaf-lost", level=logging.WARNING, run=run, round=round, cause=cause)
