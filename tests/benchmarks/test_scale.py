"""A sample of parts: everybody is counted, every other task sees the sample alone, and time is that
of all parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.scale import Sampled, of_all_parts
from fedrec.run.data.describing import partition
from fedrec.run.partitions.methods import CountTask
from fedrec.run.partitions.parts import Parts, PartSplit
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
    small = load(None, ["data.preset=small"])
    partition(small, str(tmp_path / "parts"), parts=6, resume=False, where_read=True)
    source = Parts(load(None, [f'data.path="{tmp_path / "parts"}"']), cache_bytes=0)
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


def test_time_of_all_parts_takes_each_pass_as_often_as_there_are_parts() -> None:
    passes = [{"core_s": 12.0, "parts": 6}, {"core_s": 4.0, "parts": 2}]
    # 5 s between passes, 2 s a part in each of two passes over 6
    assert of_all_parts(21.0, passes, 6) == pytest.approx(5 + 12 + 12)
