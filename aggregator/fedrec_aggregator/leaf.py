"""A leaf aggregator: it takes the reports of a range of pseudonyms and adds them up, for a root
that releases.

Guarantee: none of its own. It draws no noise, charges nothing and releases nothing: what leaves it
are exact sums, for its root alone (`fedrec_aggregator.root`), and it is trusted with reports as the
one aggregator is. Who may report, and how reports are checked, clipped and counted once, is
`core.Aggregator`'s. Its ledger keeps who is enrolled and which attempts were begun; what was
charged and released is in the root's, whose chain of hashes the root tells it, so that clients can
see that it never goes back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock

from fedrec.federation.leaves import LeafStanding, PartialSums, TokenRange
from fedrec.federation.messages import Question
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Opening, Phase, Refusal, next_hash
from fedrec.federation.wire import refused
from fedrec.privacy.calibration import Plan
from fedrec.randomness import SystemStreams
from fedrec_aggregator.collection import Collection
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.ledger import ENTRIES_AT_ONCE, ReleaseLedger
from fedrec_aggregator.opening_checks import Limits


class LeafRole(Aggregator):
    """What a leaf is, of one aggregator and of one of three: owner of the pseudonyms in `range`,
    told by its root how the ledger grows, which charges and releases alone. epoch: drawn when it
    starts; its sums are of this epoch."""

    name: str
    range: TokenRange
    epoch: str
    _root: RootHeads

    def _begin_leaf(self, name: str, range: TokenRange) -> None:
        self.name = name
        self.range = range
        self.epoch = os.urandom(16).hex()
        self._root = RootHeads()

    def enroll(self, sender: str, tokens: Sequence[bytes], *, max_users: int | None = None) -> int:
        """Enrols as an aggregator does, within its own range.

        Raises RefusedError (`FORBIDDEN`) on pseudonyms of another leaf."""
        if any(isinstance(token, bytes) and token not in self.range for token in tokens):
            raise refused(
                Refusal.FORBIDDEN,
                f"leaf {self.name!r} owns pseudonyms {self.range} alone",
                "Compare the ranges of leaves in the settings of the client and of the root.",
            )
        return super().enroll(sender, tokens, max_users=max_users)

    def growth(self, since: LedgerHead) -> LedgerGrowth:
        """How the root's ledger grew, as far as the root told it.

        Raises RefusedError (`STALE_LEDGER`; `BUSY`: it was told less)."""
        return self._root.growth(since)

    def _require_newest(self, opening: Opening) -> None:
        """Raises RefusedError where the round has another question (`WRONG_QUESTION`), and on an
        attempt before the last: the root's ledger went back (`STALE_LEDGER`)."""
        before = self.ledger.attempt(opening.run, opening.round)
        if before is not None and before.digest != opening.digest:
            cause = f"round {opening.round} of run {opening.run!r} was opened with another question"
            raise refused(Refusal.WRONG_QUESTION, cause)
        if before is not None and before.attempt > opening.attempt:
            cause = (
                f"this leaf knows attempt {before.attempt} at round {opening.round}, the root "
                f"opens attempt {opening.attempt}"
            )
            raise refused(
                Refusal.STALE_LEDGER, cause, "Restore the newest backup of the root's ledger."
            )

    def _require_held(
        self, run: str, round: int, held: tuple[str, int] | None, asked: tuple[str, int], epoch: str
    ) -> None:
        """held, asked: digest and attempt. Raises RefusedError (`ROUND_UNKNOWN`) where sums of
        another attempt, or of another epoch, are asked for."""
        if held != asked or epoch != self.epoch:
            cause = (
                f"leaf {self.name!r} holds no attempt {asked[1]} at round {round} of run {run!r} "
                "in that epoch"
            )
            raise refused(Refusal.ROUND_UNKNOWN, cause, "Open it again: what it held is lost.")

    def _told(self) -> LeafStanding:
        """The leaf, apart from any round."""
        return LeafStanding(self.epoch, self.range, self.known_enrolled(), self._root.head)

    def _check_budget(self, plan: Plan) -> None:
        """The root's."""

    def _afford(self, question: Question, run: str, plan: Plan) -> None:
        """The root's."""


