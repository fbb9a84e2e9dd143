"""Calls of the aggregator's gRPC service: who is let in, messages read within bounds of time, work
in threads, and failures as status codes.

Every call is read as a stream, also where the client sends one message (on the wire they are the
same): the caller is known, counted and timed before its first message, where gRPC's unary handlers
would wait for that message for ever.

Limits on what peers use of this process at once: calls and bytes, bounded for each peer and for
all together.

Used on the event loop alone, so there is no lock. What is over a bound is refused as BUSY before
anything is read; the caller comes back. Servers have bounds of their own, so that no crowd of
clients keeps a server out.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from fedrec.errors import BudgetExceededError, FedRecError, RefusedError
from fedrec.federation.protocol import Refusal
from fedrec.federation.round_messages import KEY, PROTOCOL, spoken
from fedrec.federation.wire import refused
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_api.methods import RpcMethod
from fedrec_aggregator.credentials import Caller, Roster
from fedrec_aggregator.postgres_ledger import LedgerAwayError
from fedrec_aggregator.settings_tables import TrafficSettings

P = ParamSpec("P")
R = TypeVar("R")
_STATUS = {
    Refusal.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Refusal.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.NOT_ENROLLED: grpc.StatusCode.PERMISSION_DENIED,
    Refusal.RUN_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Refusal.ROUND_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Refusal.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Refusal.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
}
"""For tools that know gRPC and not us; every other refusal is FAILED_PRECONDITION.

