"""Clocks of running parties that are set, forward and back: libfaketime gives one party a clock of
its own, which a file sets. Nothing is lost, repeated or charged twice, and no wait follows it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedrec.operations import parent_death
from tests.processes.conftest import Rehearsal

pytestmark = pytest.mark.processes

_HOURS_S = 5 * 3_600
_LATER_S = 100 * 86_400
"""All certificates of a rehearsal have expired by then, none of its authority's long life."""


class Hand:
    """Sets the clock of one party, its workers' too."""

    def __init__(self, party: str, file: Path, library: Path) -> None:
        self.party = party
        self._file = file
        self._library = library
        self._plain = parent_death.command
        self.set(0)

    def set(self, by_s: int) -> None:
        """Away from the machine's clock."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{by_s:+d}\n")
        part.replace(self._file)

    def command(self, program: Sequence[str], **how: Any) -> list[str]:
        """In place of `parent_death.command`."""
        line = self._plain(list(program), **how)
        mine = any(Path(word).stem == self.party for word in program)
        return [*self.environment(), *line] if mine else line

    def environment(self) -> list[str]:
        return [
            "/usr/bin/env",
            f"LD_PRELOAD={self._library}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
        ]


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Hand]:
    program = shutil.which("faketime")
    found = (
        sorted(Path(program).parents[1].glob("lib/*/faketime/libfaketimeMT.so.1"))
        if program
        else []
    )
    if not found:
        pytest.skip("libfaketime is not installed")

    def give(party: str) -> Hand:
        given = Hand(party, tmp_path / "clock", found[0])
        monkeypatch.setattr(parent_death, "command", given.command)
        return given

    return give


def test_the_hand_sets_the_clock_of_days_and_no_other(hand: Callable[[str], Hand]) -> None:
    given = hand("nobody")
    given.set(_HOURS_S)
    shown = "import time; from fedrec.operations.clock import steady; print(time.time(), time.monotonic(), steady())"
    lines = [
        subprocess.run(
            [*front, sys.executable, "-c", shown], check=True, capture_output=True
        ).stdout
        for front in ([], given.environment())
    ]
    (day, monotonic, steady), (set_day, set_monotonic, set_steady) = (
        map(float, line.split()) for line in lines
    )
    assert abs(set_day - day) > _HOURS_S / 2
    assert abs(set_monotonic - monotonic) < _HOURS_S / 2
    assert abs(set_steady - steady) < _HOURS_S / 2


@pytest.mark.parametrize("by_s", [_HOURS_S, -_HOURS_S])
@pytest.mark.parametrize("party", ["aggregator", "server", "client-1"])
def test_a_clock_set_by_hours_in_a_round_changes_nothing(
    party: str, by_s: int, play: Any, stage: Callable[..., Any], hand: Callable[[str], Hand]
) -> None:
    given = hand(party)
    run = stage()
    run.start()
    _in_the_middle_of_a_round(run, lambda: given.set(by_s))
    states = run.states()
    first = next(states)
    given.set(0)
    _went_well(run, play, [first, *states])
    assert not run.company.restarts
    if party == "aggregator":
        assert run.said(party, "clock-set")


@pytest.mark.parametrize("party", ["aggregator", "server", "client-1"])
def test_a_party_whose_clock_is_past_all_certificates_says_so_and_goes_on_once_it_is_right(
    party: str, play: Any, stage: Callable[..., Any], hand: Callable[[str], Hand]
) -> None:
    given = hand(party)
    run = stage()
    run.start()
    run.until(run.is_planned, "plan")
    said = {name: len(run.words(name)) for name, _ in run.company.logs()}
    given.set(_LATER_S)
    run.kill(party)
    run.until(
        lambda: any("expired" in run.words(name)[at:] for name, at in said.items()), "words of it"
    )
    given.set(0)
    _went_well(run, play, list(run.states()))


def _in_the_middle_of_a_round(run: Rehearsal, act: Callable[[], None]) -> None:
    """While one client has reported and the other hangs."""
    run.until(run.is_planned, "plan")
    hanging = run.pid("client-2")
    os.kill(hanging, signal.SIGSTOP)
    try:
        run.until(
            lambda: run.reporters(0) == {"client-1"}, "report of the client that does not hang"
        )
        act()
    finally:
        os.kill(hanging, signal.SIGCONT)


def _went_well(run: Rehearsal, play: Any, states: list[Any]) -> None:
    assert states == play.states
    lines = run.rounds()
    assert [line["reported"] for line in lines] == [play.job.data.num_users] * 2
    run.company.stop()
    assert run.charges() == [name for line in lines for name in line["releases"]]
