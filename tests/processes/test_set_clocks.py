"""Clocks of running parties that are set, forward and back: a small library gives one party a
clock of its own, which a file sets. Nothing is lost, repeated or charged twice, and no wait follows it."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.operations import parent_death
from tests.processes.conftest import Rehearsal

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # clocks that are set

_HOURS_S = 5 * 3_600
_LATER_S = 100 * 86_400
"""All certificates of a rehearsal have expired by then, none of its authority's long life."""


_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *by;
static int (*plain)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    plain = dlsym(RTLD_NEXT, "clock_gettime");
    by = mmap(0, 8, PROT_READ, MAP_SHARED, open(getenv("SET_CLOCK"), O_RDONLY), 0);
}
int clock_gettime(clockid_t which, struct timespec *now) {
    if (!plain) begin();
    int status = plain(which, now);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) now->tv_sec += *by;
    return status;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int status = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return status;
}
time_t time(time_t *to) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (to) *to = found.tv_sec;
    return found.tv_sec;
}
"""


class PartyClock:
    """Sets the clock of one party, its workers' too."""

    def __init__(self, party: str, file: Path, library: Path) -> None:
        self.party = party
        self._file = file
        self._library = library
        self._plain = parent_death.command
        file.write_bytes(bytes(8))

    def set(self, by_s: int) -> None:
        """Away from the machine's clock."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", by_s))

    def command(self, program: Sequence[str], **how: Any) -> list[str]:
        """In place of `parent_death.command`."""
        line = self._plain(list(program), **how)
        mine = any(Path(word).stem == self.party for word in program)
        return [*self.environment(), *line] if mine else line

    def environment(self) -> list[str]:
        return ["/usr/bin/env", f"LD_PRELOAD={self._library}", f"SET_CLOCK={self._file}"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    build = ["cc", "-shared", "-fPIC", "-O2", "-o", str(made), "-x", "c", "-"]
    try:
        subprocess.run(build, input=_SHIM.encode(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"a clock of one's own cannot be built here: {failure}")
    return made


@pytest.fixture
def party_clock(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], PartyClock]:
    def give(party: str) -> PartyClock:
        given = PartyClock(party, tmp_path / "clock", library)
        monkeypatch.setattr(parent_death, "command", given.command)
        return given

    return give


def test_a_party_clock_sets_the_clock_of_days_and_no_other(
    party_clock: Callable[[str], PartyClock],
) -> None:
    given = party_clock("nobody")
    given.set(_HOURS_S)
    shown = (
        "import time; time.sleep(0.01); from fedrec.operations.clock import steady; "
        "print(time.time(), steady())"
    )
    lines = [
        subprocess.run(
            [*front, sys.executable, "-c", shown], check=True, capture_output=True
        ).stdout
        for front in ([], given.environment())
    ]
    (day, steady), (set_day, set_steady) = (map(float, line.split()) for line in lines)
    assert abs(set_day - day) > _HOURS_S / 2
    assert abs(set_steady - steady) < _HOURS_S / 2


@pytest.mark.parametrize(
    ("party", "by_s"), [("aggregator", -_HOURS_S), ("server", _HOURS_S), ("client-1", -_HOURS_S)]
)
def test_a_clock_set_by_hours_in_a_round_changes_nothing(
    party: str,
    by_s: int,
    play: Any,
    stage: Callable[..., Any],
    party_clock: Callable[[str], PartyClock],
) -> None:
    given = party_clock(party)
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


@pytest.mark.parametrize(
    ("party", "words"),
    [
        ("aggregator", "aggregator.pem expired on"),
        ("server", "server.pem expired on"),
        ("client-1", "client-1.pem expired on"),
    ],
)
def test_a_party_whose_clock_is_past_all_certificates_says_so_and_goes_on_once_it_is_right(
    party: str,
    words: str,
    play: Any,
    stage: Callable[..., Any],
    party_clock: Callable[[str], PartyClock],
) -> None:
    given = party_clock(party)
    run = stage(company=Unit(most_starts=100))
    run.start()
    run.until(run.is_planned, "plan")
    said = len(run.words(party))
    given.set(_LATER_S)
    run.kill(party)
    run.until(lambda: words in run.words(party)[said:], "words of it")
    given.set(0)
    _went_well(run, play, list(run.states()))


class Unit(Supervisor):
    """Starts again whoever ends, as an operator does who has set the clock right."""

    def gives_up(self, name: str, status: int) -> bool:
        return False


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
