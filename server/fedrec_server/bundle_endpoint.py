"""HTTPS endpoint of the server's current bundle, read-only: what a serving process on another
machine fetches it from.

    GET /v1/bundle    Authorization: Bearer TOKEN    ETag: "SHA-256 of the file"; 304 to
        If-None-Match, 404 before the first model

The bundle is public once it is served; the token keeps strangers from loading the process that
trains. Nothing else is read, and nothing a caller sends is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec.operations.connections import Connections
from fedrec.serving.bundle import FILE
from fedrec.transport.server_tls import RenewedContext

log = logging.getLogger(__name__)

PATH = "/v1/bundle"
_PIECE_BYTES = 2**18
"""Sent at a time, so that no download holds the whole bundle in memory."""
_PIECE_S = 30.0  # for a piece: whoever takes none for so long gives its place away
_AT_ONCE = 16  # downloads: more would only share the same line
_CONNECTIONS = 64  # of all peers: each holds a thread of the server that trains
_PER_PEER = 16
"""Open ones: each has a thread, and whoever opens it shows its token later."""


class BundleEndpoint:
    """A context that serves `folder/serving.safetensors`. tokens: SHA-256 of those that are let in,
    in hexadecimal digits. head_s: for a request's head to arrive, and before it for TLS."""

    def __init__(
        self,
        folder: Path,
        listen: Address,
        tokens: Sequence[str],
        *,
        certificate: Path | None,
        key: Path | None,
        head_s: float = 10.0,
    ) -> None:
        self._file = folder / FILE
        self._tokens = tuple(tokens)
        self._listen = listen
        self._pair = (certificate, key)
        self.head_s = head_s
        self._known: tuple[tuple[int, int, int], str] | None = None
        self._lock = threading.Lock()  # the digest of one file is computed once, whoever asks
        self._places = threading.BoundedSemaphore(_AT_ONCE)  # of downloads, on threads of their own

    def __enter__(self) -> Self:
        """Raises SettingsError where the address or the certificate cannot be used."""
        certificate, key = self._pair
        try:
            context = None
            if certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.load_cert_chain(certificate, key)
            self._server = server = _Server(self, self._listen, context)
            if context is not None and certificate is not None and key is not None:
                server.shown = RenewedContext(context, certificate, key, log)
        except (OSError, ssl.SSLError) as failure:
            words = f"publish: {self._listen}: {failure.strerror or failure}"
            raise SettingsError(
                words, "Name a free address and a readable certificate in the server's settings."
            ) from None
        self._thread = threading.Thread(target=server.serve_forever, name="publish", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(self._listen.host, int(self._server.server_address[1]))

    def lets_in(self, authorization: str) -> bool:
        """Whether the header shows a token that is known."""
        token = (
            authorization.removeprefix("Bearer ").strip()
            if authorization.startswith("Bearer ")
            else ""
        )
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        return bool(token) and any(hmac.compare_digest(digest, known) for known in self._tokens)

    def opened(self) -> tuple[int, str, int] | None:
        """A file descriptor of the current bundle, its SHA-256 and its size; None before there is
        one. The caller closes it."""
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        state = os.fstat(descriptor)
        stamp = (state.st_ino, state.st_size, state.st_mtime_ns)
        with self._lock:
            if self._known is None or self._known[0] != stamp:
                with open(descriptor, "rb", closefd=False) as file:
                    self._known = stamp, hashlib.file_digest(file, "sha256").hexdigest()
            return descriptor, self._known[1], state.st_size

    def place(self) -> bool:
        """Take one of the few places for downloads; `leave` gives it back."""
        return self._places.acquire(blocking=False)

    def leave(self) -> None:
        """See `place`."""
        self._places.release()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    shown: RenewedContext | None = None

    def __init__(
        self, endpoint: BundleEndpoint, listen: Address, context: ssl.SSLContext | None
    ) -> None:
        self.endpoint = endpoint
        self._context = context
        self._lock = threading.Lock()  # connections are counted by their threads
        self._open = 0
        self._of_peer = Connections(_PER_PEER)
        self.address_family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        super().__init__((listen.host, listen.port), _Handler)

    def service_actions(self) -> None:
        """Twice a second."""
        if self.shown is not None:
            self.shown.look()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread, or hang up on one too many."""
        with self._lock:
            self._open += 1
            room = self._of_peer.connect(client_address[0]) and self._open <= _CONNECTIONS
        try:
            if not room:
                raise ConnectionRefusedError
            super().process_request(request, client_address)
        except BaseException:  # also where no thread can be started
            self._ended(client_address)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The whole of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(client_address)

    def _ended(self, client_address: Any) -> None:
        with self._lock:
            self._open -= 1
            self._of_peer.disconnect(client_address[0])

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: who is slow at the handshake holds up nobody."""
        request.settimeout(self.endpoint.head_s)
        if self._context is not None:
            request = self._context.wrap_socket(request, server_side=True)
        try:
            super().finish_request(request, client_address)
        finally:
            request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is nobody's business."""


class _Head(io.RawIOBase):
    """What arrives on a connection until a deadline: a timeout alone begins anew with each
    byte."""

    def __init__(self, line: socket.socket, time_s: float) -> None:
        self._line = line
        self._end_s = time.monotonic() + time_s

    def readable(self) -> bool:
        """Implements `RawIOBase.readable`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError at the deadline."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0.0:
            raise TimeoutError
        self._line.settimeout(left_s)
        return self._line.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "fedrec"
    sys_version = ""

    def setup(self) -> None:
        """Read the head until its deadline."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection, self.server.endpoint.head_s))

    def do_GET(self) -> None:
        """The bundle, or why not."""
        endpoint = self.server.endpoint
        self.connection.settimeout(_PIECE_S)
        if self.path != PATH:
            return self._say(404)
        if not endpoint.lets_in(self.headers.get("Authorization", "")):
            return self._say(401)
        if not endpoint.place():
            return self._say(503)
        try:
            self._send(endpoint)
        finally:
            endpoint.leave()
        return None

    def _send(self, endpoint: BundleEndpoint) -> None:
        found = endpoint.opened()
        if found is None:
            return self._say(404)
        descriptor, sha256, size = found
        try:
            if self.headers.get("If-None-Match", "") == f'"{sha256}"':
                return self._say(304, sha256)
            self.send_response(200)
            for name, value in (
                ("ETag", f'"{sha256}"'),
                ("Content-Length", str(size)),
                ("Content-Type", "application/octet-stream"),
            ):
                self.send_header(name, value)
            self.end_headers()
            start = 0
            while piece := os.pread(descriptor, _PIECE_BYTES, start):
                self.wfile.write(piece)
                start += len(piece)
        finally:
            os.close(descriptor)
        return None

    def _say(self, status: int, sha256: str = "") -> None:
        self.send_response(status)
        if sha256:
            self.send_header("ETag", f'"{sha256}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: their lines are the caller's."""
