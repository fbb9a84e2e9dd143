"""The service of serving.proto on grpc.aio, with the standard health and reflection services.

Messages are read and written here as bytes, so that what cannot be read is refused like anything
else. Every call is read as a stream, also where the client sends one message (on the wire they are
the same; it takes about a tenth more of a core): gRPC's unary handlers would wait for that message
for ever, and a call that waits so cannot be ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as reflection

from fedrec.errors import SettingsError
from fedrec.federation.round_messages import PROTOCOL
from fedrec.operations.addresses import Address
from fedrec.serving.ranking import Query
from fedrec.transport.server_tls import server_credentials
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving.batcher import coefficients_of
from fedrec_server.serving.context import PIECE_BYTES, ServingContext
from fedrec_server.serving.refusals import (
    CODE_KEY,
    NEWEST_KEY,
    PUSHBACK_KEY,
    REMEDY_KEY,
    RETRY_AFTER_S,
    Code,
    malformed,
    too_slow,
)
from fedrec_server.serving.settings import TlsTable
from fedrec_server.serving.store import newest_hint

SERVICE = pb.DESCRIPTOR.services_by_name["Recommender"].full_name
_HEALTH = "grpc.health.v1.Health"
_REFLECTION = "grpc.reflection.v1alpha.ServerReflection"

_STATUS = {
    Code.WRONG_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Code.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.TOO_SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
    Code.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Code.FAILED: grpc.StatusCode.INTERNAL,
}
"""For tools that know gRPC and not us; every other refusal is INVALID_ARGUMENT.

