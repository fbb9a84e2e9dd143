"""HTTP for light devices: what everybody asks for, by its digest, and one person's reports, handed
to the aggregator.

Content is the same for everybody and immutable, so that any cache may keep it: whoever fetches it
checks its digest. A device is known by a bearer secret of its own; the aggregator sees a hash of it
as the sender's name, and a pseudonym belongs to the sender that enrolled it first. Nothing here
says that a device is a person: whoever operates the leaf admits secrets by `admits`. TLS ends in
front of this, at uvicorn or at a reverse proxy.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fedrec.errors import RefusedError
from fedrec.federation.protocol import TOKEN_BYTES, Receipt, Refusal
from fedrec.federation.report_batches import MAX_DEVICE_BYTES
from fedrec.federation.wire import refused
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.device_content import PublishedContent

_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_NEVER = {"Cache-Control": "no-store"}
_PIECE_BYTES = 2**16


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

    def enroll(self, token: bytes, secret: str) -> None:
        """Make one person known. Raises RefusedError."""
        if len(token) != TOKEN_BYTES:
            raise refused(Refusal.MALFORMED, f"a user's pseudonym has {TOKEN_BYTES} bytes")
        self._aggregator.enroll(self._sender(secret), [token], max_users=1)

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
        secret = _secret(request)
        await asyncio.to_thread(intake.require_admitted, secret)
        try:
            async with asyncio.timeout(body_s):
                return await _body(request), secret
        except TimeoutError:
            raise HTTPException(408) from None

    async def users(request: Request) -> Response:
        try:
            token, secret = await posted(request)
            await asyncio.to_thread(intake.enroll, token, secret)
        except RefusedError as refusal:
            return _refusal(refusal)
        return Response(b"{}", headers=_NEVER, media_type="application/json")

    async def reports(request: Request) -> Response:
        try:
            run = request.path_params["run"]
            round = request.path_params["round"]
            batch, secret = await posted(request)
            receipt = await asyncio.to_thread(intake.report, run, round, batch, secret)
        except RefusedError as refusal:
            return _refusal(refusal)
        told = {"accepted": receipt.accepted, "rejected": dict(receipt.rejected)}
        return Response(json.dumps(told).encode(), headers=_NEVER, media_type="application/json")

    return Starlette(
        routes=[
            Route("/v1/round", current),
            Route("/v1/content/{sha256}", content),
            Route("/v1/users", users, methods=["POST"]),
            Route("/v1/reports/{run}/{round:int}", reports, methods=["POST"]),
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


def _secret(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def _refusal(refusal: RefusedError, status: int = 403) -> Response:
    told = json.dumps({"code": refusal.code, "cause": refusal.cause}).encode()
    return Response(told, status, headers=_NEVER, media_type="application/json")
