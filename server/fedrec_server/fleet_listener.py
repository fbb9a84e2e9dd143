"""Listener in front of the SuperLink, with mutual TLS: what it lets in, `fleet_proxy` sends on."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from asyncio import sslproto
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec_server.fleet_proxy import SHOWN, TLS_READ_BYTES, Certificate, FleetLimits, FleetProxy


@dataclass
class FleetListener:
    """The proxy being served in a thread of this process. A context that ends the serving.
    `address` holds the port taken.

    holds: requests for messages wait for `wake`, with which whoever sends messages tells of them.
    """

    listen: Address
    upstream: Callable[[], str]
    certificate: Certificate | None = None
    limits: FleetLimits = field(default_factory=FleetLimits)
    holds: bool = False
    address: Address = field(init=False)

    def __enter__(self) -> Self:
        """Listen.

        Raises SettingsError where the address cannot be had, or the certificate cannot be used."""
        if self.certificate is None and not self.listen.loopback:
            raise SettingsError(
                f"the reverse proxy on {self.listen} has no TLS",
                "Give superlink.certificate, key and client_ca, or listen on loopback.",
            )
        sslproto.SSLProtocol.max_size = TLS_READ_BYTES
        self._socket = _listening(self.listen)
        self.address = Address(self.listen.host, int(self._socket.getsockname()[1]))
        self._proxy = FleetProxy(self.upstream, self.limits, self.certificate, holds=self.holds)
        self._server = uvicorn.Server(self._config())
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="proxy", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._proxy.closing.set()
        self.hold_nobody()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def owner(self, node: int) -> str:
        """The client that a node of Flower is, "" where that is not known: without TLS of none."""
        return self._proxy.nodes.owner(node)

    @property
    def held(self) -> int:
        """Requests for messages that wait."""
        return self._proxy.pulls.held

    def wake(self, nodes: Iterable[int]) -> None:
        """There are messages for these nodes. Any thread may call."""
        told = list(nodes)
        self._soon(lambda: self._proxy.pulls.wake(told))

    def hold_nobody(self) -> None:
        """Requests that wait are turned away, later ones are passed on at once."""
        self._soon(self._proxy.pulls.close)

    def _soon(self, act: Callable[[], None]) -> None:
        if self._proxy.loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._proxy.loop.call_soon_threadsafe(act)

    def _config(self) -> uvicorn.Config:
        """h11, because it bounds the bytes of a request's head."""
        own = self.certificate
        try:
            config = uvicorn.Config(
                self._proxy,
                http=_ShownToTheApp,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=3,
                h11_max_incomplete_event_size=2**14,
                ssl_certfile=own.certificate if own else None,
                ssl_keyfile=own.key if own else None,
                ssl_ca_certs=str(own.client_ca) if own else None,
                ssl_cert_reqs=ssl.CERT_REQUIRED if own else ssl.CERT_NONE,
            )
            config.load()
            # Its words are about malformed requests of anybody who finds the port, and not in our
            # form.
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        except OSError as failure:  # of ssl too
            self._socket.close()
            raise SettingsError(
                f"the reverse proxy's certificates cannot be used: {failure}",
                "Correct superlink.certificate, superlink.key and superlink.client_ca.",
            ) from None
        return config


class _ShownToTheApp(H11Protocol):
    """HTTP on one connection; the certificate that its peer showed is in the state of each of its
    requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        line = transport.get_extra_info("ssl_object")
        if line is not None:
            self.app_state = {**self.app_state, SHOWN: line.getpeercert(binary_form=True) or b""}


def _listening(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=256)
    except OSError as failure:
        raise SettingsError(
            f"the reverse proxy cannot listen on {address}: {failure.strerror or failure}",
            "Name a free address, or port 0.",
        ) from None
