"""Three parties with leaves under faults: the world of `three_aggregators` with a root and two
leaves in place of each aggregator, whose every process may end, and every message be lost.

What must hold is the same: each round leaves as the exact sum of a set of users of the stated size
and three noises, once, charged once by each root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fedrec.federation.leaves import even_ranges
from fedrec.randomness import Streams
from fedrec_aggregator.leaf_visits import ListedLeaf
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.limits import Limits
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_aggregator.three_party_leaf import LeafOfThreeAggregator
from fedrec_aggregator.three_party_root import RootOfThreeAggregator
from fedrec_client.leaves_of_three import LeavesOfThree
from fedrec_simulations.faults.three_aggregators import NAMES, Way, World
from fedrec_simulations.faults.three_party_verdict import PLACES

RANGES = even_ranges(2)

T = TypeVar("T")
R = TypeVar("R")


class InOrder:
    """In place of a root's threads, so that a seed says what happens."""

    def map(self, work: Callable[[T], R], of: Iterable[T]) -> list[R]:
        """One after the other."""
        return [work(each) for each in of]

    def shutdown(self) -> None:
        """There is none."""


def process(place: int, number: int) -> int:
    """Of the leaf of a range at a party; 0 to 2 are the roots."""
    return PLACES + len(RANGES) * place + number


class TreesWorld(World):
    """As `World`."""

    processes, called = PLACES * (1 + len(RANGES)), "three roots of two leaves each"

    def core(self, place: int, ledger: ReleaseLedger) -> ThreePartyAggregator:
        """A root, or a leaf."""
        times: dict[str, Any] = {"clock": self.clock.of("any"), "sleep": self.sleep}
        if place < PLACES:
            roots: dict[int, Any] = {
                i: Way(self, i, caller=place) for i in range(PLACES) if i != place
            }
            leaves = [
                ListedLeaf(str(k), self._leaf_way(place, k), one) for k, one in enumerate(RANGES)
            ]
            of: dict[str, Any] = {"place": place, "names": NAMES, "peers": roots, "leaves": leaves}
            root = RootOfThreeAggregator(
                ledger, Limits(min_cohort=2), noise=Streams(0), patience_s=4.0, **of, **times
            )
            root._visits._threads.shutdown()
            root._visits._threads = InOrder()  # type: ignore[assignment]
            return root
        party, number = divmod(place - PLACES, len(RANGES))
        sisters: dict[int, Any] = {
            i: Way(self, process(i, number), caller=party) for i in range(PLACES) if i != party
        }
        names = leaf_names(number)
        own: dict[str, Any] = {"name": str(number), "range": RANGES[number], "place": party}
        return LeafOfThreeAggregator(ledger, Limits(), names=names, peers=sisters, **own, **times)

    def sleep(self, seconds: float) -> None:
        """As `World.sleep`. A process that is down comes back with time: clients wait for a root
        that none of them calls."""
        for machine in self.machines:
            machine.missed = max(0, machine.missed - 1)
        super().sleep(seconds)

    def _leaf_way(self, place: int, number: int) -> Any:
        return Way(self, process(place, number), of_root=True)

    def way(self, sender: str) -> LeavesOfThree:
        """Of a client to the leaves of every party and range."""
        endpoints: list[list[Any]] = [
            [Way(self, process(place, k), sender=sender) for k in range(len(RANGES))]
            for place in range(PLACES)
        ]
        names = [[leaf_names(k)[place] for k in range(len(RANGES))] for place in range(PLACES)]
        times: dict[str, Any] = {"clock": self.clock.of("any"), "sleep": self.sleep}
        return LeavesOfThree.of(RANGES, endpoints, names, patience_s=0.5, **times)


def leaf_names(number: int) -> list[bytes]:
    """Of the three leaves of a range."""
    return [name + bytes([number]) for name in NAMES]
