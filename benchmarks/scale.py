"""A training on a billion ratings.

One whole pass over parts that are planted where they are read, every other pass over a sample of
them, and the time of all parts from that. The run is that of `fedrec simulate --runtime
partitions`: rounds, baselines, references, evaluation and report; 143 ratings a person, 10,677
items, epsilon 5. Its model has learned from the sample alone and is thrown away. Nothing is kept of
a part, since of a billion ratings a cache holds a few parts in a hundred. `--users` says how many
people.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measuring import memory_mb
from benchmarks.planted_parts import PlantedSource, planted_data
from benchmarks.results import Row, Tables
from fedrec.data.planted import SHAPES
from fedrec.run.data.datasets import planted_shape
from fedrec.run.job import RuntimeChoice
from fedrec.run.partitions.methods import CountTask, RoundTask
from fedrec.run.partitions.parts import InThisProcess, PartTask, Told, merged
from fedrec.run.partitions.run import run as run_over
from fedrec.settings import load

PEOPLE_IN_PART = 5_460
"""As 1,280 parts of a billion ratings have."""


@dataclass
class Sampled(InThisProcess):
    """An engine that counts all parts and maps any other task on `sample` alone; see
    `protocol.Engine`. passes: the core seconds of each."""

    sample: Sequence[int]
    passes: list[Row] = field(default_factory=list)

    def reduce(self, task: PartTask, told: Told, *, only: int | None = None) -> Any:
        """See `protocol.Engine`; of the sample, unless parts are counted."""
        if only is not None:
            return task.map(self.source.read(only))
        name = task.question.step if isinstance(task, RoundTask) else type(task).__name__
        asked = range(self.parts) if isinstance(task, CountTask) else self.sample
        if name not in {done["task"] for done in self.passes}:
            task.map(self.source.read(asked[0]))  # kernels are compiled, and what they need is read
        total = None
        reading = 0.0
        started = time.process_time()
        for done, index in enumerate(asked, start=1):
            before = time.process_time()
            part = self.source.read(index)
            reading += time.process_time() - before
            total = merged(total, task.map(part))
            told(done, len(asked))
        core_s = time.process_time() - started
        row = {"task": name, "parts": len(asked), "core_s": core_s, "reading_s": reading}
        self.passes.append(row)
        return total


def run(*, quick: bool, users: Sequence[int] = ()) -> Tables:
    """A row for each number of people, and the passes of the last."""
    rows = list[Row]()
    for people in users or [1_000 if quick else 100 * SHAPES["ml10m"].users]:
        row, passes = _trained(people, 2 if quick else 8)
        rows.append(row)
    return {"Trainings": rows, "Core seconds of a part": list(_by_task(passes))}


def _trained(people: int, sample: int) -> tuple[Row, list[Row]]:
    shape = SHAPES["ml10m"]
    items = min(shape.items, people)
    sizes = {"users": people, "items": items, "events": people * shape.events // shape.users}
    parts = max(people // PEOPLE_IN_PART, sample)
    with TemporaryDirectory(prefix="fedrec-scale-") as folder:
        path = f"{folder}/parts"
        started = time.process_time()
        words = [f"data.planted.{name}={number}" for name, number in sizes.items()]
        asked = load(None, words)
        world = planted_data(planted_shape(asked.data), asked.seed, parts)
        chosen = load(None, [f'data.path="{path}"', f'run.directory="{Path(folder) / "runs"}"'])
        spread = [parts * (2 * number + 1) // (2 * sample) for number in range(sample)]
        engine = Sampled(PlantedSource(chosen, cache_bytes=0, world=world), spread)
        run_over(
            chosen, name="scale", choice=RuntimeChoice("partitions"), quiet=True, opened=engine
        )
        core_s = time.process_time() - started
    row: Row = {
        "ratings": sizes["events"],
        "people": people,
        "parts": parts,
        "mapped_in_a_pass": sample,
        "core_s_of_all_parts": of_all_parts(core_s, engine.passes, parts),
        "core_s_measured": core_s,
        "peak_mb": memory_mb(peak=True),
    }
    return row, engine.passes


def of_all_parts(core_s: float, passes: Sequence[Row], parts: int) -> float:
    """What a run of `core_s` core seconds, with these passes in it, would take if each pass mapped
    all parts."""
    return core_s + float(sum(done["core_s"] * (parts / done["parts"] - 1) for done in passes))


def _by_task(passes: Sequence[Row]) -> Iterator[Row]:
    """Core seconds of a part, by task: planting it again included."""
    for name in dict.fromkeys(done["task"] for done in passes):
        same = [done for done in passes if done["task"] == name]
        mapped = sum(done["parts"] for done in same)
        yield {
            "task": name,
            "passes": len(same),
            "parts": same[0]["parts"],
            "core_s_a_part": sum(done["core_s"] for done in same) / mapped,
            "of_which_planting": sum(done["reading_s"] for done in same) / mapped,
        }
