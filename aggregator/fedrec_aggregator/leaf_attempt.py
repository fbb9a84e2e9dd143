"""One attempt of a root over all its leaves: which were opened, which lost it, whose frozen sums
are held.

A root's calls to its leaves: all of them at once, what each said last, and how the root's ledger
grew since a leaf was told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock

from fedrec.errors import FedRecError, ProtocolError, RefusedError, UnreachableError
from fedrec.federation.leaves import (
    LeafEndpoint,
    LeafStanding,
    PartialSums,
    TokenRange,
    read_partial,
    require_all_once,
)
from fedrec.federation.messages import BlockSpec
from fedrec.federation.protocol import RESTORE_LEDGER, LedgerGrowth, LedgerHead, Opening, Refusal
from fedrec.federation.wire import refused
from fedrec.operations import logs
from fedrec.privacy.calibration import Plan
from fedrec_aggregator.ledger import ReleaseLedger

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedLeaf:
    """One leaf as the root's operator lists it. max_users: it may say that have enrolled."""

    name: str
    endpoint: LeafEndpoint
    range: TokenRange
    max_users: int = 2**31


class LeafVisits:
    """All leaves of a root. Any thread may call.

    Raises ValueError where the leaves' ranges do not hold every pseudonym once, or two have one
    name."""

    def __init__(self, ledger: ReleaseLedger, leaves: Sequence[ListedLeaf]) -> None:
        require_all_once([leaf.range for leaf in leaves])
        if len({leaf.name for leaf in leaves}) != len(leaves):
            raise ValueError(
                f"every leaf has a name of its own, found {[leaf.name for leaf in leaves]}"
            )
        self._ledger = ledger
        self.leaves = tuple(leaves)
        self._heard = dict[str, LeafStanding]()
        self._said = dict[str, str]()
        self._threads = ThreadPoolExecutor(len(leaves), "leaves")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    @property
    def enrolled(self) -> int:
        """Users enrolled at all leaves as they were heard last."""
        return sum(standing.enrolled for standing in tuple(self._heard.values()))

    def each(self, ask: Callable[[ListedLeaf], str], leaves: Iterable[ListedLeaf]) -> list[str]:
        """Answers in order; the leaves are asked at once."""
        return list(self._threads.map(ask, leaves))

    def hear_all(self, *, run: str = "", round: int = 0, ended: bool = False) -> None:
        """Visit every leaf; one that does not answer is left for the next time."""

        def heard(leaf: ListedLeaf) -> str:
            try:
                self.visit(leaf, run=run, round=round, ended=ended)
            except FedRecError as failure:
                self.away(leaf, failure)
            return ""

        self.each(heard, self.leaves)

    def visit(
        self, leaf: ListedLeaf, *, run: str = "", round: int = 0, ended: bool = False
    ) -> LeafStanding:
        """The leaf's standing, once it knows all of the ledger. Raises RefusedError
        (`STALE_LEDGER`) where it knows more than there is, ProtocolError where it is not the leaf
        that is listed or does not keep what it is told, UnreachableError."""
        known = self._heard.get(leaf.name)
        since = known.head if known else LedgerHead()
        while True:
            try:
                standing = leaf.endpoint.visit(
                    since, self._grown(since), run=run, round=round, ended=ended
                )
            except RefusedError as failure:
                if failure.code != Refusal.STALE_LEDGER or not since.number:
                    raise
                since = LedgerHead()  # it was started again, and knows nothing
                continue
            if standing.range != leaf.range:
                raise distrusted(leaf, f"owns pseudonyms {standing.range}, listed are {leaf.range}")
            if standing.enrolled > leaf.max_users:
                raise distrusted(
                    leaf,
                    (
                        f"says that {standing.enrolled} users are enrolled, it may have "
                        f"{leaf.max_users}"
                    ),
                )
            at_the_end = standing.head == self._ledger.end()
            if not at_the_end and standing.head.number <= since.number:
                raise distrusted(leaf, "does not keep what it is told of the ledger")
            self._heard[leaf.name] = standing
            if at_the_end:
                self._said.pop(leaf.name, None)
                return standing
            since = standing.head

    def away(self, leaf: ListedLeaf, failure: FedRecError) -> None:
        """Said once, until it answers again or says otherwise: leaves are asked several times a
        second."""
        if self._said.get(leaf.name) != failure.cause:
            self._said[leaf.name] = failure.cause
            logs.say_failure(log, "leaf-away", failure, sender=leaf.name)

    def _grown(self, since: LedgerHead) -> LedgerGrowth:
        try:
            return self._ledger.growth(since)
        except RefusedError as failure:
            raise refused(
                Refusal.STALE_LEDGER,
                f"a leaf was told more of this root's ledger: {failure.cause}",
                RESTORE_LEDGER,
            ) from None


def distrusted(leaf: ListedLeaf, what: str) -> ProtocolError:
    """What a root raises where a leaf cannot be what it says."""
    return ProtocolError(
        f"leaf {leaf.name!r} {what}",
        "Nothing of it was merged. Compare its settings; do not trust it otherwise.",
    )


