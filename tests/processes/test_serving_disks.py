"""Disks of serving, and of the device that asks, that are full or turn read-only: whoever has one
says so with a remedy, sends nothing that is not written down, and goes on once it is mended."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fedrec.errors import RunError
from fedrec.operations.addresses import Address
from fedrec.serving import bundle
from fedrec_server.bundle_endpoint import bundle_endpoint
from tests.processes.test_disks_and_forgers import fill, free, small_disk
from tests.processes.test_read_only_disks import disk_of_its_own
from tests.recommend.conftest import write_bundle
from tests.waiting import HANG_S, until

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # disks that fill

TOKEN = "a token of this test"
KNOWN = (hashlib.sha256(TOKEN.encode()).hexdigest(),)


class FullDisk:
    """A disk in memory that has no room."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fails(self) -> None:
        fill(self._folder)

    def mend(self) -> None:
        free(self._folder)


@contextmanager
def full_disk(folder: Path, _image: Path) -> Iterator[FullDisk]:
    with small_disk(folder) as disk:
        yield FullDisk(disk)


FULL = pytest.param(full_disk, "No space left on device|database or disk is full", id="full")
READ_ONLY = pytest.param(disk_of_its_own, "Read-only file system|readonly database", id="read-only")


class Server:
    """`fedrec serve` of a folder, or of what a trainer's endpoint has; its log lies apart."""

    def __init__(self, source: str, root: Path, *, state: Path) -> None:
        self._state = state
        self.log = root / "serving.jsonl"
        self.words = root / "serving.err"
        (root / "token").write_text(TOKEN)
        settings = root / "serving.toml"
        settings.write_text(
            f"""
grpc = ""
http = "127.0.0.1:0"
metrics = "127.0.0.1:0"
log = "{self.log}"
state = "{state}"
[models]
watch_s = 0.05
[fetch]
token = "{root / "token"}"
every_s = 0.1
"""
        )
        self._program = [sys.executable, "-m", "fedrec.cli", "serve", source]
        self._program += ["--settings", str(settings)]
        self.restart()

    def restart(self) -> None:
        """The program once more, until it listens."""
        times = len(self.said("listening"))
        with self.words.open("wb") as errors:
            self.child = subprocess.Popen(
                self._program, stdout=subprocess.DEVNULL, stderr=errors, text=True
            )
        until(lambda: len(self.said("listening")) > times or self.child.poll() is not None)
        assert self.child.poll() is None, self.words.read_text()

    def said(self, event: str) -> list[dict[str, Any]]:
        """Lines of the log."""
        if not self.log.exists():
            return []
        lines = map(json.loads, self.log.read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    @property
    def url(self) -> str:
        return str(self.said("listening")[-1]["address"]).rpartition(" ")[2]

    def newest(self) -> str:
        answer = httpx2.get(f"{self.url}/v1/models", timeout=HANG_S)
        return str(answer.raise_for_status().json()["newest"])

    def answers(self) -> float:
        """How many were given."""
        at = json.loads((self._state / "serving.json").read_text())["metrics"]
        text = httpx2.get(f"http://{at}/metrics", timeout=HANG_S).text
        found = re.search(r'fedrec_query_seconds_count{protocol="http"} (\S+)', text)
        return float(found[1]) if found else 0.0

    def stop(self) -> None:
        self.child.terminate()
        assert self.child.wait(HANG_S) == 0

    def end(self) -> None:
        self.child.kill()
        self.child.wait()


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The bundle of a server that trains, and where it is fetched."""
    folder = tmp_path / "trained"
    folder.mkdir()
    listen = Address("127.0.0.1", 0)
    with bundle_endpoint(folder, listen, KNOWN) as address:
        yield folder / bundle.FILE, f"http://{address}"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:

        def start(source: str, **options: Any) -> Server:
            server = Server(source, tmp_path, **options)
            stack.callback(server.end)
            return server

        yield start


@pytest.mark.parametrize(("disk_of", "cause"), [FULL, READ_ONLY])
def test_serving_whose_disk_fails_says_so_serves_on_and_takes_the_next_model_once_it_is_mended(
    disk_of: Any,
    cause: str,
    trained: tuple[Path, str],
    serve: Callable[..., Server],
    tmp_path: Path,
) -> None:
    path, url = trained
    state = tmp_path / "state"
    with disk_of(state, tmp_path / "disk") as disk:
        first = write_bundle(path, seed=1)
        server = serve(url, state=state)
        disk.fails()
        second = write_bundle(path, seed=2)
        until(lambda: server.said("not-fetched"), "words of it")
        for line in server.said("not-fetched"):
            assert re.fullmatch(rf"{state} cannot be written: ({cause})", line["cause"])
            assert "Free disk space, or make the folder writable" in line["remedy"]
        assert server.newest() == first
        server.stop()
        server.restart()
        assert server.newest() == first
        server.stop()
        disk.mend()
        server.restart()
        until(lambda: server.newest() == second, "the next model")


def test_serving_whose_disk_was_full_goes_on_without_a_restart(
    trained: tuple[Path, str], serve: Callable[..., Server], tmp_path: Path
) -> None:
    path, url = trained
    with small_disk(tmp_path / "state") as disk:
        write_bundle(path, seed=1)
        server = serve(url, state=disk)
        fill(disk)
        second = write_bundle(path, seed=2)
        until(lambda: server.said("not-fetched"), "words of it")
        free(disk)
        until(lambda: server.newest() == second, "the next model")
        assert len(server.said("not-fetched")) == 1  # however often it tried


@pytest.mark.parametrize(("disk_of", "cause"), [FULL, READ_ONLY])
def test_a_device_whose_ledger_cannot_be_written_asks_nothing_and_pays_once_when_it_is_mended(
    disk_of: Any, cause: str, serve: Callable[..., Server], tmp_path: Path
) -> None:
    write_bundle(tmp_path / bundle.FILE)
    server = serve(str(tmp_path / bundle.FILE), state=tmp_path / "state")
    state = tmp_path / "device"
    read = tmp_path / "read.txt"

    def recommend(*history: str) -> subprocess.CompletedProcess[str]:
        read.write_text("\n".join(history) + "\n")
        program = [sys.executable, "-m", "fedrec.cli", "recommend", "--via", "server"]
        program += ["--server", server.url, "--history", str(read), "--state", str(state)]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    with disk_of(state, tmp_path / "disk") as disk:
        done = recommend("i1", "i2")
        assert done.returncode == 0, done.stderr
        assert (server.answers(), paid(state)) == (1, 1)
        disk.fails()
        for history in (("i1", "i2", "i3"), ("i4", "i5")):
            done = recommend(*history)
            assert done.returncode == RunError.exit_code, done.stdout
            assert re.search(
                rf"error: .*{state}.* cannot be (written|used): .*({cause})", done.stderr
            )
            assert "remedy: " in done.stderr
        assert server.answers() == 1
        disk.mend()
        assert paid(state) == 1
        for _ in range(2):
            done = recommend("i1", "i2", "i3")
            assert done.returncode == 0, done.stderr
        assert paid(state) == 2


def paid(state: Path) -> int:
    """Answers in the ledger of a device."""
    with closing(sqlite3.connect(state / "ledger.sqlite")) as ledger:
        return int(ledger.execute("SELECT COUNT(*) FROM answers").fetchone()[0])
