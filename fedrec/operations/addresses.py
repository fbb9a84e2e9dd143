"""Addresses of parties: a host and a port."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """A host name or IP address, and a port; port 0 means any free one."""

    host: str
    port: int

    @staticmethod
    def of(text: str) -> Address:
        """Read `host:port` or `[v6]:port`. Raises ValueError on anything else."""
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not (colon and bare and port.isascii() and port.isdigit() and int(port) < 2**16) or (
            ":" in bare and bare == host
        ):
            raise ValueError(f"an address is host:port or [v6]:port, found {text!r}")
        return Address(bare, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def free_port(host: str) -> int:
    """A port that was free a moment ago, for a program that does not take 0.

    Whoever loses the race for it must try again."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