class LeafAggregator(LeafRole):
    """The leaf `name` of one aggregator, which takes reports and adds them up."""

    def __init__(
        self,
        ledger: ReleaseLedger,
        limits: Limits,
        *,
        name: str,
        range: TokenRange,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ledger, limits, noise=SystemStreams(), clock=clock)
        self._begin_leaf(name, range)
        self._frozen = dict[tuple[str, int], PartialSums]()

    # --- the root's side ---

    def visit(
        self,
        since: LedgerHead,
        growth: LedgerGrowth,
        *,
        run: str = "",
        round: int = 0,
        ended: bool = False,
    ) -> LeafStanding:
        """Implements `LeafEndpoint.visit`."""
        self._root.extend(since, growth)
        collection = self._rounds.get((run, round))
        if collection is not None:
            self._close_if_due(collection)
            if ended:
                with collection.lock:
                    collection.phase = Phase.RELEASED
                    collection.sums = None
                self._frozen.pop((run, round), None)
        return self._standing(collection)

    def open(self, opening: Opening, plan: Plan) -> LeafStanding:
        """Implements `LeafEndpoint.open`.

        Raises RefusedError (`STALE_LEDGER`) on an attempt before the last: the root's ledger went
        back."""
        self.open_run(opening.run, plan)
        key = (opening.run, opening.round)
        with self._one_at_a_time:
            self._require_newest(opening)
            collection = self._rounds.get(key)
            if collection is None or not self._goes_on(collection, opening):
                # a root has one round of a run at a time
                for other in [each for each in self._rounds if each[0] == opening.run]:
                    self._rounds.pop(other)
                    self._frozen.pop(other, None)
                collection = self._opened(opening, attempt=opening.attempt)
                collection.needed = 0  # the root enforces cohort and quorum, over all leaves
        return self._standing(collection)

    def freeze(self, run: str, round: int, *, digest: str, attempt: int, epoch: str) -> bytes:
        """Implements `LeafEndpoint.freeze`."""
        collection = self._rounds.get((run, round))
        held = (collection.digest, collection.attempt) if collection else None
        self._require_held(run, round, held, (digest, attempt), epoch)
        assert collection is not None
        self._freeze(collection)
        with collection.lock:
            if (run, round) not in self._frozen:
                if collection.sums is None:
                    raise refused(
                        Refusal.ROUND_UNKNOWN,
                        f"leaf {self.name!r} has forgotten round {round}",
                        "Open it again.",
                    )
                counts = (
                    collection.reported,
                    collection.clipped,
                    collection.bytes_in,
                    dict(collection.rejected),
                )
                of_what = self.name, epoch, run, round, digest, collection.quorum, attempt
                self._frozen[run, round] = PartialSums(*of_what, *counts, collection.sums.blocks)
            frozen = self._frozen[run, round]
        return frozen.packed()

    # --- what differs from an aggregator that releases ---

    def _goes_on(self, collection: Collection, opening: Opening) -> bool:
        """Whether what is collected stands for this attempt: of the same question and quorum, and
        nobody was given a sum of it."""
        with collection.lock:
            same = (collection.digest, collection.quorum) == (opening.digest, opening.quorum)
            if same and collection.attempt == opening.attempt:
                return collection.phase is not Phase.SHORT
            if not same or collection.phase is not Phase.OPEN:
                return False
            collection.attempt = self.ledger.begin(
                opening.run, opening.round, opening.digest, number=opening.attempt
            )
            collection.deadline_s = self._clock() + min(opening.timeout_s, self.limits.max_round_s)
            return True

    def _standing(self, collection: Collection | None) -> LeafStanding:
        told = self._told()
        # it ran out of memory half way: the root opens it again
        if collection is None or collection.phase is Phase.SHORT:
            return told
        with collection.lock:
            about = replace(
                told,
                attempt=collection.attempt,
                digest=collection.digest,
                reported=collection.reported,
            )
            return replace(
                about,
                clipped=collection.clipped,
                rejected=dict(collection.rejected),
                bytes_in=collection.bytes_in,
            )

    def _freeze(self, collection: Collection, *, enrolled: int | None = None) -> Phase:
        """Whether everybody has reported is the root's to see, over all leaves."""
        return collection.phase if enrolled is not None else super()._freeze(collection)

    def _finish(self, collection: Collection) -> None:
        """Nothing is released here."""


class RootHeads:
    """The chain of hashes of the root's ledger, as far as the root told it; in memory: a leaf that
    starts again is told all of it."""

    def __init__(self) -> None:
        self._entries = list[str]()
        self._hashes = [""]
        self._lock = Lock()

    @property
    def head(self) -> LedgerHead:
        """Head of the chain, as far as the root told it."""
        with self._lock:
            return LedgerHead(len(self._entries), self._hashes[-1])

    def extend(self, since: LedgerHead, growth: LedgerGrowth) -> None:
        """Raises RefusedError (`STALE_LEDGER`) where the root's ledger is not one that grew from
        what was told before."""
        with self._lock:
            known = self._hashes[since.number] if since.number < len(self._hashes) else None
            told = self._entries[since.number : since.number + len(growth.entries_sha256)]
            if known != since.head or list(growth.entries_sha256[: len(told)]) != told:
                raise refused(
                    Refusal.STALE_LEDGER,
                    "the root's ledger does not follow from what this leaf was told of it",
                    _REMEDY,
                )
            for entry in growth.entries_sha256[len(told) :]:
                self._entries.append(entry)
                self._hashes.append(next_hash(self._hashes[-1], entry))

    def growth(self, since: LedgerHead) -> LedgerGrowth:
        """Growth of all that was told. Raises RefusedError as `LeafAggregator.growth`."""
        with self._lock:
            if since.number >= len(self._hashes) or len(self._entries) == 0:
                cause = (
                    f"this leaf was told {len(self._entries)} entries of the root's ledger, you "
                    f"have seen {since.number}"
                )
                raise refused(
                    Refusal.BUSY,
                    cause,
                    (
                        "Ask again when the root has called it; if it never does, the root's "
                        "ledger went back."
                    ),
                )
            if self._hashes[since.number] != since.head:
                cause = (
                    f"the root's ledger does not hold the {since.number} entries that were seen "
                    "of it"
                )
                raise refused(Refusal.STALE_LEDGER, cause, _REMEDY)
            new = tuple(self._entries[since.number : since.number + ENTRIES_AT_ONCE])
            reached = since.number + len(new)
            return LedgerGrowth(
                LedgerHead(reached, self._hashes[reached]), new, more=reached < len(self._entries)
            )


_REMEDY = (
    "Restore the newest backup of the root's ledger. Where that is gone for good, start every "
    "leaf anew."
)
