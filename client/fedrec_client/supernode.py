"""Flower's SuperNode as a child process: started, watched, started again, ended.

It fetches messages from the SuperLink, by a way that shows the client's certificate
(`fedrec_client.tls_proxy`), and keeps them for the executor (`fedrec_client.executor`); it starts
no other process and reads neither data nor ledger. Its runtime API listens on loopback and gives
tasks only to who knows the secret.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec.operations.flower_process import HOST, FlowerProcess
from fedrec.transport.channel import Access
from fedrec_client.settings import SuperLinkAccess
from fedrec_client.tls_proxy import Way


@dataclass
class SuperNode(FlowerProcess):
    """One SuperNode of one client. A child is started at a new port, and its memory is bounded so
    that a SuperLink that sends without end brings down this child and not the machine.

    A child that is killed, not asked to end, cannot sign off: a SuperLink that knows nodes by their
    keys takes the next one only when it has missed the first one's heartbeats, after about a
    minute. The client's own death asks it (`operations.parent_death`).
    """

    name = "supernode"
    environment: ClassVar[dict[str, str]] = {
        "MALLOC_ARENA_MAX": "2",  # of glibc: one for every thread keeps what that thread has freed
        "OPENBLAS_NUM_THREADS": "1",  # it computes nothing
    }

    access: SuperLinkAccess
    way: Way | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        """Start the child and the thread that watches it.

        Raises SettingsError where a named file is missing."""
        require_usable(self.access)
        if self.access.certificate:
            self.way = Way(proxy_access(self.access)).__enter__()
        self._watched()
        self._begun.wait()

    def stop(self) -> None:
        """End the child: asked first, killed after `grace_s`."""
        super().stop()
        if self.way:
            self.way.__exit__()
            self.way = None

    def _lived(self) -> int:
        try:
            return super()._lived()
        finally:
            self.address = ""

    def _command(self, address: str) -> list[str]:
        port = int(address.rpartition(":")[2])
        return supernode_command(
            self.access, self.folder, port, way=self.way.address if self.way else ""
        )


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
        HOST,
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


def proxy_access(access: SuperLinkAccess) -> Access:
    """The server's proxy as what examines and shows certificates. Raises SettingsError."""
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
