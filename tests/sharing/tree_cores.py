"""Three roots with two leaves each over ledgers on disk, in place of three aggregators
(`three_cores`); any of them may be stopped and started."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.federation.leaves import even_ranges
from fedrec.randomness import Streams
from fedrec_aggregator.leaf_attempt import ListedLeaf
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_aggregator.three_party_root import LeafOfThreeAggregator, RootOfThreeAggregator
from fedrec_client.three_way import LeavesOfThree
from tests.sharing.three_cores import NAMES, PROMISE, SEED, Cores, DownError, Line

RANGES = even_ranges(2)
PLACES = [(place, number) for place in range(3) for number in range(2)]


@dataclass(frozen=True)
class SisterLine(Line):
    """From a leaf to its sister of the same range. number: of the range."""

    number: int = 0

    @property
    def core(self) -> ThreePartyAggregator:
        assert isinstance(self.cores, TreeCores)
        found = self.cores.leaves.get((self.place, self.number))
        if found is None:
            raise DownError
        return found


@dataclass(frozen=True)
class LeafLine:
    """From a root, or a client of that name, to a leaf that may be down."""

    cores: TreeCores
    leaf: tuple[int, int]
    client: str = ""

    def __getattr__(self, call: str) -> Any:
        core = self.cores.leaves.get(self.leaf)
        if core is None:

            def nobody(*asked: object, **named: object) -> None:
                raise DownError

            return nobody
        if call == "freeze":
            return partial(self._frozen, core)
        return getattr(core.share_endpoint(self.client) if self.client else core, call)

    def _frozen(self, core: LeafOfThreeAggregator, *asked: Any, **named: Any) -> bytes:
        return self.cores.on_its_way(self.leaf, core.freeze(*asked, **named))


class TreeCores(Cores):
    """`running` and `ledgers` are the roots'."""

    def __init__(self, folder: Path, **kinds: Any) -> None:
        self.leaves = dict[tuple[int, int], LeafOfThreeAggregator | None]()
        self.leaf_ledgers = dict[tuple[int, int], ReleaseLedger]()
        self.time_s = 0.0
        self.folder = folder
        for leaf in PLACES:
            self.start_leaf(leaf)
        super().__init__(folder, **kinds)

    def on_its_way(self, leaf: tuple[int, int], term: bytes) -> bytes:
        """A frozen term from leaf to root."""
        return term

    def start_leaf(self, leaf: tuple[int, int], *, name: str = "") -> None:
        place, number = leaf
        self.leaf_ledgers[leaf] = ReleaseLedger(
            self.folder / (name or f"leaf-{place}-{number}"), limit=None
        )
        peers = {
            i: SisterLine(self, i, caller=place, number=number) for i in range(3) if i != place
        }
        self.leaves[leaf] = LeafOfThreeAggregator(
            self.leaf_ledgers[leaf],
            Limits(),
            name=f"leaf-{place}-{number}",
            range=RANGES[number],
            place=place,
            names=leaf_names(number),
            peers=peers,
            clock=self.clock,
            sleep=self.sleep,
        )

    def stop_leaf(self, leaf: tuple[int, int]) -> None:
        self.leaves[leaf] = None
        self.leaf_ledgers[leaf].close()

    def restart_leaf(self, leaf: tuple[int, int], *, name: str = "") -> None:
        """name: of another folder, where its own is lost."""
        self.stop_leaf(leaf)
        self.start_leaf(leaf, name=name)

    def start(self, place: int) -> None:
        ledger = self.kind(self.folder / f"aggregator-{place}", limit=PROMISE)
        self.ledgers[place : place + 1] = [ledger]
        peers = {i: Line(self, i, caller=place) for i in range(3) if i != place}
        self.running[place] = RootOfThreeAggregator(
            ledger,
            self.limits,
            noise=Streams(SEED),
            place=place,
            names=NAMES,
            peers=peers,
            leaves=[
                ListedLeaf(
                    f"leaf-{place}-{number}", LeafLine(self, (place, number)), RANGES[number]
                )
                for number in range(2)
            ],
            patience_s=5.0,
            clock=self.clock,
            sleep=self.sleep,
        )

    def stop(self, place: int) -> None:
        root = self.running[place]
        assert isinstance(root, RootOfThreeAggregator)
        root.shut()
        super().stop(place)

    def sleep(self, seconds: float) -> None:
        self.time_s += max(seconds, 0.01)
        for core in [*self.leaves.values(), *self.running]:
            if core is not None:
                core.tick()

    def close(self) -> None:
        for root in self.running:
            if isinstance(root, RootOfThreeAggregator):
                root.shut()
        for ledger in self.leaf_ledgers.values():
            ledger.close()
        super().close()

    def way(self, client: str) -> LeavesOfThree:
        """A client's."""
        endpoints = [[LeafLine(self, (place, k), client) for k in range(2)] for place in range(3)]
        names = [[leaf_names(k)[place] for k in range(2)] for place in range(3)]
        patience = {"patience_s": 2.0, "sleep": self.sleep, "clock": self.clock}
        return LeavesOfThree.of(RANGES, endpoints, names, **patience)  # type: ignore[arg-type]


def leaf_names(number: int) -> list[bytes]:
    return [name + bytes([number]) for name in NAMES]
