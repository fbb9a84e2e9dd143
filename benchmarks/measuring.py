"""Times and memory that can be compared: forms take turns, and each keeps its least disturbed one;
what processes use is read from the system."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Row

_PAUSE_S = 0.02  # OpenMP threads of the form before spin for a while, on our cores
_MOST_S = 6.0
"""A form that has used this much takes no further turn: on a busy machine threaded peers can be a
hundred times slower."""


@dataclass
class Took:
    """The least of wall seconds, and of processor seconds of all threads of this process, over
    turns."""

    wall_s: float = math.inf
    cpu_s: float = math.inf

    def time(self, call: Callable[[], object]) -> float:
        """Wall seconds of one call, which counts."""
        cpu = time.process_time()
        wall = time.perf_counter()
        call()
        wall = time.perf_counter() - wall
        self.wall_s = min(self.wall_s, wall)
        self.cpu_s = min(self.cpu_s, time.process_time() - cpu)
        return wall


def fastest(forms: Mapping[str, Callable[[], object]], *, turns: int) -> dict[str, Took]:
    """Return the fastest time of each form, after one untimed call of each; turns alternate, so
    that a busy minute hits all."""
    for call in forms.values():
        call()
    best = {name: Took() for name in forms}
    used = dict.fromkeys(forms, 0.0)
    for _ in range(turns):
        for name, call in forms.items():
            if used[name] <= _MOST_S:
                time.sleep(_PAUSE_S)
                used[name] += best[name].time(call)
    return best


def compared(best: Mapping[str, Took], ours: str, **more: str | float) -> list[Row]:
    """A row for each form: milliseconds, and how many times those of `ours`."""
    return [
        {
            **more,
            "form": name,
            "ms": 1e3 * took.wall_s,
            "over_ours": took.wall_s / best[ours].wall_s,
        }
        for name, took in best.items()
    ]


def memory_mb(pid: int | str = "self", *, peak: bool = False) -> float:
    """Resident memory of a process now, or the most that it held at once; nan where the system does
    not say. Not `ru_maxrss`: Linux hands that down from the parent."""
    try:
        said = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return math.nan
    found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+)", said)
    return int(found.group(1)) / 1024 if found else math.nan


def processor_s(pid: int | str = "self") -> float:
    """Processor time of a process so far; nan where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
