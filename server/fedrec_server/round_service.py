"""Service of rounds: clients connect here by mutual TLS, get the server's messages and answer them.

A client is who its certificate names, with the key that the pins know of it, looked at again before
every message. It holds one connection, which waits until there is a message for it: at rest that
costs a connection, and a message goes out at once. A message stays until it is answered, so a
client that was killed, or lost its connection, gets it again when it is back; the same question
again costs nothing. What a client sends is bounded before it is kept, each answer and all together.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import uniform
from typing import Any, Self

import grpc

from fedrec.errors import RefusedError, SettingsError
from fedrec.federation.protocol import Answer, Refusal, refused
from fedrec.federation.round_messages import KEY, RoundMessage, spoken
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import Identity, pins
from fedrec.transport.aggregator_api.methods import CODE_KEY, MESSAGE_BYTES, REMEDY_KEY
from fedrec.transport.channel import NAME_KEY, ROLE_KEY
from fedrec.transport.rounds_api import rounds_pb2 as pb
from fedrec.transport.rounds_client import SERVICE, Assembly, packed, pieces, unpacked
from fedrec.transport.server_tls import server_credentials
from fedrec_server.broadcast import Received
from fedrec_server.cohorts import UNREACHABLE
from fedrec_server.settings import address_of
from fedrec_server.settings_tables import LinkTable

MOST_CONNECTIONS = 4
"""Of one client: one that was started again may still hold its earlier one."""

_SAID: Mapping[str, str] = {
    Refusal.MALFORMED: "answer-unreadable",
    Refusal.TOO_LARGE: "answer-unreadable",
    Refusal.WRONG_PROTOCOL: "another-version",
}
"""Refusals that the log has, by its events."""

_OPTIONS: Mapping[str, int] = {
    "grpc.max_receive_message_length": MESSAGE_BYTES,
    "grpc.max_metadata_size": 16 * 2**10,
    "grpc.absolute_max_metadata_size": 16 * 2**10,
    "grpc.max_concurrent_streams": 8,  # on one connection
    "grpc.server_handshake_timeout_ms": 10_000,
    "grpc.so_reuseport": 0,  # a port that is taken is an error, not shared
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_ping_strikes": 0,  # many clients on a busy machine: their pings come bunched
    "grpc.http2.min_recv_ping_interval_without_data_ms": 10_000,
    "grpc.http2.bdp_probe": 0,  # a stream may hold 64 KiB unread, not what the line could carry
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceLimits:
    """What clients may use at once. Seconds.

    answer_bytes: of one answer. bytes: of all that are on their way and have several pieces; one
    waits for its place. least_bytes_s: how fast an answer comes at least, bytes a second, after
    piece_s seconds of grace; a piece of ours is to be taken in piece_s.
    away_s: how long a client may be away before its message is given up. connection_s: how long a
    connection may wait without a message, by chance between half of it and all, so that clients
    that began to wait together do not come back together; the client opens another, with its
    certificate of then.
    """

    answer_bytes: int = 64 * 2**20
    bytes: int = 512 * 2**20
    piece_s: float = 30.0
    least_bytes_s: float = 16 * 2**10
    away_s: float = 45.0
    connection_s: float = 3_600.0


@dataclass
class _Client:
    """One client. last: id of the last message to it. message: id and content, until it is
    answered. gone_s: when its last connection ended. answering: held while an answer comes."""

    connections: int = 0
    last: str = ""
    gone_s: float = 0.0
    message: tuple[str, bytes] | None = None
    news: set[asyncio.Event] = field(default_factory=set)
    answering: asyncio.Lock = field(default_factory=asyncio.Lock)


class RoundService:
    """The service in a thread of its own; a context, which ends it. It is a `broadcast.Post`.

    `address`: where it listens, with the port taken. Raises SettingsError on an address or
    certificates that cannot be had.
    """

    again_s = math.inf
    owned = True

    def __init__(
        self,
        table: LinkTable,
        limits: ServiceLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._limits = limits or ServiceLimits(table.max_answer_bytes, 8 * table.max_answer_bytes)
        self._clock = clock
        self._wanted = address_of(table.listen, "link.listen")
        if not table.certificate and not self._wanted.loopback:
            raise SettingsError(
                f"link.listen = {table.listen!r} without TLS",
                "Give link.certificate, key and client_ca, or listen on loopback.",
            )
        self._lock = threading.Lock()  # calls come on threads of gRPC
        self._clients = dict[str, _Client]()
        self._open = dict[str, str]()  # the client of every message that is to be answered
        self._replies = dict[str, Received]()
        self._names = count()
        self._arriving = 0
        self._far = set[str]()
        self.address = ""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        try:
            self._server = self._loop.run_until_complete(self._begun())
        except SettingsError:
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._loop.run_forever, name="rounds", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(0.5), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- of the thread that trains ---

    @property
    def post(self) -> Self:
        """See `main.Connection`."""
        return self

    def nodes(self) -> Sequence[str]:
        """The clients that are connected, or were a moment ago."""
        with self._lock:
            return [name for name, one in self._clients.items() if self._is_there(one)]

    def owner(self, node: str) -> str:
        """See `broadcast.Post`: a client is its own node."""
        return node

    def send(self, nodes: Sequence[str], message: RoundMessage, ttl_s: float) -> list[str]:
        """Names of the messages; each takes the place of one that its client has not answered."""
        content = packed(message)
        names = list[str]()
        with self._lock:
            for node in nodes:
                name = f"{next(self._names)}"
                client = self._clients[node]
                self._open.pop(client.last, None)
                self._replies.pop(client.last, None)
                client.last = name
                client.message = (name, content)
                self._open[name] = node
                names.append(name)
                for event in client.news:
                    self._loop.call_soon_threadsafe(event.set)
        return names

    def replies(self, names: Collection[str]) -> Iterator[tuple[str, Received]]:
        """See `broadcast.Post`."""
        for name in names:
            with self._lock:
                reply = self._replies.pop(name, None)
                node = self._open.get(name)
                if reply is None and node is not None and not self._is_there(self._clients[node]):
                    self._clients[node].message = None
                    del self._open[name]
                    reply = Answer("", 0, refusal=UNREACHABLE, cause="it is gone")
            if reply is not None:
                yield name, reply

    def _is_there(self, client: _Client) -> bool:
        return client.connections > 0 or (
            client.message is not None and self._clock() - client.gone_s < self._limits.away_s
        )

    # --- of the service's loop ---

    async def _begun(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=tuple(_OPTIONS.items()))
        server.add_generic_rpc_handlers((self._handler(),))
        table = self._table
        try:
            port = (
                server.add_secure_port(
                    str(self._wanted),
                    server_credentials(
                        Path(table.certificate), Path(table.key), Path(table.client_ca)
                    ),
                )
                if table.certificate
                else server.add_insecure_port(str(self._wanted))
            )
        except RuntimeError:
            raise SettingsError(
                f"link.listen = {table.listen!r}: this address cannot be had",
                "Name a free one of this machine, or port 0.",
            ) from None
        self.address = str(Address(self._wanted.host, port))
        await server.start()
        return server

    def _handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Take": grpc.stream_stream_rpc_method_handler(
                    self._guarded(self._take), pb.Piece.FromString, pb.Piece.SerializeToString
                ),
                "Greet": grpc.stream_unary_rpc_method_handler(
                    self._guarded(self._greet),
                    pb.GreetRequest.FromString,
                    pb.GreetReply.SerializeToString,
                ),
            },
        )

    def _guarded(self, act: Callable[[str, Any], Any]) -> Callable[[Any, Any], Any]:
        async def guarded(_: object, context: Any) -> Any:
            try:
                client = self._client(context)
                said = dict(context.invocation_metadata() or ()).get(KEY)
                spoken(said, who=f"client {client}")
                return await act(client, context)
            except RefusedError as refusal:
                if refusal.code in _SAID and refusal.cause not in self._far:
                    logs.say_failure(log, _SAID[refusal.code], refusal)
                if refusal.code == Refusal.WRONG_PROTOCOL:
                    self._far.add(refusal.cause)  # it calls again every few seconds
                trailing = (CODE_KEY, refusal.code), (REMEDY_KEY, refusal.remedy.encode())
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal.cause, trailing)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the caller was too slow")

        return guarded

    def _client(self, context: Any) -> str:
        """The caller's name. Raises RefusedError (`FORBIDDEN`)."""
        if self._table.certificate:
            auth = context.auth_context()
            uris = [uri.decode("utf-8", "replace") for uri in auth.get("peer_uri", ())]
            pem = b"".join(auth.get("x509_pem_cert", ()))
        else:
            metadata = dict(context.invocation_metadata() or ())
            uris = [f"fedrec:{metadata.get(ROLE_KEY)}:{metadata.get(NAME_KEY)}"]
            pem = b""
        holder = Identity.among(uris)
        if holder is None or holder.role != "client":
            remedy = "Use a certificate of `fedrec certs` for this client."
            raise refused(Refusal.FORBIDDEN, "the certificate names no client", remedy)
        known = self._table.clients
        if known and pem and known.get(holder.name) != pins(pem).public_key:
            raise refused(
                Refusal.FORBIDDEN,
                f"the key of this certificate is not the one known of client {holder.name!r}",
                "Ask the server's operator to bring its pins up to date.",
            )
        return holder.name

    async def _greet(self, client: str, context: Any) -> pb.GreetReply:
        return pb.GreetReply(time_s=time.time())

    async def _take(self, name: str, context: Any) -> None:
        with self._connected(name) as (client, news):
            await context.send_initial_metadata(())
            last = ""
            while True:
                try:
                    async with asyncio.timeout(self._limits.connection_s * uniform(0.5, 1.0)):
                        message = await _other_than(last, client, news)
                except TimeoutError:
                    return
                self._client(context)  # the pins of now
                last, content = message
                for piece in pieces(last, content):
                    async with asyncio.timeout(self._limits.piece_s):
                        await context.write(piece)
                if not await self._answered(name, client, context):
                    return

    @contextmanager
    def _connected(self, name: str) -> Iterator[tuple[_Client, asyncio.Event]]:
        news = asyncio.Event()
        with self._lock:
            client = self._clients.setdefault(name, _Client())
            if client.connections >= MOST_CONNECTIONS:
                cause = f"client {name!r} has {client.connections} connections"
                raise refused(Refusal.BUSY, cause, "Run it once.")
            client.connections += 1
            client.news.add(news)
        try:
            yield client, news
        finally:
            with self._lock:
                client.connections -= 1
                client.gone_s = self._clock()
                client.news.discard(news)

    async def _answered(self, name: str, client: _Client, context: Any) -> bool:
        """Whether one came: its client may hang up instead. Raises RefusedError where it is none,
        which is an answer too."""
        first = await context.read()
        if first is grpc.aio.EOF:
            return False
        about = first.id
        try:
            content = await self._whole(client, first, context)
            self._received(name, about, unpacked(content))
        except RefusedError as refusal:
            self._received(name, about, Answer("", 0, refusal=refusal.code, cause=refusal.cause))
            raise
        return True

    async def _whole(self, client: _Client, first: pb.Piece, context: Any) -> bytes:
        """What fits its first piece is here already, and takes no room; of the others, a client
        sends one at a time, at the least rate, so that few clients cannot fill the room for
        long."""
        answer = Assembly(self._limits.answer_bytes)
        answer.begin(first)
        if answer.whole:
            return bytes(answer.content)
        async with client.answering, self._room(answer.total):
            began_s = self._loop.time()
            while not answer.whole:
                due_s = self._limits.piece_s + len(answer.content) / self._limits.least_bytes_s
                async with asyncio.timeout_at(began_s + due_s):
                    piece = await context.read()
                if piece is grpc.aio.EOF:
                    raise refused(Refusal.MALFORMED, "an answer breaks off")
                answer.add(piece)
        return bytes(answer.content)

    @asynccontextmanager
    async def _room(self, size: int) -> AsyncIterator[None]:
        """Until there is room for an answer of so many bytes."""
        while self._arriving and self._arriving + size > self._limits.bytes:
            await asyncio.sleep(0.05)
        self._arriving += size
        try:
            yield
        finally:
            self._arriving -= size

    def _received(self, name: str, about: str, reply: Received) -> None:
        """The first answer to a message that this client was sent; others are none."""
        with self._lock:
            if self._open.get(about) != name:
                return
            del self._open[about]
            self._replies[about] = reply
            client = self._clients[name]
            if client.message is not None and client.message[0] == about:
                client.message = None


async def _other_than(last: str, client: _Client, news: asyncio.Event) -> tuple[str, bytes]:
    """The client's message, once it is another than the last one on this connection."""
    while client.message is None or client.message[0] == last:
        news.clear()
        await news.wait()
    return client.message
