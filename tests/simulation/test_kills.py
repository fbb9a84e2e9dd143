"""Who is killed when by `python -m tests.simulation --kill`, and which end is a defect; deployments of real
processes are the command's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.simulation import kills
from tests.simulation.kills import PERSON, Assault, Tally

pytestmark = pytest.mark.processes


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits: neither the kills nor who does the work meanwhile."""
    monkeypatch.setattr(kills, "_PAUSE_S", 0.0)
    monkeypatch.setattr(kills, "_AT_ONCE", 1.0)


@pytest.mark.usefixtures("at_once")
def test_kills_come_in_their_part_alone_and_no_more_than_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kills, "_AFTER_A_RELEASE", 0.0)
    tally = Tally()
    company = Assault(0, 100, tally)
    with sleeping() as process:
        company.there = {"somebody": lambda: process.pid}
        company.rest()
        assert tally.kills == 0
        with company.striking("asking"):
            for _ in range(20):
                company.rest()
        company.rest()
        assert tally.kills == kills.KILLS["asking"]
        # who was killed last is waited for, in its part
        monkeypatch.setattr(kills, "_AT_ONCE", 0.0)
        company.there = {"somebody else": lambda: process.pid}
        with company.striking("training"):
            company.rest()
    assert tally.killed["somebody else"] == 1


@pytest.mark.usefixtures("at_once")
def test_a_kill_after_a_release_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "_AFTER_A_RELEASE", 1.0)
    tally = Tally()
    released = 0
    company = Assault(0, 100, tally)
    with sleeping() as process:
        company.there = {"somebody": lambda: process.pid}
        company.released = lambda: released
        with company.striking("training"):
            for rounds in range(4):
                released = rounds
                for _ in range(20):
                    company.rest()
                assert tally.kills == 1 + rounds


def test_a_defect_counts_against_whoever_ends_with_it() -> None:
    company = Assault(0, 1, Tally())
    for status in (-9, 0, 5, 7):
        company.gives_up("client-1", status)
    assert company.defects == []
    company.gives_up("client-1", 70)
    company.gives_up(PERSON, 70)
    assert [words.split()[0] for words in company.defects] == ["client-1", PERSON]
