"""Planted partitions that are written nowhere: whoever reads a part plants it, from the seed and
the part's number alone.

The manifest says shape, seed and number of parts. Items are the same for all parts. Part i holds
consecutive users, drawn from streams of that part: the same bytes on any machine, in any order, and
never more than one part in memory. It is another world than `planted.planted` draws with the same
seed, whose users are drawn from one stream.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedrec.arrays import Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.planted import PlantedShape, planted_items, planted_part
from fedrec.data.planted_items import PlantedItems
from fedrec.errors import DataError

FORMAT = "fedrec-planted-parts/1"


@dataclass(frozen=True)
class PlantedParts:
    """A world of `shape` in so many parts."""

    shape: PlantedShape
    seed: int
    parts: int

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= self.shape.users:
            raise ValueError(
                f"{self.shape.users} users do not fill {self.parts} parts, each with one at least"
            )

    def first_user(self, index: int) -> int:
        """The number of the part's first user; of the part after the last, the number of users."""
        return self.shape.users * index // self.parts

    def shape_of(self, index: int) -> PlantedShape:
        """Shape of one part: its share of users and, up to one, of events."""
        ends = [self.first_user(index), self.first_user(index + 1)]
        events = [self.shape.events * end // self.shape.users for end in ends]
        return replace(self.shape, users=ends[1] - ends[0], events=events[1] - events[0])

    @property
    def items(self) -> PlantedItems:
        """The items of all parts."""
        return _items(self.shape, self.seed)

    def read(self, index: int) -> tuple[Int64s, Interactions]:
        """Numbers of the part's users, and their events, without hashes of ids."""
        numbers = np.arange(self.first_user(index), self.first_user(index + 1), dtype=np.int64)
        return numbers, planted_part(self.shape_of(index), self.items, seed=self.seed, part=index)

    def manifest(self) -> dict[str, Any]:
        """What `opened` reads."""
        return {
            "format": FORMAT,
            "shape": asdict(self.shape),
            "seed": self.seed,
            "parts": self.parts,
            "items_sha256": _digest(self.items),
        }


def opened(told: dict[str, Any], name: str) -> PlantedParts:
    """What a manifest describes. name: of the manifest, for errors.

    Raises DataError where this machine plants other items, ValueError, KeyError or TypeError where
    it is no such manifest."""
    shape = told["shape"] | {"value_range": tuple(told["shape"]["value_range"])}
    made = PlantedParts(PlantedShape(**shape), int(told["seed"]), int(told["parts"]))
    if _digest(made.items) != told["items_sha256"]:
        raise DataError(
            f"this machine plants other items than {name} describes",
            "Use the releases of numpy and fedrec that wrote it, or make the folder again.",
        )
    return made


@lru_cache(maxsize=1)
def _items(shape: PlantedShape, seed: int) -> PlantedItems:
    return planted_items(shape, seed=seed)


def _digest(items: PlantedItems) -> str:
    found = hashlib.sha256()
    for array in (items.vectors, items.quality, items.popularity):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
