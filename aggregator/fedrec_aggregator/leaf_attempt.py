"""One attempt of a root over all its leaves: which were opened, which lost it, whose frozen sums
are held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock

from fedrec.errors import FedRecError, RefusedError, UnreachableError
from fedrec.federation.leaves import LeafStanding, PartialSums, read_partial
from fedrec.federation.messages import BlockSpec
from fedrec.federation.protocol import Opening, Refusal
from fedrec.privacy.calibration import Plan
from fedrec_aggregator.leaf_visits import LeafVisits, ListedLeaf, distrusted


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
        mine, opening = self.parts[leaf.name], self.opening
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
        mine, opening = self.parts[leaf.name], self.opening
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
