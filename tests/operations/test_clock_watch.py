"""A clock that was set, while a party runs or while it did not: every party counts, logs and goes
on, and one with a ledger writes it there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fedrec.operations import logs
from fedrec.operations.clock import LEAST_S, ClockJump, Clocks
from fedrec.operations.machine import ClockWatch
from fedrec_aggregator.chain import ClockSet
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.main import run
from fedrec_aggregator.settings import validated
from fedrec_server.runs import Runs
from tests.threads import serving
from tests.waiting import until

_HOURS_S = (2 * LEAST_S, -2 * LEAST_S, LEAST_S / 2)


@pytest.mark.parametrize("by_s", _HOURS_S)
def test_a_jump_by_over_an_hour_is_counted_and_logged_once(by_s: float, tmp_path: Path) -> None:
    log = logs.configure("server", file=tmp_path / "log")
    registry = CollectorRegistry()
    watch = ClockWatch(registry, log)
    shown = [time.time()]
    watch._clocks = Clocks(clock=lambda: shown[0])
    shown[0] += by_s
    jumped = abs(by_s) > LEAST_S
    assert [watch.look() is not None for _ in range(2)] == [jumped, False]
    assert f"fedrec_clock_jumps_total {float(jumped)}" in generate_latest(registry).decode()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["event"], round(-line["wait_s"])) for line in lines] == (
        [("clock-set", round(by_s))] if jumped else []
    )
    logs.close(log)


@pytest.mark.parametrize(("behind_s", "noted"), [(25 * 3600.0, 1), (2 * 3600.0, 1), (600.0, 0)])
def test_an_aggregator_that_starts_with_a_clock_behind_its_ledger_says_so(
    behind_s: float, noted: int, tmp_path: Path
) -> None:
    ReleaseLedger(tmp_path / "state", limit=None, clock=lambda: time.time() + behind_s).close()
    content: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "metrics": "127.0.0.1:0",
        "state": str(tmp_path / "state"),
        "log": str(tmp_path / "log"),
        "insecure": True,
        "any_client": True,
        "privacy": {"max_epsilon": 5.0},
    }
    for _ in range(2):  # written down, so that the next start says nothing
        with serving(run, validated(content)):
            told = json.loads((tmp_path / "state" / "address.json").read_text())

            def counted(address: str = told["metrics"]) -> str:
                with urlopen(f"http://{address}/metrics") as answer:
                    return str(answer.read().decode())

            until(lambda: "fedrec_clock_jumps_total" in counted(), "it looks at its clock")
    assert (tmp_path / "log").read_text().count("clock-set") == noted
    ledger = ReleaseLedger(tmp_path / "state", limit=None)
    jumps = [link.entry for link in ledger.links() if isinstance(link.entry, ClockSet)]
    assert [round(jump.last_s - jump.now_s, -2) for jump in jumps] == [behind_s] * noted
    ledger.close()


def test_a_server_that_starts_with_a_clock_behind_its_trainings_knows(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    assert runs.clock_behind(0.0) is None
    runs.begin(name="first", now_s=10 * LEAST_S)
    assert runs.clock_behind(9.5 * LEAST_S) is None
    assert runs.clock_behind(LEAST_S) == ClockJump(10 * LEAST_S, LEAST_S)
