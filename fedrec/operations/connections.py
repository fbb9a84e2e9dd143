"""Open connections of one listener, counted by peer."""

from __future__ import annotations

import ipaddress
from collections import Counter
from functools import lru_cache


class Connections:
    """Those of one listener. loopback: whether this machine's own are limited too: one of them may
    be a proxy for everybody. There is no lock."""

    def __init__(self, per_peer: int, *, loopback: bool = False) -> None:
        self._per_peer = per_peer
        self._loopback = loopback
        self._open = Counter[str]()

    def connect(self, address: str) -> bool:
        """Count a connection; False where this peer has too many, which is counted too until
        `disconnect`."""
        self._open[address] += 1
        return self._open[address] <= self._per_peer or (not self._loopback and here(address))

    def of(self, address: str) -> int:
        """How many a peer has open."""
        return self._open[address]

    def disconnect(self, address: str) -> None:
        """A connection that was counted ended."""
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


@lru_cache(4_096)
def here(address: str) -> bool:
    """Whether it is this machine's own."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
