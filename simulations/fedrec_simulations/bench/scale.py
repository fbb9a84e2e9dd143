"""What a training on a billion ratings takes: one whole pass over parts that are planted where they
are read, every other pass over a sample of them, and the time of all parts from that.

The run is that of `fedrec simulate --runtime partitions`: rounds, baselines, references, evaluation
and report. Its model has learned from the sample alone and is thrown away. Nothing is kept of a
part, since of a billion ratings a cache holds a few parts in a hundred.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedrec.data.planted import SHAPES
from fedrec.run.data.partitioning import partition
from fedrec.run.partitions.baselines import CountTask
from fedrec.run.partitions.parts import Parts
from fedrec.run.partitions.protocol import PartTask, Told, merged
from fedrec.run.partitions.rounds import RoundTask
from fedrec.run.partitions.run import run as run_over
from fedrec.run.runtime_choice import RuntimeChoice
from fedrec.settings import Scenario, load
from fedrec_simulations.experiments.progress import Progress, Tell
from fedrec_simulations.experiments.rows import peak_rss_mb, table

PEOPLE = 100 * SHAPES["ml10m"].users
PEOPLE_IN_PART = 5_460
"""As 1,280 parts of a billion ratings have."""
SAMPLE = 8


@dataclass
class Sampled:
    """An engine that counts all parts and maps any other task on `sample` alone; see
    `protocol.Engine`. passes: the core seconds of each."""

    source: Parts
    sample: Sequence[int]
    passes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def parts(self) -> int:
        """See `protocol.Engine`."""
        return len(self.source.data.parts)

    def reduce(self, task: PartTask, told: Told, *, only: int | None = None) -> Any:
        """See `protocol.Engine`; of the sample, unless parts are counted."""
        if only is not None:
            return task.map(self.source.read(only))
        name = task.question.step if isinstance(task, RoundTask) else type(task).__name__
        asked = range(self.parts) if isinstance(task, CountTask) else self.sample
        if name not in {done["task"] for done in self.passes}:
            task.map(self.source.read(asked[0]))  # kernels are compiled, and what they need is read
        total, started, reading = None, time.process_time(), 0.0
        for done, index in enumerate(asked, start=1):
            before = time.process_time()
            part = self.source.read(index)
            reading += time.process_time() - before
            total = merged(total, task.map(part))
            told(done, len(asked))
        core_s = time.process_time() - started
        self.passes.append(
            {"task": name, "parts": len(asked), "core_s": core_s, "reading_s": reading}
        )
        return total

    def close(self) -> None:
        """See `protocol.Engine`."""


def run(*, users: Sequence[int], quick: bool, tell: Tell) -> dict[str, Any]:
    """A row for each number of people; 143 ratings each, 10,677 items, epsilon 5."""
    rows, asked = list[dict[str, Any]](), list(users) or [30_000 if quick else PEOPLE]
    for people in asked:
        rows.append(_row(people, 2 if quick else SAMPLE))
        tell(Progress(f"{people} people", len(rows), len(asked)))
    header = ["people", "parts", "of which mapped in a pass", "core s, all parts", "peak MB"]
    lines = [
        [
            f"{row['people']:,}",
            f"{row['parts']:,}",
            str(row["sample"]),
            f"{row['train']['core_s']:,.0f}",
            f"{row['train']['peak_mb']:,.0f}",
        ]
        for row in rows
    ]
    return {"rows": rows, "table": table(header, lines)}


def _row(people: int, sample: int) -> dict[str, Any]:
    shape = SHAPES["ml10m"]
    sizes = {"users": people, "items": shape.items, "events": people * shape.events // shape.users}
    parts = max(people // PEOPLE_IN_PART, sample)
    with TemporaryDirectory(prefix="fedrec-scale-") as folder:
        root, started = Path(folder), time.process_time()
        words = [f"data.planted.{name}={number}" for name, number in sizes.items()]
        partition(
            load(None, words), str(root / "parts"), parts=parts, resume=False, where_read=True
        )
        chosen = load(None, [f'data.path="{root / "parts"}"', f'run.directory="{root / "runs"}"'])
        engine = _engine(chosen, parts, sample)
        run_over(
            chosen, name="scale", choice=RuntimeChoice("partitions"), quiet=True, opened=engine
        )
        core_s = time.process_time() - started
    passes = engine.passes
    return {
        "ratings": sizes["events"],
        "people": people,
        "parts": parts,
        "sample": sample,
        "train": {
            "core_s": of_all_parts(core_s, passes, parts),
            "measured_core_s": core_s,
            "peak_mb": peak_rss_mb(),
            "rounds": sum(1 for done in passes if "/" in done["task"]),
            "evaluated": True,
            "extrapolated": sample < parts,
        },
        "passes": _by_task(passes),
    }


def of_all_parts(core_s: float, passes: Sequence[dict[str, Any]], parts: int) -> float:
    """What a run of `core_s` core seconds, with these passes in it, would take if each pass mapped
    all parts."""
    return core_s + float(sum(done["core_s"] * (parts / done["parts"] - 1) for done in passes))


def _engine(scenario: Scenario, parts: int, sample: int) -> Sampled:
    spread = [parts * (2 * number + 1) // (2 * sample) for number in range(sample)]
    return Sampled(Parts(scenario, cache_bytes=0), spread)


def _by_task(passes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Core seconds of a part, by task: planting it again included."""
    found = list[dict[str, Any]]()
    for name in dict.fromkeys(done["task"] for done in passes):
        same = [done for done in passes if done["task"] == name]
        mapped = sum(done["parts"] for done in same)
        found.append(
            {
                "task": name,
                "passes": len(same),
                "parts": same[0]["parts"],
                "core_s_a_part": sum(done["core_s"] for done in same) / mapped,
                "of_which_planting": sum(done["reading_s"] for done in same) / mapped,
            }
        )
    return found