The code in the metadata decides."""
_PUSHBACK = ("grpc-retry-pushback-ms", "1000")
"""When a caller that was turned away may come back, as gRPC says it."""


class Traffic:
    """Calls of peers that run now, and the announced bytes of all uploads among them."""

    def __init__(self, bounds: TrafficSettings) -> None:
        self._bounds = bounds
        self._calls = Counter[Caller]()
        self._bytes = Counter[Caller]()

    @property
    def calls(self) -> int:
        """All calls that run now."""
        return self._calls.total()

    def enter(self, peer: Caller) -> TrafficShare:
        """Let a call in. Raises RefusedError (`BUSY`)."""
        if peer.role != "client":
            if self._calls[peer] >= self._bounds.max_calls_per_server:
                raise _busy(f"{peer.role} {peer.name!r} has {self._calls[peer]} calls running")
        elif self._calls[peer] >= self._bounds.max_uploads_per_client:
            raise _busy(f"client {peer.name!r} has {self._calls[peer]} calls running")
        elif (
            sum(count for one, count in self._calls.items() if one.role == "client")
            >= self._bounds.max_uploads
        ):
            raise _busy("too many clients are reporting")
        self._calls[peer] += 1
        return TrafficShare(self, peer)

    def reserve(self, peer: Caller, size: int) -> None:
        """Set memory aside: for one peer at most half of what the others leave, so that no peer
        keeps them out. Raises RefusedError (`BUSY`)."""
        mine = self._bytes[peer]
        left = self._bounds.max_upload_bytes - (self._bytes.total() - mine)
        if mine + size > left // 2:
            raise _busy("other reports hold the memory that this one needs")
        self._bytes[peer] += size

    def leave(self, peer: Caller, size: int) -> None:
        """A call is over, and so is the use of its memory."""
        self._bytes[peer] -= size
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer], self._bytes[peer]


class TrafficShare:
    """One call's share of the traffic: a context, which ends when the block and every thread that
    works for it have ended."""

    def __init__(self, traffic: Traffic, peer: Caller) -> None:
        self._traffic = traffic
        self.peer = peer
        self._size = 0
        self._users = 1

    def reserve(self, size: int) -> None:
        """Set memory aside for this call. Raises RefusedError (`BUSY`)."""
        self._traffic.reserve(self.peer, size)
        self._size += size

    def share(self) -> Callable[[object], None]:
        """Keep the place for a thread that a caller who gives up does not end; the result is called
        when the thread has ended."""
        self._users += 1
        return lambda _: self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _end(self) -> None:
        self._users -= 1
        if not self._users:
            self._traffic.leave(self.peer, self._size)


def _busy(cause: str) -> Exception:
    return refused(Refusal.BUSY, cause, "Send it again in a moment.")


@dataclass(frozen=True)
class Call:
    """One call that was let in."""

    place: TrafficShare
    context: Any

    @property
    def caller(self) -> str:
        """Name of who calls."""
        return self.place.peer.name


class Calls:
    """What every call goes through. threads: of work that has none of its own; their owner ends
    them. stopping: set when the process is told to stop, for the health check. `roster` may be
    replaced: the next call is judged by the new one."""

    def __init__(
        self,
        roster: Roster,
        bounds: TrafficSettings,
        threads: ThreadPoolExecutor,
        *,
        metrics: Metrics,
        log: logging.Logger,
        stopping: asyncio.Event,
    ) -> None:
        self.roster = roster
        self._bounds = bounds
        self._traffic = Traffic(bounds)
        self.threads = threads
        self._metrics = metrics
        self._log = log
        self._stopping = stopping

    def unary(
        self, method: RpcMethod, answer: Callable[[Call], Awaitable[Message]]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a method that one message answers."""
        return grpc.stream_unary_rpc_method_handler(
            self._guarded(method, answer),
            _readable(method.request),
            method.reply.SerializeToString,
        )

    def stream(
        self, method: RpcMethod, send: Callable[[Call], Awaitable[None]]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a method that frames answer, which `send` writes."""
        return grpc.stream_stream_rpc_method_handler(
            self._guarded(method, send),
            _readable(method.request),
            method.reply.SerializeToString,
        )

    def health(self) -> grpc.GenericRpcHandler:
        """The standard health check."""

        async def check(_: object, context: Any) -> Message:
            await context.send_initial_metadata(((KEY, str(PROTOCOL)),))
            async with asyncio.timeout(self._bounds.request_timeout_s):
                await context.read()
            kinds = health_pb2.HealthCheckResponse
            reply: Message = kinds(
                status=kinds.NOT_SERVING if self._stopping.is_set() else kinds.SERVING
            )
            return reply

        # Watch is left out: anybody could hold streams with it
        handler = grpc.stream_unary_rpc_method_handler(
            check,
            health_pb2.HealthCheckRequest.FromString,
            health_pb2.HealthCheckResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})

    async def first(self, call: Call, kind: type[R]) -> R:
        """The call's first message. Raises RefusedError (`MALFORMED`), TimeoutError."""
        async with asyncio.timeout(self._bounds.request_timeout_s):
            message = await call.context.read()
        if not isinstance(message, kind):
            raise refused(Refusal.MALFORMED, f"the request is empty, or not a {kind.__name__}")
        return message

    async def in_threads(
        self,
        pool: ThreadPoolExecutor,
        call: Call,
        work: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """`work` in a thread.

        A caller that gives up does not end it, and keeps its place until it has ended."""
        future = asyncio.get_running_loop().run_in_executor(pool, lambda: work(*args, **kwargs))
        future.add_done_callback(call.place.share())
        return await asyncio.shield(future)

    async def sent(self, call: Call, content: bytes) -> str:
        """Its SHA-256, once it is sent."""
        sha256 = await self.in_threads(
            self.threads, call, lambda: hashlib.sha256(content).hexdigest()
        )
        async with asyncio.timeout(self._bounds.download_timeout_s):
            await call.context.write(pb.ReleaseFrame(total_bytes=len(content), sha256=sha256))
            for start in range(0, len(content), methods.FRAME_BYTES):
                await call.context.write(
                    pb.ReleaseFrame(data=content[start : start + methods.FRAME_BYTES])
                )
        return sha256

    def _guarded(
        self, method: RpcMethod, answer: Callable[[Call], Awaitable[R]]
    ) -> Callable[[Any, Any], Awaitable[R]]:
        async def guarded(_: object, context: Any) -> R:
            try:
                metadata = dict(context.invocation_metadata() or ())
                await context.send_initial_metadata(((KEY, str(PROTOCOL)),))
                peer = self.roster.admit(context.auth_context(), metadata, method.role)
                spoken(metadata.get(KEY), who=f"the {peer.role} {peer.name}")
                with self._traffic.enter(peer) as place:
                    return await answer(Call(place, context))
            except RefusedError as refusal:
                await self._refuse(context, refusal)
            except BudgetExceededError as refusal:
                await self._refuse(context, refused(Refusal.BUDGET, refusal.cause, refusal.remedy))
            except TimeoutError:
                self._metrics.refused("timeout")
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the caller was too slow")
            except LedgerAwayError as failure:  # logged with the lease
                await self._refuse(context, refused(Refusal.BUSY, failure.cause, failure.remedy))
            except FedRecError as failure:
                logs.say_failure(self._log, method.name, failure)
                if method in {methods.OPEN_ROUND, methods.GET_ROUND, methods.CLOSE_ROUND}:
                    self._metrics.decided("failed")
                await self._abort(
                    context, grpc.StatusCode.INTERNAL, methods.FAILED, failure.cause, failure.remedy
                )
            except grpc.aio.AbortError:
                raise
            except Exception as failure:
                # our own fault: its words may quote what a client sent, so they stay here
                logs.say_failure(self._log, method.name, failure)
                cause = f"the aggregator failed ({type(failure).__name__})"
                remedy = "Its log has the place; the request may be sent again."
                await self._abort(context, grpc.StatusCode.INTERNAL, methods.FAILED, cause, remedy)
            raise AssertionError("an abort raises")

        return guarded

    async def _refuse(self, context: Any, refusal: RefusedError) -> None:
        self._metrics.refused(refusal.code)
        code = _STATUS.get(Refusal(refusal.code), grpc.StatusCode.FAILED_PRECONDITION)
        await self._abort(context, code, refusal.code, refusal.cause, refusal.remedy)

    async def _abort(
        self, context: Any, status: grpc.StatusCode, code: str, cause: str, remedy: str
    ) -> None:
        trailing: tuple[tuple[str, str | bytes], ...] = (
            (methods.CODE_KEY, code),
            (methods.REMEDY_KEY, remedy[:400].encode()),
        )
        if code == Refusal.BUSY:
            trailing += (_PUSHBACK,)
        await context.abort(status, cause[:1_000], trailing)


def _readable(kind: type[Message]) -> Callable[[bytes], Message | None]:
    """Reads a message; None for bytes that are none.

    An error here would be INTERNAL to the caller, and a line in the log for each."""

    def read(content: bytes) -> Message | None:
        try:
            return kind.FromString(content)
        except DecodeError:
            return None

    return read
