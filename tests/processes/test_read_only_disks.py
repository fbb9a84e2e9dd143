"""Disks that turn read-only in the middle of a round, as Linux does after an error: whoever has one
says so, and goes on once it is mended. Each has a file system of its own, which needs root."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RunError
from tests.waiting import HANG_S

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # disks that turn read-only

_DEFECT = 70
_CAUSE = (
    "Read-only file system|ledger.sqlite cannot be written: "
    "(attempt to write a readonly database|unable to open database file)"
)
_STOPPED = {0, 128 + signal.SIGTERM, -signal.SIGTERM, RunError.exit_code}
"""-SIGTERM: a process that was being started again."""


class Unit(Supervisor):
    """Starts again whom units of systemd do: after exit codes 6 and 7, too."""

    def gives_up(self, name: str, status: int) -> bool:
        return status in range(2, RunError.exit_code) or status == _DEFECT


@pytest.mark.parametrize("party", ["aggregator", "server", "client-1"])
def test_a_party_whose_disk_turns_read_only_says_so_and_goes_on_once_it_is_mended(
    party: str, play: Any, stage: Callable[..., Any], tmp_path: Path
) -> None:
    run = stage(company=Unit(most_starts=100))
    with disk_of_its_own(run.files.state(party), tmp_path / "disk") as disk:
        run.start()
        run.until(run.is_planned, "plan")
        said = len(run.words(party))
        disk.fails()
        run.until(
            lambda: re.search(_CAUSE, run.words(party)[said:]),
            "words of it",
        )
        process = run.company._children[party].process
        if process.poll() is None:
            process.terminate()
        assert process.wait(HANG_S) in _STOPPED
        disk.mend()
        assert list(run.states()) == play.states
        lines = run.rounds()
        assert [line["reported"] for line in lines] == [play.job.data.num_users] * 2
        run.company.stop()
        assert run.charges() == [name for line in lines for name in line["releases"]]


class Disk:
    """A file system in a file, at a folder."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder = folder
        self.image = image

    def mount(self) -> None:
        """As a device of its own each time: the last one stays, with its error, for as long as a
        process in a mount namespace that was copied meanwhile, such as another test's, lives."""
        device = _done("losetup", "--find", "--show", str(self.image))
        _done("mount", "-t", "ext4", "-o", "errors=remount-ro", device, str(self.folder))
        _done("losetup", "--detach", device)  # once it is unmounted

    def fails(self) -> None:
        """An error of the disk: what is open for writing cannot be written either."""
        _done("mount", "-o", "remount,abort", str(self.folder))

    def mend(self) -> None:
        """Nobody has a file open here."""
        _done("umount", str(self.folder))
        self.mount()
        (self.folder / "written").touch()


@contextmanager
def disk_of_its_own(folder: Path, image: Path) -> Iterator[Disk]:
    folder.mkdir(parents=True, mode=0o700)
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    disk = Disk(folder, image)
    try:
        _done("mkfs.ext4", "-q", str(image))
        disk.mount()
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"a disk of its own cannot be mounted here: {failure}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _done(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
