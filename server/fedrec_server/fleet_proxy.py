"""Reverse proxy of the SuperLink, its only way to the network: mutual TLS, and the twelve routes
that SuperNodes need. All else is 404.

Flower serves SuperNodes, run control and task tokens on one port, and asks nobody who starts a run
for a credential. So the SuperLink listens on loopback, and this proxy forwards a POST whose path
is, byte for byte, a fleet route: nothing is decoded, joined or followed, so no spelling of another
route gets through. Bodies stream both ways and are counted.

Flower takes any node that made itself a key. Here a connection must show a client's certificate,
and a node belongs to the client that it first came with (`fedrec_server.nodes`): requests that say
whose node they are about are read, and one about another's is refused. A request for messages waits
until there may be one (`fedrec_server.held_pulls`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from cryptography import x509
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from google.protobuf.message import DecodeError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fedrec.operations import logs
from fedrec.operations.certificates import Identity, pins_of, uris_of
from fedrec_server.held_pulls import WAIT_HEADER, GoneError, HeldPulls
from fedrec_server.nodes import Nodes

FLEET_ROUTES = frozenset(
    f"/v1/fleet/{name}".encode()
    for name in [
        "register-node",
        "activate-node",
        "deactivate-node",
        "unregister-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    ]
)

_ABOUT_A_NODE: Mapping[bytes, Callable[[bytes], tuple[int, set[int]]]] = {
    b"/v1/fleet/pull-messages": lambda body: (
        PullMessagesRequest.FromString(body).node.node_id,
        set(),
    ),
    b"/v1/fleet/push-messages": lambda body: _pushed(PushMessagesRequest.FromString(body)),
}
"""Requests by which a node is a client's: whose node they are about, and in whose names their
messages are. Their bodies are small: what a message holds comes object by object."""

TLS_READ_BYTES = 2**15
"""Asyncio keeps a buffer of 256 KiB for every TLS connection, as long as it lives, and each waiting
node has one; a record has 16 KiB."""

_PULL = b"/v1/fleet/pull-messages"
_MAY_BE_LONG = frozenset({b"/v1/fleet/push-object", b"/v1/fleet/push-messages"})
"""Requests that may come without a length."""

_READ_BYTES = 4 * 2**20

_OF_ONE_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade host "
    b"content-length expect server date".split()
)
"""Headers that end here (RFC 9110, section 7.6.1), and those that each side writes for itself."""

SHOWN = "certificate"

NOWHERE = "127.0.0.1:0"
"""Where nobody can listen."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FleetLimits:
    """What SuperNodes may use at once. A SuperNode that is turned away with 503 waits and tries
    again.

    max_body_bytes: of a request or a response. max_bytes: announced by all requests in progress; of
    one peer at most half of what the others leave, so that none keeps them out. max_requests,
    max_requests_per_peer: in progress. chunk_s: for the next part of a request to arrive.
    request_s: for the whole.
    """

    max_body_bytes: int = 64 * 2**20
    max_bytes: int = 512 * 2**20
    max_requests: int = 256
    max_requests_per_peer: int = 64
    chunk_s: float = 30.0
    request_s: float = 600.0
    away_s: float = 20.0


@dataclass(frozen=True)
class Certificate:
    """The proxy's own certificate and key, and the authority whose clients it lets in (PEM files).

    keys: SHA-256 of the public keys of clients by name; with any, no other client is let in.
    """

    certificate: Path
    key: Path
    client_ca: Path
    keys: Mapping[str, str] = field(default_factory=dict)

    def client(self, shown: bytes) -> str:
        """The name of the client that holds a certificate (DER), which TLS has checked; "" where it
        is no client's that is known."""
        certificate = x509.load_der_x509_certificate(shown)
        holder = Identity.among(uris_of(certificate))
        if holder is None or holder.role != "client":
            return ""
        known = not self.keys or self.keys.get(holder.name) == pins_of(certificate).public_key
        return holder.name if known else ""


class _TooLargeError(Exception):
    pass


class _NoLengthError(Exception):
    pass


class _ForbiddenError(Exception):
    pass


@dataclass(frozen=True)
class _Place:
    """A request in progress: whose, and how many bytes it announced."""

    peer: str
    size: int


