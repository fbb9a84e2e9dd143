"""A finished study, as the page and its claims read it: means, and differences of two systems on
the same seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrec.data.kinds import KINDS, Kind
from fedrec.evaluation.intervals import Interval, interval, paired
from fedrec.privacy.guarantee import Guarantee
from fedrec_research.study.systems import LIKES, SYSTEMS, Group, Origin, System
from fedrec_research.study.training import METRICS
from fedrec_research.trials import Row


@dataclass(frozen=True)
class Study:
    """What `measure.run` wrote for one data set; a cell for every system and epsilon."""

    name: str
    kind: Kind
    sizes: Mapping[Group, Mapping[str, int]]
    cells: Mapping[tuple[str, float], Row]
    missing: Mapping[str, str]
    seconds: float
    notes: tuple[str, ...] = ()
    """What a reader must know of how the rows were made, where it is not how they would be made
    now."""

    @staticmethod
    def of(*parts: Mapping[str, Any]) -> Study:
        """From the JSON of one data set, in one file or several: groups may have other seeds.

        Raises ValueError where private cells differ in unit or neighbours: their epsilons would not
        compare.
        """
        cells = {
            (cell["system"], float(cell["epsilon"])): cell
            for part in parts
            for cell in part["cells"]
        }
        promised = {
            (cell["guarantee"]["unit"], cell["guarantee"]["neighbours"], cell["guarantee"]["delta"])
            for cell in cells.values()
        }
        if len(promised) > 1:
            raise ValueError(f"epsilons of different guarantees in one study: {sorted(promised)}")
        data = parts[0]["data"]
        sizes = {group: size for part in parts for group, size in part["data"]["sizes"].items()}
        missing = {name: cause for part in parts for name, cause in part["missing"].items()}
        notes = tuple(dict.fromkeys(part["note"] for part in parts if part.get("note")))
        return Study(
            data["name"],
            data["kind"],
            sizes,
            cells,
            missing,
            sum(part["seconds"] for part in parts),
            notes,
        )

    @property
    def metric(self) -> str:
        """That decides who is ahead."""
        return METRICS[self.kind][0]

    @property
    def likes(self) -> bool:
        """Whether its clicks are ratings of 4 or more."""
        return self.name.endswith(LIKES)

    @property
    def lower_is_better(self) -> bool:
        """Whether a lower value of the metric is better."""
        return KINDS[self.kind].rated

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Epsilons of systems with a budget, the smallest first."""
        found = {
            epsilon for name, epsilon in self.cells if self.system(name).origin != "not private"
        }
        return tuple(sorted(found))

    @property
    def promise(self) -> Guarantee:
        """Unit, neighbours and delta of every cell, at the first one's epsilon."""
        first = next(iter(self.cells.values()))["guarantee"]
        return Guarantee(**{**first, "epsilon": float(first["epsilon"])})

    @property
    def seeds(self) -> Mapping[Group, int]:
        """By group that has cells, the most seeds of any."""
        found = defaultdict[Group, int](int)
        for (name, _), cell in self.cells.items():
            group = self.system(name).group
            found[group] = max(found[group], len(cell["seeds"]))
        return dict(found)

    def system(self, name: str) -> System:
        """Return the system of this name from the tables in `systems`."""
        return SYSTEMS[self.kind][name]

    def systems(self, group: Group, *origins: Origin) -> list[System]:
        """Those with a cell, in the tables' order."""
        there = {name for name, _ in self.cells}
        return [
            s
            for s in SYSTEMS[self.kind].values()
            if s.name in there and s.group == group and s.origin in origins
        ]

    def mean(self, name: str, epsilon: float, metric: str = "") -> Interval | None:
        """Over seeds; None where there is no such cell.

        A reference has the same at every epsilon."""
        cell = self._cell(name, epsilon)
        return None if cell is None else interval(cell[metric or self.metric])

    def gain(self, ours: str, theirs: str, epsilon: float) -> Interval | None:
        """By how much `ours` is better (above zero), over the seeds that both have; None where they
        share none."""
        pair = [self._by_seed(name, epsilon) for name in (ours, theirs)]
        shared = sorted(pair[0].keys() & pair[1].keys())
        if not shared:
            return None
        first, second = ([values[seed] for seed in shared] for values in pair)
        return paired(second, first) if self.lower_is_better else paired(first, second)

    def leads(
        self, ours: str, rivals: Sequence[System], epsilon: float
    ) -> list[tuple[System, Interval]]:
        """The gain over each rival that was measured, the closest rival first."""
        found = [(rival, self.gain(ours, rival.name, epsilon)) for rival in rivals]
        return sorted(
            ((rival, gain) for rival, gain in found if gain is not None),
            key=lambda pair: pair[1].mean,
        )

    def _cell(self, name: str, epsilon: float) -> Row | None:
        known = SYSTEMS[self.kind].get(name)
        return self.cells.get(
            (name, math.inf if known and known.origin == "not private" else epsilon)
        )

    def _by_seed(self, name: str, epsilon: float) -> dict[int, float]:
        cell = self._cell(name, epsilon)
        return {} if cell is None else dict(zip(cell["seeds"], cell[self.metric], strict=True))
