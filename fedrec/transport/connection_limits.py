"""Limits of connections: uvicorn's fast HTTP protocol with the bounds that it leaves open: how many
connections, in all and of one peer, how long a head may take and be, and how long what was sent may
lie untaken.

Where all are taken, a new one takes the place of the oldest that has sent no whole request, of the
peer that has most: silent, slow and idle connections keep nobody out, and a request that arrived
whole is answered.

The parser is fed in pieces that end where a head reaches its bound, so a longer one is refused
however it arrives. A piece that ends one request and begins the next is counted whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedrec.operations.connections import Connections

_WORDS = {
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}

_REST = "fedrec.rest"

_PIECE_BYTES = 4_096
"""Fed to the parser at once: most requests are one piece."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one listener. connections: open at once, of all peers. loopback: limit this
    machine's own one by one too. head_bytes, request_s: of a request's head. taken_s: for the peer
    to take what was written, or what is left when the connection ends."""

    connections: int
    connections_per_peer: int
    loopback: bool = False
    head_bytes: int = 16 * 2**10
    request_s: float = 10.0
    taken_s: float = 30.0


def rest(scope: Mapping[str, Any], seconds: float) -> None:
    """Read nothing more of this request's connection for a while after its answer."""
    scope["state"][_REST](seconds)


def bounded(limits: ConnectionLimits) -> type[HttpToolsProtocol]:
    """The protocol class for `uvicorn.Config(http=...)`, of one listener."""

    of_this_listener = dict[_Bounded, None]()

    class Bounded(_Bounded):
        bounds = limits
        unasked = of_this_listener
        counted = Connections(limits.connections_per_peer, loopback=limits.loopback)

    return Bounded


class _Bounded(HttpToolsProtocol):
    bounds: ConnectionLimits
    counted: Connections
    unasked: dict[_Bounded, None]
    """Those without a whole request, the oldest first."""
    _in_head = True
    _between = False
    _head_bytes = 0
    _address = ""
    _late: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None
    _rest_s = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if not self.counted.connect(self._address):
            self._hang_up(429)
        elif len(self.connections) > self.bounds.connections and not self._has_made_room():
            self._hang_up(503)
        else:
            self.unasked[self] = None
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._taken()
        self.unasked.pop(self, None)
        self.counted.disconnect(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            left = self.bounds.head_bytes - self._head_bytes if self._in_head else _PIECE_BYTES
            if left <= 0:
                self._hang_up(431)
                return
            piece = data[: min(left, _PIECE_BYTES)]
            data = data[min(left, _PIECE_BYTES) :]
            self._between = False
            super().data_received(piece)
            self._head_bytes += len(piece) if self._in_head and not self._between else 0
        if self._head_bytes and self._late is None and not self.transport.is_closing():
            self._wait()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._between = False
        super().on_message_begin()
        self.scope["state"][_REST] = self._rest

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._arrived()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = self._between = True
        self.unasked.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Who was answered before the body came has nothing more to send."""
        if self.cycle.response_complete and self.cycle.more_body:
            self.transport.close()
        super().on_response_complete()
        if self.transport.is_closing():
            self._end_unless_taken()
        elif self.cycle.response_complete:  # another request may have come meanwhile
            self.unasked[self] = None
        if self._rest_s and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_later(self._rest_s, self._go_on)
            self._rest_s = 0.0

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_unless_taken()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()
        if self.transport.is_closing():
            self._end_unless_taken()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end_unless_taken()

    def _end_unless_taken(self) -> None:
        """A peer that reads nothing would hold its connection for ever, ended or not."""
        self._untaken = self._untaken or self.loop.call_later(
            self.bounds.taken_s, self.transport.abort
        )

    def _taken(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def _rest(self, seconds: float) -> None:
        self._rest_s = seconds

    def _go_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _has_made_room(self) -> bool:
        """Whether another connection was ended for this one."""
        most = max(self.unasked, key=lambda one: self.counted.of(one._address), default=None)
        if most is not None:
            del self.unasked[most]
            most.transport.abort()
        return most is not None

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.bounds.request_s, self._hang_up, 408)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _hang_up(self, status: int) -> None:
        self._arrived()
        again = "retry-after: 1\r\n" if status in {429, 503} else ""
        line = f"HTTP/1.1 {status} {_WORDS[status]}\r\ncontent-length: 0\r\nconnection: close\r\n"
        self.transport.write(f"{line}{again}\r\n".encode())
        self.transport.close()
        self._end_unless_taken()
