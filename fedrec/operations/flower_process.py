"""Process of Flower as a child: started, watched, started again, ended."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from fedrec.errors import SettingsError
from fedrec.operations import logs, parent_death
from fedrec.operations.addresses import free_port

FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
HOST = "127.0.0.1"
FLOWER_FROM = (1, 40)
FLOWER_BELOW = (1, 43)
"""Releases of Flower with whose private interfaces (docs/architecture.md) server and clients were
tested: `make flower-versions`."""

_LOG_BYTES = 4 * 2**20


@dataclass
class FlowerProcess:
    """One process of Flower, which listens on loopback. `folder` keeps its secret, its log and
    Flower's own files. Times in seconds.

    A child that ends is started again after `first_pause_s`, then twice that and so on up to
    `longest_pause_s`; one that ran for `steady_s` counts as well again. `max_bytes` bounds its
    memory. `changed` is told when another child takes its place.
    """

    name: ClassVar[str]
    environment: ClassVar[dict[str, str]] = {}

    folder: Path
    _: KW_ONLY
    max_bytes: int = 8 * 2**30
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    steady_s: float = 60.0
    grace_s: float = 10.0
    changed: Callable[[], object] = lambda: None
    secret: bytes = field(default_factory=lambda: secrets.token_hex(32).encode(), repr=False)
    address: str = field(default="", init=False)
    starts: int = field(default=0, init=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _begun: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _watcher: threading.Thread | None = field(default=None, init=False, repr=False)

    @property
    def pid(self) -> int:
        """Process id of the child; 0 while none runs."""
        child = self._child
        return child.pid if child and child.poll() is None else 0

    def stop(self) -> None:
        """End the child: asked first, killed after `grace_s`."""
        self._stopping.set()
        if self._watcher:
            self._watcher.join()

    def _command(self, address: str) -> list[str]:
        """The command line of a child that listens there."""
        raise NotImplementedError

    def _watched(self) -> None:
        """Start the child and the thread that watches it. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret = self._secret_file
        secret.unlink(missing_ok=True)
        with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self.secret)
        # The kernel ends the child when the thread that started it ends (see `parent_death`): this
        # one stays until the child has ended.
        self._watcher = threading.Thread(
            target=self._watch, name=f"{self.name}-watcher", daemon=True
        )
        self._watcher.start()

    @property
    def _secret_file(self) -> Path:
        return self.folder / "runtime.secret"

    def _watch(self) -> None:
        pause_s = self.first_pause_s
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                exit_status = self._lived()
            except OSError as failure:  # no memory, no disk: that may pass
                exit_status = None
                logs.say_failure(self._log, f"{self.name}-not-started", failure)
                self._begun.set()
            if self._stopping.is_set():
                return
            pause_s = self.first_pause_s if time.monotonic() - began > self.steady_s else pause_s
            logs.say(
                self._log,
                f"{self.name}-ended",
                level=logging.WARNING,
                exit_status=exit_status,
                wait_s=pause_s,
            )
            self._stopping.wait(pause_s)
            pause_s = min(self.longest_pause_s, 2 * pause_s)

    def _lived(self) -> int:
        """Start a child and stay until it has ended; its exit status."""
        address = self._next_address()
        program = parent_death.command(self._command(address), max_bytes=self.max_bytes)
        environment = flower_environment(self.folder) | self.environment
        with self._log_file().open("ab") as output:
            self._child = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        self.address = address
        self.starts += 1
        logs.say(self._log, f"{self.name}-started", pid=self._child.pid, address=address)
        self._begun.set()
        self._started()
        while self._child.poll() is None and not self._stopping.wait(0.2):
            self._log_file()
        return parent_death.ended(self._child, self.grace_s)

    @property
    def _log(self) -> logging.Logger:
        """The party's, whose file it goes to."""
        return logging.getLogger(type(self).__module__)

    def _next_address(self) -> str:
        return f"{HOST}:{free_port(HOST)}"

    def _started(self) -> None:
        self.changed()

    def _log_file(self) -> Path:
        return logs.cut(self.folder / f"{self.name}.log", max_bytes=_LOG_BYTES)


def flower_environment(folder: Path) -> dict[str, str]:
    """This process's environment, without Flower's calls home, with its files in `folder`, and its
    commands on the path."""
    path = os.pathsep.join([str(flower_program("").parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **FLOWER_ENVIRONMENT, "FLWR_HOME": str(folder / "flower"), "PATH": path}


def require_tested_flower(found: str = "") -> None:
    """Raises SettingsError where the installed release of Flower is none of the tested ones."""
    release = found or version("flwr")
    if not FLOWER_FROM <= tuple(map(int, release.split(".")[:2])) < FLOWER_BELOW:
        allowed = "flwr>={}.{},<{}.{}".format(*FLOWER_FROM, *FLOWER_BELOW)
        raise SettingsError(
            f"flwr {release} is installed; server and clients were tested with {allowed}",
            f"pip install '{allowed}'",
        )


def flower_program(name: str) -> Path:
    """One of Flower's commands, beside this interpreter."""
    return Path(sys.executable).parent / f"flower-{name}"
