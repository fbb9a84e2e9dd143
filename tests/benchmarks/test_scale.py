"""A sample of parts: everybody is counted, every other task sees the sample alone, and time is that
of all parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.planted_parts import PlantedSource, planted_data
from benchmarks.scale import Sampled, of_all_parts
from fedrec.data.planted import SHAPES, planted
from fedrec.run.partitions.methods import CountTask
from fedrec.run.partitions.parts import PartSplit
from fedrec.settings import load


@dataclass
class Seen:
    """Which parts were mapped."""

    parts: tuple[int, ...]

    def merge(self, other: Seen) -> None:
        self.parts += other.parts


@dataclass(frozen=True)
class SeenTask:
    def map(self, part: PartSplit) -> Seen:
        return Seen((part.index,))


def test_a_sample_counts_everybody_and_maps_other_tasks_on_its_own_parts(tmp_path: Path) -> None:
    chosen = load(None, [f'data.path="{tmp_path / "parts"}"'])
    source = PlantedSource(chosen, cache_bytes=0, world=planted_data(SHAPES["small"], 1, 6))
    engine = Sampled(source, (1, 4))
    told = list[tuple[int, int]]()
    sizes = engine.reduce(CountTask(), lambda done, of: told.append((done, of)))
    assert (sizes.users, sizes.train + sizes.validation + sizes.test) == (300, 7_500)
    assert told[-1] == (6, 6)
    assert engine.reduce(SeenTask(), lambda done, of: None).parts == (1, 4)
    assert engine.reduce(SeenTask(), lambda done, of: None, only=3).parts == (3,)
    assert [(done["task"], done["parts"]) for done in engine.passes] == [
        ("CountTask", 6),
        ("SeenTask", 2),
    ]


def test_parts_planted_where_they_are_read_hold_all_users_each_another_on_the_planted_items() -> (
    None
):
    data = planted_data(SHAPES["small"], 1, 7)
    parts = [data.read_part(index) for index in range(7)]
    before = planted(SHAPES["small"], seed=1)
    numbers = np.concatenate([part.numbers for part in parts])
    np.testing.assert_array_equal(numbers, np.arange(300))
    assert [len(part.events) for part in parts] == [file.events for file in data.parts]
    assert data.events == 7_500
    assert len({part.events.user_ptr.tobytes() for part in parts}) == 7
    assert len({part.events.items[:5].tobytes() for part in parts}) == 7
    assert data.titles == before.catalogue.titles
    # items that many met in one world are those that many met in the other
    counts = [
        np.bincount(events.items, minlength=120)
        for events in (data.whole().interactions, before.interactions)
    ]
    assert np.corrcoef(*counts)[0, 1] > 0.9


def test_time_of_all_parts_takes_each_pass_as_often_as_there_are_parts() -> None:
    passes = [{"core_s": 12.0, "parts": 6}, {"core_s": 4.0, "parts": 2}]
    # 5 s between passes, 2 s a part in each of two passes over 6
    assert of_all_parts(21.0, passes, 6) == pytest.approx(5 + 12 + 12)
