"""Rate limiter for one peer: requests in progress, and requests a second (a token bucket).

Used on the event loop alone, so there is no lock. A peer is an address: who asks is not known here,
and is not to be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from fedrec.operations.addresses import here
from fedrec_server.serving.refusals import busy
from fedrec_server.serving.settings import LimitsTable

_MOST_KNOWN = 65_536
"""Peers remembered; beyond them those with a full bucket and nothing in progress are forgotten,
which changes nothing for them."""


class _Peer:
    __slots__ = ("running", "seen_s", "tokens")

    def __init__(self, tokens: float, now_s: float) -> None:
        self.running = 0
        self.tokens = tokens
        self.seen_s = now_s


class Peers:
    """All peers. `clock` in seconds."""

    def __init__(self, bounds: LimitsTable, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._clock = clock
        self._burst = max(1.0, 2.0 * bounds.per_second_per_peer)
        self._known: dict[str, _Peer] = {}
        self.downloads = 0

    def enter(self, address: str) -> RequestInProgress:
        """Let a request in; to be used as a context. Raises RefusedError (`BUSY`)."""
        if not self._bounds.loopback and here(address):
            return RequestInProgress(None)
        now_s = self._clock()
        peer = self._known.get(address) or self._new(address, now_s)
        peer.tokens = min(
            self._burst, peer.tokens + (now_s - peer.seen_s) * self._bounds.per_second_per_peer
        )
        peer.seen_s = now_s
        if peer.running >= self._bounds.per_peer:
            raise busy("too many requests of this peer are in progress")
        if peer.tokens < 1.0:
            raise busy("too many requests of this peer a second")
        peer.tokens -= 1.0
        return RequestInProgress(peer)

    def enter_download(self) -> Download:
        """Let a download of a bundle in. Raises RefusedError (`BUSY`)."""
        if self.downloads >= self._bounds.downloads:
            raise busy("too many bundles are being taken")
        return Download(self)

    def _new(self, address: str, now_s: float) -> _Peer:
        if len(self._known) >= _MOST_KNOWN:
            full_s = now_s - self._burst / self._bounds.per_second_per_peer
            self._known = {
                name: peer
                for name, peer in self._known.items()
                if peer.running or peer.seen_s > full_s
            }
            if len(self._known) >= _MOST_KNOWN:
                raise busy("too many peers at once")
        peer = self._known[address] = _Peer(self._burst, now_s)
        return peer


class RequestInProgress:
    """One request in progress."""

    __slots__ = ("_peer",)

    def __init__(self, peer: _Peer | None) -> None:
        self._peer = peer

    def __enter__(self) -> Self:
        if self._peer:
            self._peer.running += 1
        return self

    def __exit__(self, *exception: object) -> None:
        if self._peer:
            self._peer.running -= 1


class Download:
    """One bundle being taken."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def __enter__(self) -> Self:
        self._peers.downloads += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self._peers.downloads -= 1
