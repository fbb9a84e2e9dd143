"""Jumps of a machine's clock, seen by a process that runs: what the clock shows beside how long it
has been since it was read before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

LEAST_S = 3_600.0
"""A smaller step is a correction."""


def steady() -> float:
    """Seconds that nobody sets, and that pass while the machine sleeps too, where the system counts
    those (Linux)."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True)
class ClockJump:
    """Unix time that the clock should have shown, and what it did."""

    expected_s: float
    now_s: float


@dataclass
class Clocks:
    """Two clocks of a machine, beside each other. `steady` never goes back."""

    clock: Callable[[], float] = time.time
    steady: Callable[[], float] = steady
    _apart_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._apart_s = self.clock() - self.steady()

    def jump(self) -> ClockJump | None:
        """What happened since the last look; each jump is told once."""
        now_s = self.clock()
        passed_s = self.steady()
        found = ClockJump(self._apart_s + passed_s, now_s)
        self._apart_s = now_s - passed_s
        return found if abs(found.now_s - found.expected_s) > LEAST_S else None
