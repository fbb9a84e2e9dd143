"""A root's calls to its leaves: all of them at once, what each said last, and how the root's ledger
grew since a leaf was told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fedrec.errors import FedRecError, ProtocolError, RefusedError
from fedrec.federation.leaves import LeafEndpoint, LeafStanding, TokenRange, require_all_once
from fedrec.federation.ledger_heads import REMEDY
from fedrec.federation.protocol import LedgerGrowth, LedgerHead, Refusal
from fedrec.federation.wire import refused
from fedrec.operations import logs
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
        self._ledger, self.leaves = ledger, tuple(leaves)
        self._heard, self._said = dict[str, LeafStanding](), dict[str, str]()
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
                REMEDY,
            ) from None


def distrusted(leaf: ListedLeaf, what: str) -> ProtocolError:
    """What a root raises where a leaf cannot be what it says."""
    return ProtocolError(
        f"leaf {leaf.name!r} {what}",
        "Nothing of it was merged. Compare its settings; do not trust it otherwise.",
    )
