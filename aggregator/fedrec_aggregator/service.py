"""The gRPC service over the aggregator's rules: what each call of clients and servers asks of them,
in threads that peers cannot hold. What every call goes through is `calls`.

Why grpc.aio and not the threaded server: there every stream holds a thread from its first byte to
its last, so a few slow peers stop everybody. Here a peer that is slow holds a coroutine and its
announced bytes; a thread works only on a batch that is complete. Reports and server calls have
threads of their own, so neither waits for the other's queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from fedrec.errors import RefusedError
from fedrec.federation.protocol import (
    LedgerHead,
    Opening,
    OwnLedger,
    Phase,
    Receipt,
    Refusal,
    RoundStatus,
)
from fedrec.federation.report_batches import announced_users
from fedrec.federation.wire import refused
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_api.methods import RpcMethod
from fedrec_aggregator.calls import Call, Calls
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.credentials import Roster
from fedrec_aggregator.settings_tables import TlsSettings, TrafficSettings
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_aggregator.three_party_service import ThreePartyCalls

REPORT_THREADS = 2
SERVER_THREADS = 4
"""Checking a batch takes about ten times its bytes while it runs, so few run at once; servers call
seldom."""

_LONGEST_WAIT_S = 25.0
_LOOK_AGAIN_S = 0.05
"""A waiting server is answered after at most this long, and asks again; meanwhile no thread waits
for it."""
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


class AggregatorService:
    """All calls over one core. `stopping` ends waits when the process is told to stop."""

    def __init__(
        self,
        core: Aggregator,
        roster: Roster,
        bounds: TrafficSettings,
        *,
        metrics: Metrics,
        log: logging.Logger,
        tls: TlsSettings | None = None,
    ) -> None:
        """tls: whose key signs statements."""
        self.core = core
        core.signer = None if tls is None else (Path(tls.certificate), Path(tls.key))
        self.metrics = metrics
        self.log = log
        self.stopping = asyncio.Event()
        self._bounds = bounds
        self._report_threads = ThreadPoolExecutor(REPORT_THREADS, "reports")
        self._server_threads = threads = ThreadPoolExecutor(SERVER_THREADS, "servers")
        self._calls = Calls(
            roster, bounds, threads, metrics=metrics, log=log, stopping=self.stopping
        )
        self._opened = dict[tuple[str, int], float]()
        self._latest: tuple[str, int, int] | None = None  # run, round, needed: of the last tick
        self._of_three = (
            ThreePartyCalls(self._calls, core) if isinstance(core, ThreePartyAggregator) else None
        )

    def handlers(self) -> tuple[grpc.GenericRpcHandler, grpc.GenericRpcHandler]:
        """Ours, and the standard health check."""
        unary: dict[RpcMethod, Callable[[Call], Awaitable[Message]]] = {
            methods.GET_GROWTH: self._get_growth,
            methods.ENROLL: self._enroll,
            methods.REPORT: self._report,
            methods.FORGET: self._forget,
            methods.ENROLLED: self._enrolled,
            methods.GET_BUDGET: self._get_budget,
            methods.GET_STATEMENT: self._get_statement,
            methods.OPEN_RUN: self._open_run,
            methods.OPEN_ROUND: self._open_round,
            methods.GET_ROUND: self._get_round,
            methods.CLOSE_ROUND: self._close_round,
        }
        streams: dict[RpcMethod, Callable[[Call], Awaitable[None]]] = {
            methods.GET_RELEASE: self._get_release
        }
        if self._of_three is not None:
            unary |= self._of_three.unary()
            streams |= self._of_three.streams()
        table = {method.name: self._calls.unary(method, answer) for method, answer in unary.items()}
        table |= {method.name: self._calls.stream(method, send) for method, send in streams.items()}
        ours = grpc.method_handlers_generic_handler(methods.SERVICE, table)
        return ours, self._calls.health()

    def close(self) -> None:
        """End the threads when their work is done."""
        self._report_threads.shutdown()
        if self._of_three is not None:
            self._of_three.close()
        self._server_threads.shutdown()

    async def tick(self) -> None:
        """Close what is due."""
        await asyncio.get_running_loop().run_in_executor(self._server_threads, self.core.tick)
        self.show_state()

    def admit_by(self, roster: Roster) -> None:
        """From the next call on, only these callers are let in."""
        self._calls.roster = roster

    def show_state(self) -> None:
        """What is going on, for the metrics; called at every tick."""
        state = self.metrics.state
        rounds = [
            each for each in self.core.collections() if each.phase in {Phase.OPEN, Phase.RELEASING}
        ]
        state.enrolled(self.core.enrolled())
        open_ones = [each for each in rounds if each.phase is Phase.OPEN]
        state.doing(Doing.COLLECTING if open_ones else Doing.RELEASING if rounds else Doing.IDLE)
        state.waiting(
            Awaited.DATABASE
            if self.core.ledger.away
            else Awaited.REPORTS
            if open_ones
            else Awaited.NOTHING
            if rounds
            else Awaited.SERVER
        )
        if rounds:
            latest = rounds[-1]
            self._latest = latest.run, latest.question.round, latest.needed
            state.round(latest.question.round, latest.run)
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
        asked = await self._calls.first(call, pb.GetGrowthRequest)
        peer = call.place.peer
        since = LedgerHead(asked.number, asked.head)
        if peer.role == "client":
            endpoint = self.core.client_endpoint(peer.name)
            own = OwnLedger(asked.charged, tuple(head.hex() for head in asked.charged_heads))
            return methods.growth_message(
                await self._calls.in_threads(
                    self._report_threads, call, endpoint.growth, since, own
                )
            )
        return methods.growth_message(
            await self._calls.in_threads(self._server_threads, call, self.core.growth, since)
        )

    # --- clients ---

    async def _enroll(self, call: Call) -> Message:
        request = await self._calls.first(call, pb.EnrollRequest)
        if len(request.tokens) > methods.TOKENS_PER_MESSAGE:
            raise refused(
                Refusal.TOO_LARGE, f"one message enrols at most {methods.TOKENS_PER_MESSAGE} users"
            )
        endpoint = self.core.client_endpoint(
            call.caller, max_users=self._calls.roster.clients.get(call.caller)
        )
        users = await self._calls.in_threads(
            self._report_threads, call, endpoint.enroll, list(request.tokens)
        )
        self._say("enrolled", sender=call.caller, users=users)
        return pb.EnrollReply(users=users)

    async def _forget(self, call: Call) -> Message:
        request = await self._calls.first(call, pb.ForgetRequest)
        endpoint = self.core.client_endpoint(call.caller)
        told = await self._calls.in_threads(
            self._report_threads, call, endpoint.forget, bytes(request.token)
        )
        self._say("departed", sender=call.caller)
        return pb.GetStatementReply(**vars(told))

    async def _report(self, call: Call) -> Message:
        first = await self._calls.first(call, pb.ReportFrame)
        receipt = None
        try:
            if first.total_bytes > self.core.limits.max_batch_bytes:
                raise refused(Refusal.TOO_LARGE, "the batch announces more bytes than are taken")
            if first.total_bytes > len(first.data):  # else it is here already
                call.place.reserve(first.total_bytes)
            async with asyncio.timeout(self._bounds.upload_timeout_s):
                batch = await _gathered(first, call.context)
            endpoint = self.core.client_endpoint(call.caller)
            receipt = await self._calls.in_threads(
                self._report_threads, call, endpoint.report, first.run, first.round, batch
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
        await self._calls.first(call, pb.EnrolledRequest)
        return pb.EnrolledReply(
            users=await self._calls.in_threads(self._server_threads, call, self.core.enrolled)
        )

    async def _get_budget(self, call: Call) -> Message:
        await self._calls.first(call, pb.GetBudgetRequest)
        return pb.GetBudgetReply(
            **vars(await self._calls.in_threads(self._server_threads, call, self.core.budget))
        )

    async def _get_statement(self, call: Call) -> Message:
        asked = await self._calls.first(call, pb.GetStatementRequest)
        return pb.GetStatementReply(
            **vars(
                await self._calls.in_threads(
                    self._server_threads, call, self.core.statement, asked.run
                )
            )
        )

    async def _open_run(self, call: Call) -> Message:
        request = await self._calls.first(call, pb.OpenRunRequest)
        await self._calls.in_threads(
            self._server_threads,
            call,
            lambda: self.core.open_run(request.run, methods.read_plan(request.plan)),
        )
        return pb.OpenRunReply()

    async def _open_round(self, call: Call) -> Message:
        asked = await self._calls.first(call, pb.OpenRoundRequest)
        terms = asked.timeout_s, asked.ledger_head, asked.quorum, asked.attempt
        opening = Opening(asked.run, asked.round, asked.header, asked.digest, *terms)
        return self._told(
            await self._calls.in_threads(self._server_threads, call, self.core.open_round, opening)
        )

    async def _get_round(self, call: Call) -> Message:
        asked = await self._calls.first(call, pb.GetRoundRequest)
        clock = asyncio.get_running_loop().time
        # in this order: also where it is not a number
        until_s = clock() + max(0.0, min(_LONGEST_WAIT_S, asked.wait_s))
        while True:
            status = await self._calls.in_threads(
                self._server_threads, call, self.core.status, asked.run, asked.round
            )
            if (
                status.phase in {Phase.RELEASED, Phase.SHORT}
                or clock() >= until_s
                or self.stopping.is_set()
            ):
                return self._told(status)
            await asyncio.sleep(_LOOK_AGAIN_S)  # a round ends on another thread

    async def _close_round(self, call: Call) -> Message:
        asked = await self._calls.first(call, pb.CloseRoundRequest)
        return self._told(
            await self._calls.in_threads(
                self._server_threads, call, self.core.close, asked.run, asked.round
            )
        )

    async def _get_release(self, call: Call) -> None:
        asked = await self._calls.first(call, pb.GetReleaseRequest)
        content = await self._calls.in_threads(
            self._server_threads, call, self.core.release, asked.run, asked.round
        )
        sha256 = await self._calls.sent(call, content)
        self.metrics.moved(bytes_out=len(content))
        self._say(
            "fetched",
            run=asked.run,
            round=asked.round,
            sender=call.caller,
            bytes_out=len(content),
            sha256=sha256,
        )

    def _told(self, status: RoundStatus) -> Message:
        key = (status.run, status.round)
        now_s = asyncio.get_running_loop().time()
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


async def _gathered(first: pb.ReportFrame, context: Any) -> bytes:
    """The whole batch.

    Raises RefusedError (`MALFORMED`) as soon as there is more than was announced, or at the end
    less."""
    batch = bytearray(first.data)
    while len(batch) <= first.total_bytes:
        frame = await context.read()
        if frame is grpc.aio.EOF:
            break
        if frame is None or not frame.data:
            raise refused(Refusal.MALFORMED, "a frame is empty, or cannot be read")
        batch += frame.data
    if len(batch) != first.total_bytes:
        raise refused(Refusal.MALFORMED, "the batch is not as long as it announced")
    return bytes(batch)
