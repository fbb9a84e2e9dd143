"""HTTPS endpoint of light devices in an aggregator's process, in a thread of its own.

HTTP for light devices: what everybody asks for, by its digest, and one person's reports, handed
to the aggregator.

Content is the same for everybody and immutable, so that any cache may keep it: whoever fetches it
checks its digest. A device is known by a bearer secret of its own; the aggregator sees a hash of it
as the sender's name, and a pseudonym belongs to the sender that enrolled it first. Nothing here
says that a device is a person: whoever operates it admits secrets by `admits`. TLS ends in
this listener, or at a reverse proxy before it.

Content that light devices read, as a server published it: from a folder, or over HTTPS with
every digest checked and kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fedrec.errors import RefusedError, SettingsError
from fedrec.federation.protocol import TOKEN_BYTES, Receipt, Refusal
from fedrec.federation.report_batches import MAX_DEVICE_BYTES
from fedrec.federation.wire import refused
from fedrec.operations.addresses import Address
from fedrec.transport.connection_limits import ConnectionLimits
from fedrec.transport.http_listener import HttpListener, TlsFiles
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.postgres_ledger import LedgerAwayError
from fedrec_aggregator.settings_tables import DevicesTable

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROUND = re.compile(r"[0-9]{1,9}")
"""Starlette's own integers fail past the digits that Python converts, before anybody is known."""
_MOST_BYTES = 1 << 30  # of a file of the server's: as devices take at most
_KEPT_BYTES = 1 << 28  # of memory: a round's content for thousands of devices is fetched once
_TIMEOUT_S = 20.0  # of the server, which a device waits for
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_NEVER = {"Cache-Control": "no-store"}
_PIECE_BYTES = 2**16  # sent at a time, so that slow devices hold no copies
log = logging.getLogger(__name__)
_CALLS_AT_ONCE = 1_000  # of all peers: what one event loop answers without delay


class PublishedContent:
    """What a server published (`fedrec_server.workload`). get: its file of a name, "v1/round"
    or "v1/content/SHA256"; raises OSError where it has none.

    Bytes are kept by digest, so that all who fetch them share one copy: up to `most_bytes`, the
    least recently asked for dropped first.
    """

    def __init__(self, get: Callable[[str], bytes], *, most_bytes: int = _KEPT_BYTES) -> None:
        self._get = get
        self._most = most_bytes
        self._kept = OrderedDict[str, bytes]()
        self._lock = Lock()  # requests come on several threads; what is kept is ordered by use

    def told(self) -> bytes:
        """The round that is open, as JSON; "{}" where there is none, or none can be read."""
        return self._fetched("v1/round") or b"{}"

    def content(self, sha256: str) -> bytes | None:
        """Bytes of that digest; None where there are none."""
        if not _DIGEST.fullmatch(sha256):
            return None
        with self._lock:
            if sha256 in self._kept:
                self._kept.move_to_end(sha256)
                return self._kept[sha256]
        found = self._fetched(f"v1/content/{sha256}")
        if found is None or hashlib.sha256(found).hexdigest() != sha256:
            return None
        with self._lock:
            found = self._kept.setdefault(sha256, found)
            while sum(map(len, self._kept.values())) > self._most:
                self._kept.popitem(last=False)
        return found

    def _fetched(self, name: str) -> bytes | None:
        try:
            return self._get(name)
        except OSError:
            return None


def in_folder(folder: Path) -> Callable[[str], bytes]:
    """Reads the folder itself."""
    return lambda name: (folder / name).read_bytes()


def at_address(address: str, *, ca: str = "") -> Callable[[str], bytes]:
    """Asks a web server or a cache that serves the folder at https://HOST/PATH, without v1. ca: ""
    for the system's authorities.

    Raises SettingsError on another address."""
    if not address.startswith("https://"):
        raise SettingsError(
            f"devices.content = {address!r} is no folder and no https address",
            "Name the server's devices folder.",
        )
    opener = _opener(address, ca)

    def get(name: str) -> bytes:
        with opener.open(f"{address.rstrip('/')}/{name}", timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read(_MOST_BYTES))

    return get


def _opener(address: str, ca: str) -> OpenerDirector:
    local = Address(urlsplit(address).hostname or "", 0).loopback  # no proxy to this machine
    return build_opener(
        HTTPSHandler(context=ssl.create_default_context(cafile=ca or None)),
        ProxyHandler({} if local else None),
    )