The code in the metadata decides."""

Answer = Callable[[Any], Awaitable[Any]]


class GrpcApi:
    """All calls over one serving."""

    def __init__(self, serving: ServingContext) -> None:
        self._serving = serving
        self._reflection = reflection.ReflectionServicer([SERVICE, _HEALTH, _REFLECTION])

    async def open(self, wanted: Address, tls: TlsTable | None) -> tuple[grpc.aio.Server, Address]:
        """A server that listens, and where. Raises SettingsError."""
        limits = self._serving.settings.limits
        server = grpc.aio.server(
            options=_options(limits.body_bytes), maximum_concurrent_rpcs=2 * limits.waiting
        )
        server.add_generic_rpc_handlers(self._handlers())
        try:
            port = (
                server.add_secure_port(
                    str(wanted),
                    server_credentials(
                        Path(tls.certificate),
                        Path(tls.key),
                        Path(tls.client_ca) if tls.client_ca else None,
                    ),
                )
                if tls
                else server.add_insecure_port(str(wanted))
            )
        except RuntimeError:
            await server.stop(None)
            raise SettingsError(
                f"grpc = {str(wanted)!r}: this address cannot be had", "Name a free one, or port 0."
            ) from None
        await server.start()
        return server, Address(wanted.host, port)

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        unary = grpc.stream_unary_rpc_method_handler
        stream = grpc.stream_stream_rpc_method_handler
        ours = {
            "Recommend": unary(self._guarded(self._recommend)),
            "GetModel": stream(self._guarded(self._get_model)),
        }
        # Watch is left out: anybody could hold streams with it
        health = {"Check": unary(self._guarded(self._check))}
        reflect = {"ServerReflectionInfo": stream(self._guarded(self._reflect))}
        tables = {SERVICE: ours, _HEALTH: health, _REFLECTION: reflect}
        return tuple(
            grpc.method_handlers_generic_handler(name, table) for name, table in tables.items()
        )

    async def _recommend(self, context: Any) -> bytes:
        message = await self._first(context)
        arrived_s = time.perf_counter()
        self._serving.require_open()
        self._serving.endpoint.require_place()
        request = _parsed(pb.RecommendRequest, message)
        model = self._serving.store.get(f"{request.version:016x}")
        query = Query(coefficients_of(request.coefficients[:]), request.k, request.categories)
        self._serving.endpoint.check(model, query)
        best = await self._serving.endpoint.answer(model, query)
        self._serving.counts.answered("grpc", time.perf_counter() - arrived_s)
        reply = pb.RecommendReply(
            version=request.version, items=best.items.tolist(), scores=best.scores.tolist()
        )
        return reply.SerializeToString()

    async def _get_model(self, context: Any) -> None:
        version = _parsed(pb.GetModelRequest, await self._first(context)).version
        self._serving.require_open()
        store = self._serving.store
        loop = asyncio.get_running_loop()
        model = store.get(f"{version:016x}") if version else store.newest
        number = int(model.version, 16)
        with self._serving.peers.enter_download():
            async with asyncio.timeout(self._serving.settings.limits.download_s):
                for start in range(0, model.size, PIECE_BYTES):
                    data = await loop.run_in_executor(None, model.piece, start, PIECE_BYTES)
                    piece = pb.ModelPiece(
                        version=number, total_bytes=model.size, data=data, protocol=PROTOCOL
                    )
                    await context.write(piece.SerializeToString())
                    self._serving.counts.sent(len(data))

    async def _check(self, context: Any) -> bytes:
        service = _parsed(health_pb2.HealthCheckRequest, await self._first(context)).service
        if service not in {"", SERVICE}:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this service is not here")
        kinds = health_pb2.HealthCheckResponse
        reply = kinds(status=kinds.SERVING if self._serving.ready else kinds.NOT_SERVING)
        return bytes(reply.SerializeToString())

    async def _reflect(self, context: Any) -> None:
        async def questions() -> Any:
            while (message := await context.read()) is not grpc.aio.EOF:
                yield _parsed(reflection_pb2.ServerReflectionRequest, message)

        async with asyncio.timeout(self._serving.settings.limits.request_s):
            async for reply in self._reflection.ServerReflectionInfo(questions(), context):
                await context.write(reply.SerializeToString())

    async def _first(self, context: Any) -> bytes:
        async with asyncio.timeout(self._serving.settings.limits.request_s):
            message = await context.read()
        if not isinstance(message, bytes):
            raise malformed("the request is empty")
        return message

    def _guarded(self, answer: Answer) -> Callable[[Any, Any], Awaitable[Any]]:
        async def guarded(_: object, context: Any) -> Any:
            try:
                with self._serving.peers.enter(_address(context.peer())):
                    return await answer(context)
            except grpc.aio.AbortError:
                raise
            except TimeoutError:
                await self._refuse(context, too_slow())
            except Exception as failure:
                await self._refuse(context, failure)
            raise AssertionError("an abort raises")

        return guarded

    async def _refuse(self, context: Any, failure: Exception) -> None:
        refusal = self._serving.refusal(failure, "grpc")
        # gRPC keeps what aborts a call in a cycle; its frames would keep a replaced model in memory
        failure.with_traceback(None)
        trailing: list[tuple[str, str | bytes]] = [
            (CODE_KEY, refusal.code),
            (REMEDY_KEY, refusal.remedy.encode()),
        ]
        code = Code(refusal.code)
        if code in RETRY_AFTER_S:
            trailing.append((PUSHBACK_KEY, str(1_000 * RETRY_AFTER_S[code])))
        if newest := newest_hint(self._serving.store, refusal):
            trailing.append((NEWEST_KEY, newest))
        await context.abort(
            _STATUS.get(code, grpc.StatusCode.INVALID_ARGUMENT),
            refusal.cause,
            tuple(trailing),
        )


def _parsed(kind: Any, message: bytes) -> Any:
    try:
        return kind.FromString(message)
    except DecodeError:
        raise malformed(f"not a {kind.DESCRIPTOR.name}") from None


def _address(peer: str) -> str:
    """From `ipv4:192.0.2.1:5000` or `ipv6:%5B2001:db8::1%5D:5000`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")


def _options(body_bytes: int) -> tuple[tuple[str, int], ...]:
    """What gRPC itself holds for a peer."""
    return (
        ("grpc.max_receive_message_length", body_bytes),
        ("grpc.max_metadata_size", 16 * 2**10),
        ("grpc.absolute_max_metadata_size", 16 * 2**10),
        ("grpc.max_concurrent_streams", 128),  # on one connection
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        # a stream may hold 64 KiB unread, not what the line could carry
        ("grpc.http2.bdp_probe", 0),
    )
