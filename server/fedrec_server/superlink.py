"""Flower's SuperLink as a child process: started, watched, started again, ended.

It listens on loopback alone, starts no process of its own, gives the run's task to nobody but the
holder of the secret, and keeps nodes, runs and messages in a database, so that a run goes on when
it is killed and started again.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from fedrec.errors import RunError, SettingsError
from fedrec.operations import logs, parent_death
from fedrec.operations.addresses import free_port

FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}

_LOG_BYTES = 4 * 2**20
_HOST = "127.0.0.1"

log = logging.getLogger(__name__)


@dataclass
class SuperLink:
    """One SuperLink; a context that ends it. `folder` keeps its secret, its log and Flower's own
    files. Times in seconds.

    A child that ends is started again after `first_pause_s`, then twice that and so on up to
    `longest_pause_s`; one that ran for `steady_s` counts as well again. It keeps its port, which
    the run in progress knows. `max_bytes` bounds its memory; `changed` is told when it answers for
    the first time, and when another child takes its place.
    """

    folder: Path
    database: Path
    max_bytes: int = 16 * 2**30
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    steady_s: float = 60.0
    grace_s: float = 5.0
    start_s: float = 120.0
    changed: Callable[[], object] = lambda: None
    secret: bytes = field(default_factory=lambda: secrets.token_hex(32).encode(), repr=False)
    address: str = field(default="", init=False)
    starts: int = field(default=0, init=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _was_up: bool = field(default=False, init=False, repr=False)

    def __enter__(self) -> Self:
        """Start the child, without waiting for it.

        Raises SettingsError where Flower's command is missing, or its files cannot be kept."""
        if not _program().exists():
            raise SettingsError(
                f"{_program()} is not there", "Install fedrec again, with its dependencies."
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.database.parent.mkdir(parents=True, exist_ok=True)
            self._write_secret()
        except OSError as failure:
            remedy = "Name a state folder and a database that this user may write."
            raise SettingsError(
                f"the SuperLink's files cannot be kept: {failure}", remedy
            ) from None
        self._watcher = threading.Thread(target=self._watch, name="superlink-watcher", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the child; 0 while none runs."""
        child = self._child
        return child.pid if child and child.poll() is None else 0

    def wait_until_up(self) -> None:
        """Until it answers. Raises RunError where it never does."""
        deadline = time.monotonic() + self.start_s
        while not self._answers():
            if time.monotonic() > deadline or self.starts > 2:
                raise RunError(
                    "Flower's SuperLink does not start",
                    f"Its own words are in {self.folder / 'superlink.log'}.",
                )
            self._stopping.wait(0.05)
        self._was_up = True
        self.changed()

    def stop(self) -> None:
        """End the child: asked first, killed after `grace_s`."""
        self._stopping.set()
        self._watcher.join()

    def _write_secret(self) -> None:
        path = self.folder / "runtime.secret"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self.secret)

    def _answers(self) -> bool:
        try:
            return (
                bool(self.address)
                and httpx.get(
                    f"http://{self.address}/health", timeout=2.0, trust_env=False
                ).is_success
            )
        except httpx.HTTPError:
            return False

    def _watch(self) -> None:
        pause_s = self.first_pause_s
        while not self._stopping.is_set():
            began = time.monotonic()
            exit_status = self._lived()
            if self._stopping.is_set():
                return
            pause_s = self.first_pause_s if time.monotonic() - began > self.steady_s else pause_s
            logs.say(
                log,
                "superlink-ended",
                level=logging.WARNING,
                exit_status=exit_status,
                wait_s=pause_s,
            )
            self._stopping.wait(pause_s)
            pause_s = min(self.longest_pause_s, 2 * pause_s)

    def _lived(self) -> int:
        """Start a child and stay until it has ended; its exit status.

        A port that never answered is exchanged for another."""
        address = self.address if self._was_up else f"{_HOST}:{free_port(_HOST)}"
        program = parent_death.command(self._command(address), max_bytes=self.max_bytes)
        with self._log_file().open("ab") as output:
            environment = flower_environment(self.folder)
            self._child = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        self.address, self.starts = address, self.starts + 1
        logs.say(log, "superlink-started", pid=self._child.pid, address=address)
        if self._was_up:
            self.changed()
        while self._child.poll() is None and not self._stopping.wait(0.2):
            self._log_file()
        return parent_death.ended(self._child, self.grace_s)

    def _command(self, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        command = [
            str(_program()),
            "--insecure",
            "--host",
            host,
            "--port",
            port,
            "--isolation",
            "process",
        ]
        return [
            *command,
            "--superexec-auth-secret-file",
            str(self.folder / "runtime.secret"),
            "--database",
            str(self.database),
        ]

    def _log_file(self) -> Path:
        return logs.cut(self.folder / "superlink.log", max_bytes=_LOG_BYTES)


def flower_environment(folder: Path) -> dict[str, str]:
    """This process's environment, without Flower's calls home, with its files in `folder`, and its
    commands on the path."""
    path = os.pathsep.join([str(_program().parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **FLOWER_ENVIRONMENT, "FLWR_HOME": str(folder / "flower"), "PATH": path}


def _program() -> Path:
    return Path(sys.executable).parent / "flower-superlink"