class DeviceIntake:
    """The round that devices may answer, and what they ask for. May be called from any thread.

    source: what a server published. admits: whether a sender, the hash of a device's secret, may
    take part.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        source: PublishedContent,
        *,
        admits: Callable[[str], bool] = lambda sender: True,
    ) -> None:
        self._aggregator = aggregator
        self._admits = admits
        self.source = source

    def require_admitted(self, secret: str) -> None:
        """Raises RefusedError where the device is not admitted."""
        self._sender(secret)

    def enroll(self, token: bytes, secret: str) -> dict[str, Any]:
        """Make one person known. Raises RefusedError."""
        if len(token) != TOKEN_BYTES:
            raise refused(Refusal.MALFORMED, f"a user's pseudonym has {TOKEN_BYTES} bytes")
        self._aggregator.enroll(self._sender(secret), [token], max_users=1)
        return {}

    def forget(self, token: bytes, secret: str) -> dict[str, Any]:
        """Count one person no more; what is stated of it. Raises RefusedError."""
        return vars(self._aggregator.forget(self._sender(secret), token))

    def report(self, run: str, round: int, batch: bytes, secret: str) -> Receipt:
        """Hand in one person's report. Raises RefusedError where the device is not admitted."""
        return self._aggregator.report(self._sender(secret), run, round, batch)

    def _sender(self, secret: str) -> str:
        sender = f"device-{hashlib.sha256(secret.encode()).hexdigest()[:32]}"
        if len(secret) < 32 or not self._admits(sender):
            raise refused(Refusal.FORBIDDEN, "this device is not admitted")
        return sender


def application(intake: DeviceIntake, *, body_s: float = 60.0) -> Starlette:
    """The routes of `fedrec_client.device.service`. body_s: for what an admitted device sends to
    arrive."""

    async def current(request: Request) -> Response:
        told = await asyncio.to_thread(intake.source.told)
        return Response(told, headers=_NEVER, media_type="application/json")

    async def content(request: Request) -> Response:
        found = await asyncio.to_thread(intake.source.content, request.path_params["sha256"])
        if found is None:
            return _refusal(
                refused(Refusal.ROUND_UNKNOWN, "nothing of the current round has this digest"), 404
            )
        # in pieces: a connection holds no more of what is not taken
        return StreamingResponse(
            _pieces(found),
            headers=_FOR_EVER | {"Content-Length": str(len(found))},
            media_type="application/octet-stream",
        )

    async def posted(request: Request) -> tuple[bytes, str]:
        """The body and the secret, which is looked at first: of strangers nothing is taken."""
        secret = request.headers.get("authorization", "").removeprefix("Bearer ")
        await asyncio.to_thread(intake.require_admitted, secret)
        try:
            async with asyncio.timeout(body_s):
                return await _body(request), secret
        except TimeoutError:
            raise HTTPException(408) from None

    def answering(
        act: Callable[[bytes, str], dict[str, Any]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                told = await asyncio.to_thread(act, *await posted(request))
            except RefusedError as refusal:
                return _refusal(refusal)
            except LedgerAwayError:
                raise HTTPException(503) from None
            return Response(json.dumps(told), headers=_NEVER, media_type="application/json")

        return answer

    async def reports(request: Request) -> Response:
        try:
            run = request.path_params["run"]
            if not _ROUND.fullmatch(round := request.path_params["round"]):
                raise refused(Refusal.ROUND_UNKNOWN, "a round is a number of at most nine digits")
            batch, secret = await posted(request)
            receipt = await asyncio.to_thread(intake.report, run, int(round), batch, secret)
        except RefusedError as refusal:
            return _refusal(refusal)
        told = {"accepted": receipt.accepted, "rejected": dict(receipt.rejected)}
        return Response(json.dumps(told).encode(), headers=_NEVER, media_type="application/json")

    return Starlette(
        routes=[
            Route("/v1/round", current),
            Route("/v1/content/{sha256}", content),
            Route("/v1/users", answering(intake.enroll), methods=["POST"]),
            Route("/v1/departures", answering(intake.forget), methods=["POST"]),
            Route("/v1/reports/{run}/{round}", reports, methods=["POST"]),
        ]
    )


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


async def _body(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > MAX_DEVICE_BYTES:
            raise refused(Refusal.TOO_LARGE, f"a device sends at most {MAX_DEVICE_BYTES} bytes")
    return bytes(content)


def _refusal(refusal: RefusedError, status: int = 403) -> Response:
    told = json.dumps({"code": refusal.code, "cause": refusal.cause}).encode()
    return Response(told, status, headers=_NEVER, media_type="application/json")


@contextmanager
def device_endpoint(
    core: Aggregator, table: DevicesTable, *, request_s: float = 10.0, taken_s: float = 30.0
) -> Iterator[Address]:
    """Serve devices until the block ends. request_s, taken_s: see `ConnectionLimits`.

    Raises SettingsError where the address or the files cannot be used."""
    admitted = None if table.any_device else _admitted(Path(table.admitted))
    get = (
        at_address(table.content, ca=table.ca)
        if table.content.startswith("https:")
        else in_folder(table.folder)
    )
    intake = DeviceIntake(
        core,
        PublishedContent(get),
        admits=lambda sender: admitted is None or sender in admitted,
    )
    tls = TlsFiles(Path(table.certificate), Path(table.key)) if table.certificate else None
    limits = ConnectionLimits(
        _CALLS_AT_ONCE, table.connections_per_peer, request_s=request_s, taken_s=taken_s
    )
    listen = Address.of(table.listen)
    listener = HttpListener(
        application(intake), listen, limits, log, setting="devices.listen", tls=tls
    )
    with listener.in_thread("devices") as address:
        yield address


def _admitted(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text(encoding="utf-8").split())
    except OSError as failure:
        raise SettingsError(
            f"devices.admitted: {path}: {failure.strerror or failure}",
            "Name a file of senders, one a line.",
        ) from None
