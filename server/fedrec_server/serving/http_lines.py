"""uvicorn's fast HTTP protocol with the bounds that it leaves open: how many connections, how long a head may take and be."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedrec_server.serving.settings import LimitsTable

_WORDS = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


def bounded(limits: LimitsTable) -> type[HttpToolsProtocol]:
    """The protocol class for `uvicorn.Config(http=...)`."""

    class Bounded(_Bounded):
        bounds = limits

    return Bounded


class _Bounded(HttpToolsProtocol):
    bounds: LimitsTable
    _in_head, _head_bytes = True, 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            self._hang_up(503)
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.bounds.head_bytes:
                self._hang_up(431)
            elif self._late is None:
                self._wait()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._arrived()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.bounds.request_s, self._hang_up, 408)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _hang_up(self, status: int) -> None:
        self._arrived()
        line = f"HTTP/1.1 {status} {_WORDS[status]}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        self.transport.write(line.encode())
        self.transport.close()
