"""Limits on what peers use of this process at once: calls and bytes, bounded for each peer and for
all together.

Used on the event loop alone, so there is no lock. What is over a bound is refused as BUSY before
anything is read; the caller comes back. Servers have bounds of their own, so that no crowd of
clients keeps a server out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Self

from fedrec.federation.protocol import Refusal
from fedrec.federation.wire import refused
from fedrec_aggregator.credentials import Caller
from fedrec_aggregator.settings_tables import TrafficSettings


class Traffic:
    """Calls of peers that run now, and the announced bytes of all uploads among them."""

    def __init__(self, bounds: TrafficSettings) -> None:
        self._bounds = bounds
        self._calls, self._bytes = Counter[Caller](), Counter[Caller]()

    @property
    def calls(self) -> int:
        """All calls that run now."""
        return self._calls.total()

    def enter(self, peer: Caller) -> TrafficShare:
        """Let a call in. Raises RefusedError (`BUSY`)."""
        if peer.role != "client":
            if self._calls[peer] >= self._bounds.max_calls_per_server:
                raise _busy(f"{peer.role} {peer.name!r} has {self._calls[peer]} calls running")
        elif self._calls[peer] >= self._bounds.max_uploads_per_client:
            raise _busy(f"client {peer.name!r} has {self._calls[peer]} calls running")
        elif (
            sum(count for one, count in self._calls.items() if one.role == "client")
            >= self._bounds.max_uploads
        ):
            raise _busy("too many clients are reporting")
        self._calls[peer] += 1
        return TrafficShare(self, peer)

    def reserve(self, peer: Caller, size: int) -> None:
        """Set memory aside: for one peer at most half of what the others leave, so that no peer
        keeps them out. Raises RefusedError (`BUSY`)."""
        mine = self._bytes[peer]
        left = self._bounds.max_upload_bytes - (self._bytes.total() - mine)
        if mine + size > left // 2:
            raise _busy("other reports hold the memory that this one needs")
        self._bytes[peer] += size

    def leave(self, peer: Caller, size: int) -> None:
        """A call is over, and so is the use of its memory."""
        self._bytes[peer] -= size
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer], self._bytes[peer]


class TrafficShare:
    """One call's share of the traffic: a context, which ends when the block and every thread that
    works for it have ended."""

    def __init__(self, traffic: Traffic, peer: Caller) -> None:
        self._traffic, self.peer = traffic, peer
        self._size, self._users = 0, 1

    def reserve(self, size: int) -> None:
        """Set memory aside for this call. Raises RefusedError (`BUSY`)."""
        self._traffic.reserve(self.peer, size)
        self._size += size

    def share(self) -> Callable[[object], None]:
        """Keep the place for a thread that a caller who gives up does not end; the result is called
        when the thread has ended."""
        self._users += 1
        return lambda _: self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _end(self) -> None:
        self._users -= 1
        if not self._users:
            self._traffic.leave(self.peer, self._size)


def _busy(cause: str) -> Exception:
    return refused(Refusal.BUSY, cause, "Send it again in a moment.")
