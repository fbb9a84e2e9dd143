"""`fedrec doctor`: is everything in place for these parties to run here? Every examination says
what it found and what to do.

`diagnose` looks at everything, at the other parties too; `preflight` at what is this machine's own
business, before a party starts.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrec.cli.doctor import machine
from fedrec.cli.doctor.machine import Check, judged
from fedrec.cli.doctor.parties import (
    aggregator_checks,
    client_checks,
    device_checks,
    server_checks,
    serving_checks,
)
from fedrec.errors import FedRecError
from fedrec.settings import Scenario
from fedrec.settings import load as load_scenario

MACHINE = "machine"
_MARKS = {"ok": "ok", "doubt": "LOOK", "failure": "FAILS"}


@dataclass(frozen=True)
class Found:
    """All examinations in order."""

    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """Exit code of the first failure; 0 where a run can start."""
        return next((check.exit_code for check in self.checks if check.verdict == "failure"), 0)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"exit_code": self.exit_code, "checks": [asdict(check) for check in self.checks]}


def diagnose(
    *,
    aggregator: Path | None = None,
    client: Path | None = None,
    server: Path | None = None,
    serving: Path | None = None,
    device: Path | None = None,
    scenario: Path | None = None,
    clock: Callable[[], float] = time.time,
    reach: bool = True,
) -> Found:
    """Examine this machine, every party whose settings file is given, and a device's state folder.

    `reach` asks other parties too, for some seconds each.
    """
    of_serving = () if serving is None else serving_checks(serving, clock)
    of_device = () if device is None else device_checks(device, clock)
    return Found(
        (*_checks(aggregator, client, server, scenario, clock, reach), *of_serving, *of_device)
    )


def preflight(
    *,
    aggregator: Path | None = None,
    client: Path | None = None,
    server: Path | None = None,
    scenario: Path | None = None,
) -> None:
    """Raise the first failure of `diagnose` without `reach`, as a FedRecError with its cause,
    remedy and exit code."""
    for check in diagnose(
        aggregator=aggregator, client=client, server=server, scenario=scenario, reach=False
    ).checks:
        if check.verdict == "failure":
            failure = FedRecError(f"{check.party}, {check.name}: {check.words}", check.remedy)
            failure.exit_code = check.exit_code
            raise failure


def table(found: Found) -> str:
    """Table of what was found, for a terminal."""
    console = Console(file=io.StringIO(), width=100, color_system=None, highlight=False)
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in ("", "party", "examined", "found"):
        rows.add_column(column, overflow="fold")
    for check in found.checks:
        words = check.words + (f"\n-> {check.remedy}" if check.remedy else "")
        rows.add_row(
            *(Text(cell) for cell in (_MARKS[check.verdict], check.party, check.name, words))
        )
    console.print(rows)
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join([*lines, "", _verdict(found)])


def _verdict(found: Found) -> str:
    failures, doubts = (
        sum(check.verdict == verdict for check in found.checks) for verdict in ("failure", "doubt")
    )
    if failures:
        return (
            f"{failures} of {len(found.checks)} examinations failed: a run would not start, or "
            "not end."
        )
    return f"Nothing is in the way of a run{f'; {doubts} to look at' if doubts else ''}."


def _checks(
    aggregator: Path | None,
    client: Path | None,
    server: Path | None,
    scenario: Path | None,
    clock: Callable[[], float],
    reach: bool,
) -> Iterator[Check]:
    yield judged(MACHINE, "python", machine.python)
    yield judged(MACHINE, "packages", machine.packages)
    planned: Scenario | None = None
    if scenario is not None:
        try:
            planned = load_scenario(scenario)
        except FedRecError as failure:
            yield Check(
                "scenario", "file", "failure", failure.cause, failure.remedy, failure.exit_code
            )
    if aggregator is not None:
        yield from aggregator_checks(aggregator, planned, clock, reach=reach)
    if client is not None:
        yield from client_checks(client, planned, clock, reach=reach)
    if server is not None:
        yield from server_checks(server, planned, clock, reach=reach)