class FleetProxy:
    """The proxy as an ASGI application in front of the SuperLink at `upstream()`, host:port or ""
    while there is none.

    With a certificate, every request must come over a connection that showed a client's, and
    `nodes` learns whose node is whose.
    """

    def __init__(
        self,
        upstream: Callable[[], str],
        limits: FleetLimits,
        certificate: Certificate | None = None,
        *,
        holds: bool = False,
    ) -> None:
        self._limits, self._upstream, self.closing = limits, upstream, threading.Event()
        self._certificate, self.nodes, self.pulls = certificate, Nodes(), HeldPulls(holds)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._in_progress, self._announced = Counter[str](), Counter[str]()
        timeout = httpx.Timeout(limits.request_s, connect=5.0)
        bounds = httpx.Limits(max_connections=limits.max_requests, max_keepalive_connections=32)
        # No proxy of the environment, no redirect: what is asked of the SuperLink is asked of it
        # alone.
        self._http = httpx.AsyncClient(
            timeout=timeout, limits=bounds, trust_env=False, follow_redirects=False
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; `lifespan` closes the connections to the SuperLink."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            request = Request(scope, receive)
            with suppress(ClientDisconnect, TimeoutError):
                async with asyncio.timeout(self._limits.request_s):
                    await self._handled(request, send)

    async def _handled(self, request: Request, send: Send) -> None:
        if (
            request.method != "POST"
            or request.scope["raw_path"] not in FLEET_ROUTES
            or request.scope["query_string"]
        ):
            return await PlainTextResponse("not found", 404)(request.scope, request.receive, send)
        try:
            size = _announced_bytes(request, self._limits.max_body_bytes)
        except _TooLargeError:
            return await _too_large()(request.scope, request.receive, send)
        except _NoLengthError:
            return await PlainTextResponse("a length is needed", 411, {"connection": "close"})(
                request.scope, request.receive, send
            )
        peer = request.client.host if request.client else ""
        if self._certificate is not None:
            peer = self._certificate.client(request.scope["state"].get(SHOWN, b""))
            if not peer:
                return await _forbidden()(request.scope, request.receive, send)
        if not self._has_room(peer, size):
            return await PlainTextResponse("busy", 503, {"retry-after": "1"})(
                request.scope, request.receive, send
            )
        place = _Place(peer, size)
        self._take(place, 1)
        try:
            await self._forwarded(request, send, place if self._certificate else None)
        finally:
            self._take(place, -1)
        return None

    def _take(self, place: _Place, sign: int) -> None:
        self._in_progress[place.peer] += sign
        self._announced[place.peer] += sign * place.size
        if not self._in_progress[place.peer]:
            del self._in_progress[place.peer], self._announced[place.peer]

    def _has_room(self, peer: str, size: int) -> bool:
        limits = self._limits
        mine = self._announced[peer]
        left = limits.max_bytes - (self._announced.total() - mine)
        return (
            self._in_progress.total() < limits.max_requests
            and self._in_progress[peer] < limits.max_requests_per_peer
            and mine + size <= left // 2
        )

    async def _forwarded(self, request: Request, send: Send, place: _Place | None) -> None:
        """place: of the client that sends it, None where nobody was asked who it is."""
        client = place.peer if place else ""
        try:
            body, node = await self._examined(request, client)
            if place and node and request.scope["raw_path"] == _PULL:
                response = await self._pulled(request, body, node, place)
            else:
                response = await self._sent(request, body)
            if node and response.is_success:
                self.nodes.seen(node, client)
        except GoneError:
            return await PlainTextResponse("closing", 503)(request.scope, request.receive, send)
        except _ForbiddenError:
            logs.say(log, "foreign-node", level=logging.WARNING, sender=client)
            return await _forbidden()(request.scope, request.receive, send)
        except _TooLargeError:
            return await _too_large()(request.scope, request.receive, send)
        except TimeoutError:
            return await PlainTextResponse("the body does not come", 408, {"connection": "close"})(
                request.scope, request.receive, send
            )
        except httpx.HTTPError:
            return await PlainTextResponse("the SuperLink does not answer", 503)(
                request.scope, request.receive, send
            )
        try:
            await self._returned(response)(request.scope, request.receive, send)
        except (_TooLargeError, httpx.HTTPError) as failure:
            # too late for a status: the connection is cut
            logs.say_failure(log, "proxy-response-cut", failure)
            raise ConnectionResetError from None
        finally:
            await response.aclose()
        return None

    async def _pulled(
        self, request: Request, body: bytes | None, node: int, place: _Place
    ) -> httpx.Response:
        """Sends as `_sent` does, when there may be a message for the node: an answer without one is
        returned only to a request that has waited. While it waits it has no place among the
        requests in progress."""
        asked_s = _asked_s(request)
        while True:
            waited = await self._waited(request, node, place, asked_s)
            response, nothing = None, False
            try:
                self.pulls.asking(node)
                response = await self._sent(request, body)
            finally:
                nothing = self.pulls.answered(node, _length_of(response))
                self.pulls.at_once.release()
            if waited or not nothing or not self.pulls.holds(place.peer, asked_s):
                return response
            self.nodes.seen(node, place.peer)  # or nobody would send what it waits for
            await response.aclose()

    async def _waited(
        self, request: Request, node: int, place: _Place, asked_s: float | None
    ) -> bool:
        """Whether the request was held; after it the caller has one of the places `at_once`."""

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        self._take(place, -1)
        try:
            waited = await self.pulls.until_due(node, place.peer, asked_s, gone)
            await self.pulls.at_once.acquire()
        finally:
            self._take(place, 1)
        return waited

    async def _examined(self, request: Request, client: str) -> tuple[bytes | None, int]:
        """The body and the node that it is about, where it was read; None and 0 where it only
        passes through."""
        about = _ABOUT_A_NODE.get(request.scope["raw_path"]) if client else None
        if about is None:
            return None, 0
        body = b""
        async for part in self._body(request):
            body += part
            if len(body) > _READ_BYTES:
                raise _TooLargeError
        try:
            node, names = about(body)
        except DecodeError:
            raise _ForbiddenError from None
        if self.nodes.owner(node) not in {"", client} or names - {node}:
            raise _ForbiddenError
        return body, node

    async def _sent(self, request: Request, body: bytes | None) -> httpx.Response:
        """The SuperLink's answer, its body still to come. Holds the request while the SuperLink is
        being started, up to `away_s`: a SuperNode that is turned away would come back after up to
        20 s."""
        headers = _end_to_end(request.scope["headers"])
        if length := _length(request):
            headers.append((b"content-length", length.encode()))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.away_s
        while True:
            url = httpx.URL(
                f"http://{self._upstream() or NOWHERE}", raw_path=request.scope["raw_path"]
            )
            try:
                content = self._body(request) if body is None else body
                return await self._http.send(
                    self._http.build_request("POST", url, headers=headers, content=content),
                    stream=True,
                )
            except httpx.ConnectError:  # before the first byte of the body was taken
                if loop.time() > deadline or self.closing.is_set():
                    raise
            await asyncio.sleep(0.1)

    def _returned(self, response: httpx.Response) -> Response:
        length = response.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limits.max_body_bytes:
            return PlainTextResponse("the SuperLink's answer is too large", 502)
        returned = StreamingResponse(
            _counted(response.aiter_raw(), self._limits.max_body_bytes), response.status_code
        )
        returned.raw_headers = _end_to_end(response.headers.raw)
        if length.isdigit():
            returned.raw_headers.append((b"content-length", length.encode()))
        return returned

    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        parts = _counted(request.stream(), self._limits.max_body_bytes)
        while True:
            async with asyncio.timeout(self._limits.chunk_s):
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    return
            yield part

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.loop = asyncio.get_running_loop()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._http.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def _pushed(request: PushMessagesRequest) -> tuple[int, set[int]]:
    return request.node.node_id, {message.metadata.src_node_id for message in request.messages_list}


def _announced_bytes(request: Request, most: int) -> int:
    """A body without a length, where that is allowed, counts as the longest."""
    length = _length(request)
    known = length.isascii() and length.isdigit()
    if not known and request.scope["raw_path"] not in _MAY_BE_LONG:
        raise _NoLengthError
    size = int(length) if known and len(length) < 20 else most
    if size > most:
        raise _TooLargeError
    return size


def _asked_s(request: Request) -> float | None:
    value = request.headers.get(WAIT_HEADER.decode(), "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else None


def _length_of(response: httpx.Response | None) -> int | None:
    """Bytes of an answer that is one, where it says how many."""
    length = (
        response.headers.get("content-length", "")
        if response is not None and response.is_success
        else ""
    )
    return int(length) if length.isdigit() else None


def _length(request: Request) -> str:
    """Chunks go before a length (RFC 9112, section 6.3)."""
    headers = request.headers
    return "" if "transfer-encoding" in headers else headers.get("content-length", "")


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without the headers of one connection, named by the standard or by the sender."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {
        part.strip().lower()
        for name, value in pairs
        if name == b"connection"
        for part in value.split(b",")
    }
    return [
        (name, value)
        for name, value in pairs
        if name not in _OF_ONE_CONNECTION and name not in named
    ]


async def _counted(parts: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > most:
            raise _TooLargeError
        yield part


def _forbidden() -> Response:
    return PlainTextResponse("not this client's", 403)


def _too_large() -> Response:
    return PlainTextResponse("the body is too large", 413, {"connection": "close"})
