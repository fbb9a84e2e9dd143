"""HTTP and HTTPS listener of a party: uvicorn behind one address, with the limits of
`connection_limits`, certificates that may be replaced while it runs, and an end that waits for
answers only so long."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from fedrec.errors import RunError, SettingsError
from fedrec.operations.addresses import Address
from fedrec.transport.connection_limits import ConnectionLimits, bounded
from fedrec.transport.server_tls import RenewedContext

_LOOK_S = 0.005
"""Until it listens, which uvicorn tells nobody."""
_BACKLOG = 512
"""Connections that the system holds until they are accepted: a burst of new ones."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a listener. client_ca: callers need a certificate of it; None for none."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class HttpListener:
    """An ASGI application at `listen`, whose port is taken from here on.

    setting: what names the address, for errors; tls: None for plain HTTP; idle_s: for the next
    request of a connection; grace_s: for answers that are under way at the end.

    Raises SettingsError where the address or the files cannot be used.
    """

    def __init__(
        self,
        application: Any,
        listen: Address,
        limits: ConnectionLimits,
        log: logging.Logger,
        *,
        setting: str,
        tls: TlsFiles | None = None,
        idle_s: float = 5.0,
        grace_s: float = 5.0,
    ) -> None:
        # Its words are about malformed requests of anybody who finds the port, and not in our form.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            application,
            http=bounded(limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # uvicorn counts whole seconds, and of these 0 means for ever
            timeout_keep_alive=max(1, round(idle_s)),
            timeout_graceful_shutdown=max(1, round(grace_s)),
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
            ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
        )
        try:
            config.load()
        except OSError as failure:  # of ssl too
            raise SettingsError(
                f"{setting}: the certificate cannot be used: {failure}",
                "Correct the files that the settings name.",
            ) from None
        self._server = _Server(config)
        self._socket = _bound(listen, setting)
        if config.ssl and tls:
            self._server.shown = RenewedContext(config.ssl, tls.certificate, tls.key, log)
        self.address = Address(listen.host, int(self._socket.getsockname()[1]))

    async def start(self) -> None:
        """Serve in the running event loop until `end`."""
        self._serving = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(_LOOK_S)

    async def end(self) -> None:
        """Accept nothing more, and wait for answers that are under way."""
        self._server.should_exit = True
        await self._serving

    @contextmanager
    def in_thread(self, name: str) -> Iterator[Address]:
        """Serve in a thread with an event loop of its own until the block ends."""
        thread = threading.Thread(target=self._server.run, args=([self._socket],), name=name)
        thread.start()
        try:
            while not self._server.started:
                if not thread.is_alive():
                    raise RunError(f"the thread {name!r} did not start to serve", "See the log.")
                thread.join(_LOOK_S)
            yield self.address
        finally:
            self._server.should_exit = True
            thread.join()


class _Server(uvicorn.Server):
    shown: RenewedContext | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's: they stop all that it serves."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self.shown is not None:
            self.shown.look()
        return await super().on_tick(counter)


def _bound(listen: Address, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family, backlog=_BACKLOG)
    except OSError as failure:
        raise SettingsError(
            f"{setting} = {str(listen)!r}: {failure.strerror or failure}",
            "Name a free address, or port 0.",
        ) from None
