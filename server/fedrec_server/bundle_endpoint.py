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
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fedrec.operations.addresses import Address
from fedrec.serving.bundle import FILE
from fedrec.transport.connection_limits import ConnectionLimits
from fedrec.transport.http_listener import HttpListener, TlsFiles

log = logging.getLogger(__name__)

PATH = "/v1/bundle"
_PIECE_BYTES = 2**18
"""Sent at a time, so that no download holds the whole bundle in memory."""
_PIECE_S = 30.0  # for a piece: whoever takes none for so long gives its place away
_AT_ONCE = 16  # downloads: more would only share the same line
_CONNECTIONS = 64  # of all peers: strangers take few of the files of the process that trains
_PER_PEER = 16  # those of one address, so that it leaves room for others


@contextmanager
def bundle_endpoint(
    folder: Path,
    listen: Address,
    tokens: Sequence[str],
    *,
    tls: TlsFiles | None = None,
    head_s: float = 10.0,
) -> Iterator[Address]:
    """Serve `folder/serving.safetensors` until the block ends. tokens: SHA-256 of those that are
    let in, in hexadecimal digits. head_s: for a request's head to arrive.

    Raises SettingsError where the address or the certificate cannot be used."""
    limits = ConnectionLimits(_CONNECTIONS, _PER_PEER, request_s=head_s, taken_s=_PIECE_S)
    # a download that is cut begins again at the next look of whoever fetches: no grace for it
    listener = HttpListener(
        _Bundle(folder / FILE, tokens), listen, limits, log, setting="publish", tls=tls, grace_s=0.0
    )
    with listener.in_thread("publish") as address:
        yield address


class _Bundle:
    """The ASGI application. One event loop asks it, so that it needs no lock."""

    def __init__(self, file: Path, tokens: Sequence[str]) -> None:
        self._file = file
        self._tokens = tuple(tokens)
        self._known: tuple[tuple[int, int, int], str] | None = None
        self._downloads = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope)
        if scope["raw_path"] != PATH.encode() or scope["query_string"]:
            return await Response(status_code=404)(scope, receive, send)
        if request.method != "GET":
            return await Response(status_code=405)(scope, receive, send)
        if not self._lets_in(request.headers.get("authorization", "")):
            return await Response(status_code=401)(scope, receive, send)
        if self._downloads >= _AT_ONCE:
            return await Response(status_code=503)(scope, receive, send)
        self._downloads += 1
        try:
            with open(self._file, "rb") as file:  # closed here, however the connection ends
                answer = self._answer(file, request.headers.get("if-none-match", ""))
                await answer(scope, receive, send)
        except FileNotFoundError:
            await Response(status_code=404)(scope, receive, send)
        finally:
            self._downloads -= 1
        return None

    def _lets_in(self, authorization: str) -> bool:
        """Whether the header shows a token that is known."""
        token = (
            authorization.removeprefix("Bearer ").strip()
            if authorization.startswith("Bearer ")
            else ""
        )
        digest = hashlib.sha256(token.encode()).hexdigest()
        return bool(token) and any(hmac.compare_digest(digest, known) for known in self._tokens)

    def _answer(self, file: BufferedReader, known: str) -> Response:
        state = os.fstat(file.fileno())
        stamp = (state.st_ino, state.st_size, state.st_mtime_ns)
        if self._known is None or self._known[0] != stamp:
            self._known = stamp, hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
        headers = {"ETag": f'"{self._known[1]}"'}
        if known == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return StreamingResponse(
            _pieces(file),
            headers=headers | {"Content-Length": str(state.st_size)},
            media_type="application/octet-stream",
        )


async def _pieces(file: BufferedReader) -> AsyncIterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece
