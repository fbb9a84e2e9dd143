"""The gRPC service over the aggregator's rules: bounded reading, threads that peers cannot hold,
refusals as codes.

Why grpc.aio and not the threaded server: there every stream holds a thread from its first byte to
its last, so a few slow peers stop everybody. Here a peer that is slow holds a coroutine and its
announced bytes; a thread works only on a batch that is complete. Reports and server calls have
threads of their own, so neither waits for the other's queue.

Every call is read as a stream, also where the client sends one message (on the wire they are the
same): the caller is known, counted and timed before its first message, where gRPC's unary handlers
would wait for that message for ever.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from fedrec.errors import BudgetExceededError, FedRecError, RefusedError
from fedrec.federation.protocol import LedgerHead, Opening, Phase, Receipt, Refusal, RoundStatus
from fedrec.federation.report_batches import announced_users
from fedrec.federation.versions import KEY, PROTOCOL, spoken
from fedrec.federation.wire import refused
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.credentials import Roster
from fedrec_aggregator.leaf import LeafAggregator
from fedrec_aggregator.leaf_service import LeafCalls
from fedrec_aggregator.settings_tables import TrafficSettings
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_aggregator.three_party_leaf import LeafOfThreeAggregator
from fedrec_aggregator.traffic import Place, Traffic
from fedrec_transport.aggregator_api import aggregator_pb2 as pb
from fedrec_transport.aggregator_api import methods
from fedrec_transport.aggregator_api.methods import Method

P = ParamSpec("P")
R = TypeVar("R")

REPORT_THREADS, SERVER_THREADS, PEER_THREADS = 2, 4, 2
"""Checking a batch takes about ten times its bytes while it runs, so few run at once; servers call
seldom."""

_LONGEST_WAIT_S, _LOOK_AGAIN_S = 25.0, 0.05
"""A waiting server is answered after at most this long, and asks again; meanwhile no thread waits
for it."""

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


@dataclass(frozen=True)
class Call:
    """One call that was let in. version: of the messages, as `versions.spoken`."""

    place: Place
    context: Any
    version: int = PROTOCOL

    @property
    def caller(self) -> str:
        """Name of who calls."""
        return self.place.peer.name


class Service:
    """All calls over one core. `stopping` ends waits when the process is told to stop."""

    def __init__(
        self,
        core: Aggregator,
        roster: Roster,
        bounds: TrafficSettings,
        *,
        metrics: Metrics,
        log: logging.Logger,
    ) -> None:
        self.core, self.roster, self.bounds = core, roster, bounds
        self.metrics, self.log = metrics, log
        self.traffic, self.stopping = Traffic(bounds), asyncio.Event()
        self._reports = ThreadPoolExecutor(REPORT_THREADS, "reports")
        self._calls = ThreadPoolExecutor(SERVER_THREADS, "servers")
        self._opened = dict[tuple[str, int], float]()
        self._latest: tuple[str, int, int] | None = None  # run, round, needed: of the last tick
        self._others = list[_Shares | LeafCalls]()
        if isinstance(core, ThreePartyAggregator):
            self._others.append(_Shares(self, core))
        if isinstance(core, LeafAggregator | LeafOfThreeAggregator):
            self._others.append(LeafCalls(self, core))

    def handlers(self) -> tuple[grpc.GenericRpcHandler, grpc.GenericRpcHandler]:
        """Ours, and the standard health check."""
        unary: dict[Method, Callable[[Call], Awaitable[Message]]] = {
            methods.GET_GROWTH: self._get_growth,
            methods.ENROLL: self._enroll,
            methods.REPORT: self._report,
            methods.ENROLLED: self._enrolled,
            methods.GET_BUDGET: self._get_budget,
            methods.OPEN_RUN: self._open_run,
            methods.OPEN_ROUND: self._open_round,
            methods.GET_ROUND: self._get_round,
            methods.CLOSE_ROUND: self._close_round,
        }
        for others in self._others:
            unary |= others.unary()
        table: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method.name: grpc.stream_unary_rpc_method_handler(
                self._guarded(method, answer),
                _readable(method.request),
                method.reply.SerializeToString,
            )
            for method, answer in unary.items()
        }
        streams: dict[Method, Callable[[Call], Awaitable[None]]] = {
            methods.GET_RELEASE: self._get_release
        }
        for others in self._others:
            streams |= others.streams()
        table |= {
            method.name: grpc.stream_stream_rpc_method_handler(
                self._guarded(method, send),
                _readable(method.request),
                method.reply.SerializeToString,
            )
            for method, send in streams.items()
        }
        return grpc.method_handlers_generic_handler(methods.SERVICE, table), self._health()

    def close(self) -> None:
        """End the threads when their work is done."""
        self._reports.shutdown()
        for others in self._others:
            others.close()
        self._calls.shutdown()

    async def tick(self) -> None:
        """Close what is due."""
        await asyncio.get_running_loop().run_in_executor(self._calls, self.core.tick)
        self.show_state()

    def show_state(self) -> None:
        """What is going on, for the metrics; called at every tick."""
        state, rounds = (
            self.metrics.state,
            [
                each
                for each in self.core.collections()
                if each.phase in {Phase.OPEN, Phase.RELEASING}
            ],
        )
        state.enrolled(self.core.known_enrolled())
        open_ones = [each for each in rounds if each.phase is Phase.OPEN]
        state.doing(Doing.COLLECTING if open_ones else Doing.RELEASING if rounds else Doing.IDLE)
        state.waiting(
            Awaited.REPORTS if open_ones else Awaited.NOTHING if rounds else Awaited.SERVER
        )
        if rounds:
            latest = rounds[-1]
            self._latest = latest.run, latest.question.round, latest.needed
            state.round(latest.question.round)
            state.quorum(needed=latest.needed, there=latest.reported)
        elif self._latest is not None:  # between two ticks more may have reported, and all was done
            run, round, needed = self._latest
            if (ended := self.core.ledger.released(run, round)) is not None:
                state.quorum(needed=needed, there=ended.reported)
            self._latest = None

    def show_budget(self) -> None:
        """Spent, and the largest run that still fits, as the ledger states it now."""
        spends = self.core.ledger.spends()
        self.metrics.budget(spent=spends.epsilon, left=spends.possible)

    def _say(self, event: str, **fields: logs.Field) -> None:
        logs.say(self.log, event, level=logging.INFO, **fields)

    async def _get_growth(self, call: Call) -> Message:
        asked, peer = await self.first(call, pb.GetGrowthRequest), call.place.peer
        since = LedgerHead(asked.number, asked.head)
        if peer.role == "client":
            desk = self.core.client_desk(peer.name)
            return methods.growth_message(
                await self.in_threads(self._reports, call, desk.growth, since, asked.charged)
            )
        return methods.growth_message(
            await self.in_threads(self._calls, call, self.core.growth, since)
        )

    # --- clients ---

    async def _enroll(self, call: Call) -> Message:
        request = await self.first(call, pb.EnrollRequest)
        if len(request.tokens) > methods.TOKENS_PER_MESSAGE:
            raise refused(
                Refusal.TOO_LARGE, f"one message enrols at most {methods.TOKENS_PER_MESSAGE} users"
            )
        desk = self.core.client_desk(call.caller, max_users=self.roster.clients.get(call.caller))
        users = await self.in_threads(self._reports, call, desk.enroll, list(request.tokens))
        self._say("enrolled", sender=call.caller, users=users)
        return pb.EnrollReply(users=users)

    async def _report(self, call: Call) -> Message:
        first, receipt = await self.first(call, pb.ReportFrame), None
        try:
            if first.total_bytes > self.core.limits.max_batch_bytes:
                raise refused(Refusal.TOO_LARGE, "the batch announces more bytes than are taken")
            call.place.reserve(first.total_bytes)
            async with asyncio.timeout(self.bounds.upload_timeout_s):
                batch = await _gathered(first, call.context)
            desk = self.core.client_desk(call.caller, names_quorum=call.version > 1)
            receipt = await self.in_threads(
                self._reports, call, desk.report, first.run, first.round, batch
            )
        except RefusedError as refusal:
            if refusal.code == Refusal.BUSY:
                raise
            receipt = Receipt(0, {refusal.code: max(1, announced_users(first.data))})
        self.metrics.reports(accepted=receipt.accepted, rejected=receipt.rejected)
        self.metrics.moved(bytes_in=first.total_bytes)
        fields: dict[str, logs.Field] = {
            "accepted": receipt.accepted,
            "rejected": receipt.rejected,
            "bytes_in": first.total_bytes,
        }
        self._say("report", run=first.run, round=first.round, sender=call.caller, **fields)
        return pb.ReportReply(accepted=receipt.accepted, rejected=dict(receipt.rejected))

    # --- servers ---

    async def _enrolled(self, call: Call) -> Message:
        await self.first(call, pb.EnrolledRequest)
        return pb.EnrolledReply(users=await self.in_threads(self._calls, call, self.core.enrolled))

    async def _get_budget(self, call: Call) -> Message:
        await self.first(call, pb.GetBudgetRequest)
        return pb.GetBudgetReply(**vars(await self.in_threads(self._calls, call, self.core.budget)))

    async def _open_run(self, call: Call) -> Message:
        request = await self.first(call, pb.OpenRunRequest)
        await self.in_threads(
            self._calls,
            call,
            lambda: self.core.open_run(request.run, methods.read_plan(request.plan)),
        )
        return pb.OpenRunReply()

    async def _open_round(self, call: Call) -> Message:
        asked = await self.first(call, pb.OpenRoundRequest)
        terms = asked.timeout_s, asked.ledger_head, asked.quorum, asked.attempt
        opening = Opening(asked.run, asked.round, asked.header, asked.digest, *terms)
        return self._told(await self.in_threads(self._calls, call, self.core.open_round, opening))

    async def _get_round(self, call: Call) -> Message:
        asked = await self.first(call, pb.GetRoundRequest)
        clock = asyncio.get_running_loop().time
        # in this order: also where it is not a number
        until_s = clock() + max(0.0, min(_LONGEST_WAIT_S, asked.wait_s))
        while True:
            status = await self.in_threads(
                self._calls, call, self.core.status, asked.run, asked.round
            )
            if (
                status.phase in {Phase.RELEASED, Phase.SHORT}
                or clock() >= until_s
                or self.stopping.is_set()
            ):
                return self._told(status)
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _close_round(self, call: Call) -> Message:
        asked = await self.first(call, pb.CloseRoundRequest)
        return self._told(
            await self.in_threads(self._calls, call, self.core.close, asked.run, asked.round)
        )

    async def _get_release(self, call: Call) -> None:
        asked = await self.first(call, pb.GetReleaseRequest)
        content = await self.in_threads(
            self._calls, call, self.core.release, asked.run, asked.round
        )
        sha256 = await self.sent(call, content)
        self.metrics.moved(bytes_out=len(content))
        self._say(
            "fetched",
            run=asked.run,
            round=asked.round,
            sender=call.caller,
            bytes_out=len(content),
            sha256=sha256,
        )

    async def sent(self, call: Call, content: bytes) -> str:
        """Its SHA-256, once it is sent."""
        sha256 = await self.in_threads(
            self._calls, call, lambda: hashlib.sha256(content).hexdigest()
        )
        async with asyncio.timeout(self.bounds.download_timeout_s):
            await call.context.write(pb.ReleaseFrame(total_bytes=len(content), sha256=sha256))
            for start in range(0, len(content), methods.FRAME_BYTES):
                await call.context.write(
                    pb.ReleaseFrame(data=content[start : start + methods.FRAME_BYTES])
                )
        return sha256

    def _told(self, status: RoundStatus) -> Message:
        key, now_s = (status.run, status.round), asyncio.get_running_loop().time()
        if status.phase is Phase.OPEN and key not in self._opened:
            self._opened[key] = now_s
            self._say(
                "opened",
                run=status.run,
                round=status.round,
                attempt=status.attempt,
                enrolled=status.enrolled,
                quorum=status.quorum,
            )
        elif status.phase in {Phase.RELEASED, Phase.SHORT} and key in self._opened:
            took_s = now_s - self._opened.pop(key)
            self.metrics.decided(status.phase.value, took_s=took_s)
            self.show_budget()
            counts: dict[str, logs.Field] = {
                "accepted": status.reported,
                "rejected": status.rejected,
            }
            self._say(
                status.phase.value,
                run=status.run,
                round=status.round,
                took_s=took_s,
                clipped=status.clipped,
                **counts,
            )
        return methods.status_message(status)

    # --- what every call goes through ---

    def _guarded(
        self, method: Method, answer: Callable[[Call], Awaitable[R]]
    ) -> Callable[[Any, Any], Awaitable[R]]:
        async def guarded(_: object, context: Any) -> R:
            try:
                metadata = dict(context.invocation_metadata() or ())
                await context.send_initial_metadata(((KEY, str(PROTOCOL)),))
                peer = self.roster.admit(context.auth_context(), metadata, method.role)
                version = spoken(metadata.get(KEY), who=f"the {peer.role} {peer.name}")
                with self.traffic.enter(peer) as place:
                    return await answer(Call(place, context, version))
            except RefusedError as refusal:
                await self._refuse(context, refusal)
            except BudgetExceededError as refusal:
                await self._refuse(context, refused(Refusal.BUDGET, refusal.cause, refusal.remedy))
            except TimeoutError:
                self.metrics.refused("timeout")
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the caller was too slow")
            except FedRecError as failure:
                logs.say_failure(self.log, method.name, failure)
                if method in {methods.OPEN_ROUND, methods.GET_ROUND, methods.CLOSE_ROUND}:
                    self.metrics.decided("failed")
                await self._abort(
                    context, grpc.StatusCode.INTERNAL, methods.FAILED, failure.cause, failure.remedy
                )
            except grpc.aio.AbortError:
                raise
            except Exception as failure:
                # our own fault: its words may quote what a client sent, so they stay here
                logs.say_failure(self.log, method.name, failure)
                cause, remedy = (
                    f"the aggregator failed ({type(failure).__name__})",
                    "Its log has the place; the request may be sent again.",
                )
                await self._abort(context, grpc.StatusCode.INTERNAL, methods.FAILED, cause, remedy)
            raise AssertionError("an abort raises")

        return guarded

    async def _refuse(self, context: Any, refusal: RefusedError) -> None:
        self.metrics.refused(refusal.code)
        code = _STATUS.get(Refusal(refusal.code), grpc.StatusCode.FAILED_PRECONDITION)
        await self._abort(context, code, refusal.code, refusal.cause, refusal.remedy)

    async def _abort(
        self, context: Any, status: grpc.StatusCode, code: str, cause: str, remedy: str
    ) -> None:
        trailing = ((methods.CODE_KEY, code), (methods.REMEDY_KEY, remedy[:400].encode()))
        await context.abort(status, cause[:1_000], trailing)

    async def first(self, call: Call, kind: type[R]) -> R:
        """The call's first message. Raises RefusedError (`MALFORMED`), TimeoutError."""
        async with asyncio.timeout(self.bounds.request_timeout_s):
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

    def _health(self) -> grpc.GenericRpcHandler:
        async def check(_: object, context: Any) -> Message:
            await context.send_initial_metadata(((KEY, str(PROTOCOL)),))
            async with asyncio.timeout(self.bounds.request_timeout_s):
                await context.read()
            kinds = health_pb2.HealthCheckResponse
            reply: Message = kinds(
                status=kinds.NOT_SERVING if self.stopping.is_set() else kinds.SERVING
            )
            return reply

        # Watch is left out: anybody could hold streams with it
        handler = grpc.stream_unary_rpc_method_handler(
            check,
            health_pb2.HealthCheckRequest.FromString,
            health_pb2.HealthCheckResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})


class _Shares:
    """The calls of one of three aggregators: of clients that ask for an attempt, and of the other
    two.

    Peers have threads of their own: one that waits for this aggregator's peers must not keep them
    from being answered.
    """

    def __init__(self, service: Service, core: ThreePartyAggregator) -> None:
        self._service, self._core = service, core
        self._threads = ThreadPoolExecutor(PEER_THREADS, "peers")

    def unary(self) -> dict[Method, Callable[[Call], Awaitable[Message]]]:
        """By method."""
        return {
            methods.GET_ATTEMPT: self._get_attempt,
            methods.GET_STANDING: self._get_standing,
            methods.GET_KEY: self._get_key,
        }

    def streams(self) -> dict[Method, Callable[[Call], Awaitable[None]]]:
        """By method, what is answered in frames."""
        return {
            methods.GET_HELD: self._get_held,
            methods.GET_EXPLICIT: self._get_explicit,
            methods.GET_OPENINGS: self._get_openings,
        }

    def close(self) -> None:
        """End the threads when their work is done."""
        self._threads.shutdown()

    async def _get_held(self, call: Call) -> None:
        _place(call)
        asked = await self._service.first(call, pb.GetHeldRequest)
        content = await self._service.in_threads(
            self._threads, call, self._core.held, asked.run, asked.round, asked.attempt
        )
        await self._service.sent(call, content)

    async def _get_explicit(self, call: Call) -> None:
        asked = await self._service.first(call, pb.GetExplicitRequest)
        piece = asked.run, asked.round, asked.attempt, asked.first, asked.last
        read = functools.partial(self._core.explicit, *piece, caller=_place(call))
        await self._service.sent(call, await self._service.in_threads(self._threads, call, read))

    async def _get_openings(self, call: Call) -> None:
        _place(call)
        asked = await self._service.first(call, pb.GetHeldRequest)
        content = await self._service.in_threads(
            self._threads, call, self._core.openings, asked.run, asked.round, asked.attempt
        )
        await self._service.sent(call, content)

    async def _get_attempt(self, call: Call) -> Message:
        asked = await self._service.first(call, pb.GetAttemptRequest)
        found = await self._service.in_threads(
            self._service._calls, call, self._core.attempt, asked.run, asked.round
        )
        return pb.GetAttemptReply(**vars(found))

    async def _get_standing(self, call: Call) -> Message:
        _place(call)
        asked = await self._service.first(call, pb.GetStandingRequest)
        standing = await self._service.in_threads(
            self._threads, call, self._core.standing, asked.run, asked.round
        )
        return methods.standing_message(standing, time_s=int(time.time()))

    async def _get_key(self, call: Call) -> Message:
        asked = await self._service.first(call, pb.GetKeyRequest)
        attempt = asked.run, asked.round, asked.attempt
        key = await self._service.in_threads(
            self._threads, call, lambda: self._core.key(*attempt, caller=_place(call))
        )
        return pb.GetKeyReply(key=key)


def _place(call: Call) -> int:
    """Of the peer that calls. Raises RefusedError (`FORBIDDEN`) for a leaf's root, which is no
    peer."""
    if call.caller not in {"1", "2", "3"}:
        raise refused(Refusal.FORBIDDEN, f"aggregator {call.caller!r} is no peer of this one")
    return int(call.caller) - 1


def _readable(kind: type[Message]) -> Callable[[bytes], Message | None]:
    """Reads a message; None for bytes that are none.

    An error here would be INTERNAL to the caller, and a line in the log for each."""

    def read(content: bytes) -> Message | None:
        try:
            return kind.FromString(content)
        except DecodeError:
            return None

    return read


async def _gathered(first: pb.ReportFrame, context: Any) -> bytes:
    """The whole batch.

    Raises RefusedError (`MALFORMED`) as soon as there is more than was announced, or at the end
    less."""
    parts, size = [first.data], len(first.data)
    while size <= first.total_bytes:
        frame = await context.read()
        if frame is grpc.aio.EOF:
            break
        if frame is None or not frame.data:
            raise refused(Refusal.MALFORMED, "a frame is empty, or cannot be read")
        parts.append(frame.data)
        size += len(frame.data)
    if size != first.total_bytes:
        raise refused(Refusal.MALFORMED, "the batch is not as long as it announced")
    return parts[0] if len(parts) == 1 else b"".join(parts)


OPTIONS: Mapping[str, int] = {
    "grpc.max_receive_message_length": methods.MESSAGE_BYTES,
    "grpc.max_send_message_length": methods.MESSAGE_BYTES,
    "grpc.max_metadata_size": 16 * 2**10,
    "grpc.absolute_max_metadata_size": 16 * 2**10,
    "grpc.max_concurrent_streams": 32,  # on one connection
    "grpc.server_handshake_timeout_ms": 10_000,
    "grpc.so_reuseport": 0,  # a port that is taken is an error, not shared
    "grpc.keepalive_time_ms": 30_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_recv_ping_interval_without_data_ms": 10_000,
    "grpc.http2.bdp_probe": 0,  # a stream may hold 64 KiB unread, not what the line could carry
}
"""Of the server's channel: what gRPC itself holds for a peer."""

MAX_RPCS = 4_096
"""Calls that run at once, whoever makes them; our own bounds end far below, this one holds what
they do not see."""
