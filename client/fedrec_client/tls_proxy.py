"""TLS proxy of a SuperNode: a listener on loopback whose every connection goes on as mutual TLS,
the server examined first.

    flower-supernode --plain HTTP, loopback--> this process --TLS, client's certificate--> the
        server's proxy

A SuperNode can show no certificate, and would take any server's that its authority signed. So it is
given this address, and bytes pass unread both ways. Nothing passes before the proxy's certificate
says "server" and has the pinned key. Whoever else is on this machine must not speak in the client's
name: a connection of another user is ended (where the system says whose it is: Linux).
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography import x509

from fedrec.errors import FedRecError
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.transport.channel import Access, examine, tls

_HOST = "127.0.0.1"
_PIECE = 2**16
_AWAY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
"""What a SuperNode takes as: wait, and try again."""

log = logging.getLogger(__name__)


@dataclass
class Way:
    """A context that forwards. access: the proxy, with `party` "server". connect_s: for the proxy
    to answer. Raises SettingsError."""

    access: Access
    connect_s: float = 20.0
    address: str = field(default="", init=False)
    _last_cause: str = field(default="", init=False)

    def __enter__(self) -> Self:
        self._where = Address.of(self.access.address)
        self._context = tls(self.access, protocol="http/1.1")
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        listens = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete,
            args=(self._serve(listens),),
            name="way",
            daemon=True,
        )
        self._thread.start()
        listens.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, listens: threading.Event) -> None:
        lines = set[asyncio.Task[None]]()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._forward(reader, writer))
            lines.add(task)
            task.add_done_callback(lines.discard)

        server = await asyncio.start_server(begin, _HOST, 0)
        self._port = int(server.sockets[0].getsockname()[1])
        self.address = f"{_HOST}:{self._port}"
        listens.set()
        await self._stopping.wait()
        server.close()
        for line in tuple(lines):
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not _is_ours(int(writer.get_extra_info("peername")[1]), self._port):
                return
            far_reader, far_writer = await self._opened()
            with suppress(OSError):
                try:
                    await _both(_piped(reader, far_writer), _piped(far_reader, writer))
                finally:
                    far_writer.close()
        except (OSError, TimeoutError, FedRecError) as failure:
            self._say(failure)
            with suppress(OSError):
                # else closing would reset the line before the answer is read
                await reader.read(_PIECE)
                writer.write(_AWAY)
                await writer.drain()
        finally:
            writer.close()

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A line to the proxy.

        Raises OSError, TimeoutError; RefusedError (`WRONG_CERTIFICATE`) before a byte has left."""
        async with asyncio.timeout(self.connect_s):
            far = await asyncio.open_connection(
                self._where.host,
                self._where.port,
                ssl=self._context,
                server_hostname=self._where.host,
            )
        shown = far[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
        try:
            examine(x509.load_der_x509_certificate(shown or b""), self.access)
        except FedRecError:
            far[1].close()
            raise
        return far

    def _say(self, failure: Exception) -> None:
        """Once for each cause: a SuperNode tries again every few seconds."""
        untrusted = isinstance(failure, FedRecError | ssl.SSLCertVerificationError)
        cause = "proxy-not-trusted" if untrusted else "proxy-away"
        if cause != self._last_cause:
            self._last_cause = cause
            words = (
                failure.cause
                if isinstance(failure, FedRecError)
                else str(failure) or type(failure).__name__
            )
            logs.say(log, cause, level=logging.WARNING, address=self.access.address, cause=words)


async def _both(*pumps: Coroutine[object, object, None]) -> None:
    """Until either direction has ended: HTTP on a line that is half closed goes no further."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _piped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()


def _is_ours(port: int, listening: int) -> bool:
    """Whether the connection from this port of loopback to ours was made by this process's user."""
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return True
    ends = f"0100007F:{port:04X}", f"0100007F:{listening:04X}"
    users = [fields[7] for fields in map(str.split, lines) if (fields[1], fields[2]) == ends]
    return not users or users[0] == str(os.getuid())
