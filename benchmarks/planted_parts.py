"""Planted parts that are written nowhere: whoever reads a part plants it, from the seed and the
part's number alone.

Items are the same for all parts. Part i holds consecutive users, drawn from streams of that part:
the same bytes on any machine, in any order, and never more than one part in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedrec.data.interactions import Provenance, ReadReport
from fedrec.data.keyed_hash import id_words
from fedrec.data.kinds import KINDS
from fedrec.data.partitions import Part, PartFile, PartitionedData, Place
from fedrec.data.planted import PlantedShape, planted_items, planted_part
from fedrec.data.planted_items import PlantedItems
from fedrec.run.partitions.parts import Parts


def _first_user(shape: PlantedShape, parts: int, index: int) -> int:
    """The number of a part's first user; of the part after the last, the number of users."""
    return shape.users * index // parts


def _shape_of(shape: PlantedShape, parts: int, index: int) -> PlantedShape:
    """Shape of one part: its share of users and, up to one, of events."""
    ends = [_first_user(shape, parts, index + side) for side in (0, 1)]
    events = [shape.events * end // shape.users for end in ends]
    return replace(shape, users=ends[1] - ends[0], events=events[1] - events[0])


@dataclass(frozen=True)
class PlantedData(PartitionedData):
    """A world of `shape`, whose parts have no files."""

    shape: PlantedShape
    items: PlantedItems
    seed: int

    def _part(self, index: int) -> tuple[Part, tuple[str, ...]]:
        count = len(self.parts)
        first = _first_user(self.shape, count, index)
        own = _shape_of(self.shape, count, index)
        numbers = np.arange(first, first + own.users, dtype=np.int64)
        events = planted_part(own, self.items, seed=self.seed, part=index)
        ids = tuple(str(number + 1) for number in numbers.tolist())
        events = replace(events, user_words=id_words(ids), item_words=self.item_words)
        return Part(numbers, events, None, None), ids


def planted_data(shape: PlantedShape, seed: int, parts: int) -> PlantedData:
    """The world in so many parts."""
    items = planted_items(shape, seed=seed)
    files = tuple(
        PartFile(f"part-{index:05d}, planted", part.users, part.events, 0, "")
        for index, part in enumerate(_shape_of(shape, parts, index) for index in range(parts))
    )
    ids = tuple(str(j + 1) for j in range(shape.items))
    note = f"planted with seed {seed} in {parts} parts where they are read: {shape}"
    provenance = Provenance("planted", (), ReadReport(shape.events, shape.events, notes=(note,)))
    return PlantedData(
        Place(""), shape.kind, KINDS[shape.kind].scale(shape.value_range), shape.users, ids,
        items.titles, items.features, id_words(ids), files, provenance, True, (),
        shape, items, seed,
    )  # fmt: skip


@dataclass
class PlantedSource(Parts):
    """The parts of a planted world, divided as the scenario says."""

    world: PlantedData | None = None

    @cached_property
    def data(self) -> PartitionedData:
        """The world."""
        assert self.world is not None
        return self.world
