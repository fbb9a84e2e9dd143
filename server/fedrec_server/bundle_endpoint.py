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
import os
import ssl
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec.serving.bundle import FILE

PATH = "/v1/bundle"
_PIECE_BYTES = 2**18
_REQUEST_S, _AT_ONCE = 30.0, 16


class BundleEndpoint:
    """A context that serves `folder/serving.safetensors`. tokens: SHA-256 of those that are let in,
    in hexadecimal digits."""

    def __init__(
        self,
        folder: Path,
        listen: Address,
        tokens: Sequence[str],
        *,
        certificate: Path | None,
        key: Path | None,
    ) -> None:
        self._file, self._tokens, self._listen, self._pair = (
            folder / FILE,
            tuple(tokens),
            listen,
            (certificate, key),
        )
        self._known: tuple[tuple[int, int, int], str] | None = None
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(_AT_ONCE)

    def __enter__(self) -> Self:
        """Raises SettingsError where the address or the certificate cannot be used."""
        endpoint = self
        certificate, key = self._pair
        try:
            context = None
            if certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.load_cert_chain(certificate, key)
            server = _Server((self._listen.host, self._listen.port), _Handler)
        except (OSError, ssl.SSLError) as failure:
            words = f"publish: {self._listen}: {failure.strerror or failure}"
            raise SettingsError(
                words, "Name a free address and a readable certificate in the server's settings."
            ) from None
        server.endpoint, server.context, self._server = endpoint, context, server
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
    daemon_threads, allow_reuse_address = True, True
    endpoint: BundleEndpoint
    context: ssl.SSLContext | None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: who is slow at the handshake holds up nobody."""
        request.settimeout(_REQUEST_S)
        if self.context is not None:
            request = self.context.wrap_socket(request, server_side=True)
        try:
            super().finish_request(request, client_address)
        finally:
            request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is nobody's business."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S
    server_version, sys_version = "fedrec", ""

    def do_GET(self) -> None:
        """The bundle, or why not."""
        endpoint = self.server.endpoint
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
