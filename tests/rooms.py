"""Processor time of each room of the tests (a folder of tests/) beside its budget.

A test's time is that of its process and of the children that ended in it, from its setup to its
teardown: waiting costs nothing here, and neither does what other programs do meanwhile. Before each
file a fixed loop is timed, and seconds are divided by the loop's: so a slow or a busy machine shows
about the seconds of the machine on which LOOP_S was measured. Still nothing fails by them: a room
over its budget is a warning line. That all budgets together fit into the time of `make test` is
compared by tests/test_architecture.py.
"""

import math
import os
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

BUDGETS = Path(__file__).with_name("budgets.toml")
PART = os.environ.get("FEDREC_ROOMS", "")
"""The table of budgets.toml that this run is compared with; without it nothing is shown."""
LOOP_S = 0.006
"""Processor time of `_loop` on the machine of the budgets (two quiet cores)."""

_seconds = defaultdict[str, float](float)
_tests = defaultdict[str, int](int)
_begun_s = 0.0
_file = ""
_slowness = 1.0


def room_of(nodeid: str) -> str:
    """The folder of a test within tests/; `tests` where it lies in none."""
    room, inner, _ = nodeid.partition("::")[0].removeprefix("tests/").partition("/")
    return room if inner else "tests"


def budgets(part: str) -> dict[str, float]:
    """Seconds of each room of this part; none where it has no budgets yet."""
    rooms = tomllib.loads(BUDGETS.read_text()).get(part, {})
    return {room: float(most) for room, most in rooms.items()}


def _processor_s() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _loop() -> float:
    """Seconds of the fixed loop: dictionaries, calls and integers, as most of a test is."""
    begun_s = time.process_time()
    seen = dict[int, int]()
    for k in range(30_000):
        seen[k * 7919 % 1009] = hash((k, len(seen)))
    return time.process_time() - begun_s


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The loop where a file begins, then the clock of the test."""
    global _begun_s, _file, _slowness
    if (file := item.nodeid.partition("::")[0]) != _file:
        _file = file
        _slowness = _loop() / LOOP_S
    _begun_s = _processor_s()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Any:
    """The test's seconds go to whoever collects reports: with xdist another process."""
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor_s", (_processor_s() - _begun_s) / _slowness))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a test to its room."""
    if report.when == "teardown":
        room = room_of(report.nodeid)
        _tests[room] += 1
        _seconds[room] += sum(
            value for name, value in report.user_properties if name == "processor_s"
        )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table, the dearest room first."""
    if not PART or not _seconds:
        return
    most = budgets(PART)
    terminalreporter.section(f"processor seconds by room (tests/budgets.toml, [{PART}])")
    for room in sorted(_seconds, key=lambda room: -_seconds[room]):
        limit = most.get(room, 0.0 if most else math.inf)
        row = f"{room:28} {_seconds[room]:7.1f} of {limit:5.0f}  {_tests[room]:5} tests"
        over = _seconds[room] > limit
        terminalreporter.line(row + ("  WARNING: over its budget" if over else ""), yellow=over)
    total = sum(_seconds.values())
    limit = sum(most.values()) if most else math.inf
    terminalreporter.line(f"{'together':28} {total:7.1f} of {limit:5.0f}")
