"""Flower's SuperNode as a child process: started, watched, started again, ended.

It fetches messages from the SuperLink, by a way that shows the client's certificate
(`fedrec_client.tls_proxy`), and keeps them for the executor (`fedrec_client.executor`); it starts
no other process and reads neither data nor ledger. Its runtime API listens on loopback and gives
tasks only to who knows the secret.
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

from fedrec.errors import SettingsError
from fedrec.operations import logs, parent_death
from fedrec.operations.addresses import Address, free_port
from fedrec.transport.channel import Access
from fedrec_client.settings import SuperLinkAccess
from fedrec_client.tls_proxy import Way

FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "MALLOC_ARENA_MAX": "2",  # of glibc: one for every thread keeps what that thread has freed
    "OPENBLAS_NUM_THREADS": "1",  # it computes nothing
}

_LOG_BYTES = 4 * 2**20
_HOST = "127.0.0.1"

log = logging.getLogger(__name__)


@dataclass
class SuperNode:
    """One SuperNode of one client. `folder` keeps its secret, its log and Flower's own files. Times
    in seconds.

    A child that ends is started again, at a new port, after `first_pause_s`, then twice that and so
    on up to `longest_pause_s`; one that ran for `steady_s` counts as well again. `max_bytes` bounds
    its memory, so that a SuperLink that sends without end brings down this child and not the
    machine. `changed` is told when a child started.

    A child that is killed, not asked to end, cannot sign off: a SuperLink that knows nodes by their
    keys takes the next one only when it has missed the first one's heartbeats, after about a
    minute. The client's own death asks it (`operations.parent_death`).
    """

    access: SuperLinkAccess
    folder: Path
    max_bytes: int = 8 * 2**30
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    steady_s: float = 60.0
    grace_s: float = 10.0
    changed: Callable[[], object] = lambda: None
    way: Way | None = field(default=None, init=False, repr=False)
    secret: bytes = field(default_factory=lambda: secrets.token_hex(32).encode(), repr=False)
    starts: int = field(default=0, init=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _address: str = field(default="", init=False, repr=False)
    _begun: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _watcher: threading.Thread | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        """Start the child and the thread that watches it.

        Raises SettingsError where a named file is missing."""
        require_usable(self.access)
        if self.access.certificate:
            self.way = Way(gate_access(self.access)).__enter__()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret = self.folder / "runtime.secret"
        secret.unlink(missing_ok=True)
        with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self.secret)
        # The kernel ends the child when the thread that started it ends (see `parent_death`): this
        # one stays until the child has ended.
        self._watcher = threading.Thread(target=self._watch, name="supernode-watcher", daemon=True)
        self._watcher.start()
        self._begun.wait()

    @property
    def address(self) -> str:
        """host:port of the runtime API; "" while no child runs."""
        return self._address

    @property
    def pid(self) -> int:
        """Process id of the child; 0 while none runs."""
        child = self._child
        return child.pid if child and self._address else 0

    def stop(self) -> None:
        """End the child: asked first, killed after `grace_s`."""
        self._stopping.set()
        if self._watcher:
            self._watcher.join()
        if self.way:
            self.way.__exit__()
            self.way = None

    def _watch(self) -> None:
        pause_s = self.first_pause_s
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                exit_status = self._lived()
            except OSError as failure:  # no memory, no disk: that may pass
                exit_status = None
                logs.say_failure(log, "supernode-not-started", failure)
                self._begun.set()
            if self._stopping.is_set():
                return
            pause_s = self.first_pause_s if time.monotonic() - began > self.steady_s else pause_s
            logs.say(
                log,
                "supernode-ended",
                level=logging.WARNING,
                exit_status=exit_status,
                wait_s=pause_s,
            )
            self._stopping.wait(pause_s)
            pause_s = min(self.longest_pause_s, 2 * pause_s)

    def _lived(self) -> int:
        """Start a child and stay until it has ended; its exit status."""
        port = free_port(_HOST)
        with self._log_file().open("ab") as output:
            program = parent_death.command(self._command(port), max_bytes=self.max_bytes)
            environment = flower_environment(self.folder)
            self._child = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        self.starts += 1
        self._address = f"{_HOST}:{port}"
        logs.say(log, "supernode-started", pid=self._child.pid, address=self._address)
        self._begun.set()
        self.changed()
        try:
            while self._child.poll() is None and not self._stopping.wait(0.2):
                self._log_file()
            return parent_death.ended(self._child, self.grace_s)
        finally:
            self._address = ""

    def _command(self, port: int) -> list[str]:
        return supernode_command(
            self.access, self.folder, port, way=self.way.address if self.way else ""
        )

    def _log_file(self) -> Path:
        return logs.cut(self.folder / "supernode.log", max_bytes=_LOG_BYTES)


def supernode_command(
    access: SuperLinkAccess, folder: Path, port: int, *, way: str = ""
) -> list[str]:
    """Flower's command line, of `supernode_main`: process isolation, runtime API on loopback; to
    the way's address, or TLS of its own."""
    command = [
        sys.executable,
        "-m",
        "fedrec_client.supernode_main",
        "--superlink",
        way or access.address,
        "--isolation",
        "process",
    ]
    command += [
        "--superexec-auth-secret-file",
        str(folder / "runtime.secret"),
        "--host",
        _HOST,
        "--port",
        str(port),
    ]
    if access.insecure or way:
        command.append("--insecure")
    elif access.root_certificates:
        command += ["--root-certificates", access.root_certificates]
    return (
        [*command, "--auth-supernode-private-key", access.auth_private_key]
        if access.auth_private_key
        else command
    )


def flower_environment(folder: Path) -> dict[str, str]:
    """This process's environment, without Flower's calls home, with its files in `folder`, and its
    commands on the path."""
    path = os.pathsep.join([str(_flower_bin()), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **FLOWER_ENVIRONMENT, "FLWR_HOME": str(folder / "flower"), "PATH": path}


def gate_access(access: SuperLinkAccess) -> Access:
    """The server's gate as what examines and shows certificates. Raises SettingsError."""
    ours = {"certificate": access.certificate, "key": access.key}
    return Access(
        access.address,
        ca=access.root_certificates,
        pin=access.pin,
        insecure=access.insecure,
        party="server",
        named={
            "ca": "superlink.root_certificates",
            **{name: f"superlink.{name}" for name in ("address", "pin", *ours)},
        },
        **ours,
    )


def require_usable(access: SuperLinkAccess) -> None:
    """Raises SettingsError where a named file is missing, or a SuperLink elsewhere would be talked
    to without TLS."""
    for key in ("root_certificates", "certificate", "key", "auth_private_key"):
        path = getattr(access, key)
        if path and not Path(path).is_file():
            raise SettingsError(
                f"superlink.{key}: {path} is not a file",
                "Correct the path in the client's settings.",
            )
    try:
        where = Address.of(access.address)
    except ValueError as failure:
        raise SettingsError(
            f"superlink.address: {failure}", "For example server.example.org:7002."
        ) from None
    if access.insecure and (
        access.root_certificates or access.auth_private_key or not where.loopback
    ):
        raise SettingsError(
            f"superlink.insecure with {where} and keys or another machine",
            "Leave it out: TLS needs root_certificates.",
        )


def _flower_bin() -> Path:
    return Path(sys.executable).parent
