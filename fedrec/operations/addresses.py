"""Addresses of parties: a host and a port."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # of all systems

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")


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


def proxy_words(address: str) -> str:
    """What to say of the environment's proxy where nobody answers at an address; empty where there
    is none, or the address is on this machine and no proxy is used."""
    try:
        where = Address.of(address)
    except ValueError:
        return ""
    known = (name for lower in _PROXIES for name in (lower, lower.upper()))
    found = next((name for name in known if os.environ.get(name)), "")
    if where.loopback or not found or proxy_bypass_environment(where.host):
        return ""
    return (
        f" {found} is set: if that proxy does not reach {where.host}, unset it or add {where.host} "
        "to no_proxy."
    )