@dataclass
class LeafPart:
    """A leaf's part of one attempt. standing: as it was heard last; None before it was opened.
    partial: its sums, once they are held. out: it has said that it will have none."""

    standing: LeafStanding | None = None
    partial: PartialSums | None = None
    out: bool = False


@dataclass
class LeafAttempt:
    """frozen_s: when the root began to take sums. turn: one thread asks the leaves at a time."""

    opening: Opening
    visits: LeafVisits
    parts: dict[str, LeafPart] = field(init=False)
    frozen_s: float | None = None
    turn: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.parts = {leaf.name: LeafPart() for leaf in self.visits.leaves}

    @property
    def standings(self) -> list[LeafStanding]:
        """Standings of the leaves that were opened."""
        return [part.standing for part in self.parts.values() if part.standing is not None]

    @property
    def partials(self) -> list[PartialSums]:
        """Whatever is held."""
        return [part.partial for part in self.parts.values() if part.partial is not None]

    def look(self, plan: Plan, left_s: float) -> list[str]:
        """Hear every leaf, and open those that are not yet. Names of leaves that lost what they
        held, since they were started again."""
        said = self.visits.each(lambda leaf: self._look_at(leaf, plan, left_s), self.visits.leaves)
        return [name for name in said if name]

    def take(
        self,
        specs: tuple[BlockSpec, ...],
        check: Callable[[ListedLeaf, PartialSums], None],
    ) -> tuple[list[str], bool]:
        """Hold the sums of every leaf that has them, once `check` passed. Names of leaves that lost
        what they held, and whether there is one to wait for.

        Raises ProtocolError on sums that cannot be a leaf's own."""
        missing = [
            leaf
            for leaf in self.visits.leaves
            if self.parts[leaf.name].partial is None and not self.parts[leaf.name].out
        ]
        said = self.visits.each(lambda leaf: self._take(leaf, specs, check), missing)
        lost = [leaf.name for leaf, word in zip(missing, said, strict=True) if word == "lost"]
        return lost, "away" in said

    def _look_at(self, leaf: ListedLeaf, plan: Plan, left_s: float) -> str:
        """The leaf's name where it was started again since it was opened, else ""."""
        mine = self.parts[leaf.name]
        opening = self.opening
        try:
            standing = self.visits.visit(leaf, run=opening.run, round=opening.round)
            there = (standing.attempt, standing.digest) == (opening.attempt, opening.digest)
            before = mine.standing
            if before is not None and (
                not there or standing.epoch != before.epoch or standing.reported < before.reported
            ):
                return leaf.name
            if not there:
                standing = leaf.endpoint.open(replace(opening, timeout_s=max(left_s, 1e-3)), plan)
            mine.standing = standing
        except FedRecError as failure:
            self.visits.away(leaf, failure)
            # of three parties: a leaf that ended while it was opened begins no attempt twice
            if isinstance(failure, RefusedError) and failure.code == Refusal.ROUND_CLOSED:
                return leaf.name
        return ""

    def _take(
        self,
        leaf: ListedLeaf,
        specs: tuple[BlockSpec, ...],
        check: Callable[[ListedLeaf, PartialSums], None],
    ) -> str:
        """Hold the leaf's sums, once: "". "away": it does not answer, or has none yet; "lost": it
        was started again, and reports with it."""
        mine = self.parts[leaf.name]
        opening = self.opening
        if mine.standing is None:
            return ""  # it was never opened, so it holds nothing
        try:
            content = leaf.endpoint.freeze(
                opening.run,
                opening.round,
                digest=opening.digest,
                attempt=opening.attempt,
                epoch=mine.standing.epoch,
            )
            # after it froze: whoever is in the sums is enrolled now
            now = self.visits.visit(leaf, run=opening.run, round=opening.round)
        except RefusedError as failure:
            if failure.code == Refusal.BUSY:
                return "away"
            if failure.code == Refusal.ROUND_CLOSED:
                self.visits.away(leaf, failure)
                mine.out = True
                return ""
            if failure.code != Refusal.ROUND_UNKNOWN:
                raise
            return "lost"
        except UnreachableError as failure:
            self.visits.away(leaf, failure)
            return "away"
        partial = read_partial(content, specs)
        _require_own(leaf, partial, mine.standing, now, opening)
        check(leaf, partial)
        mine.partial = partial
        return ""


def _require_own(
    leaf: ListedLeaf,
    partial: PartialSums,
    standing: LeafStanding,
    now: LeafStanding,
    opening: Opening,
) -> None:
    asked = opening.run, opening.round, opening.digest, opening.quorum, opening.attempt
    expected = (leaf.name, standing.epoch, *asked)
    found = (
        partial.leaf,
        partial.epoch,
        partial.run,
        partial.round,
        partial.digest,
        partial.quorum,
        partial.attempt,
    )
    if found != expected:
        raise distrusted(leaf, f"sent sums of {found}, asked for were those of {expected}")
    if partial.reported > now.enrolled:
        raise distrusted(
            leaf, f"sent sums of {partial.reported} users, of {now.enrolled} that are enrolled"
        )
