"""The aggregator from afar: the endpoints of `fedrec.federation.protocol` over gRPC.

Every call of the protocol may be repeated, so everything is sent again that may have been lost,
with growing, jittered pauses, until patience ends. A report that is sent again after it was counted
comes back as `REPLAYED`, and is counted once.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from fedrec.errors import FedRecError, ProtocolError, RefusedError, UnreachableError
from fedrec.federation.protocol import (
    Budget,
    LedgerGrowth,
    LedgerHead,
    Opening,
    OwnLedger,
    Phase,
    Receipt,
    Refusal,
    RoundStatus,
    SignedStatement,
    refused,
)
from fedrec.federation.round_messages import KEY, PROTOCOL, spoken
from fedrec.operations.addresses import proxy_words
from fedrec.operations.watched_files import WatchedFiles
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_api.methods import RpcMethod
from fedrec.transport.channel import Access, Role, open_channel

if TYPE_CHECKING:  # it brings scipy, which a client at rest does without
    from fedrec.privacy.calibration import Plan

R = TypeVar("R")

_LOST = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,  # also a connection that broke in the middle of an answer
    grpc.StatusCode.UNKNOWN,
}
"""Without a code of ours: the aggregator may not have seen the call, or its answer was lost."""

_ROUND_TRIP_S = 25.0
"""Longest wait in one call; the aggregator answers after about as long, and is asked again."""

MAX_RELEASE_BYTES = 4 * 2**30
"""The largest release that is taken; 23 million numbers have 184 MB."""


@dataclass(frozen=True)
class Retry:
    """How long to go on, and how long to wait in between: from `first_pause_s`, doubling to
    `longest_pause_s`, each between half and whole.

    deadline_s is of one call; releasing 23 million numbers takes a while. tell: of every attempt
    that failed and is made again. `sleep`, `clock` and `jitter` are the test's to replace.
    """

    patience_s: float = 60.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    deadline_s: float = 300.0
    tell: Callable[[ProtocolError], None] = lambda failure: None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = field(default=random.SystemRandom().random)


class Line:
    """One channel, opened when it is first needed, again after it was lost for good, and where the
    certificate was renewed; any thread may call."""

    def __init__(self, access: Access, role: Role, retry: Retry) -> None:
        self._access = access
        self._role = role
        self._retry = retry
        self._lock = threading.Lock()  # two threads must not open two channels
        self._channel = None
        self._files = WatchedFiles((access.certificate, access.key, access.ca, access.pins))
        self._metadata = (*(access.metadata(role) or ()), (KEY, str(PROTOCOL)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection; the next call opens it again."""
        with self._lock:
            channel = self._channel
            self._channel = None
        if channel is not None:
            channel.close()

    def _unary(self, method: RpcMethod, request: Any) -> Any:
        def called(channel: Any) -> Any:
            reply, call = channel.unary_unary(
                method.path, method.request.SerializeToString, method.reply.FromString
            ).with_call(request, **self._how())
            spoken(
                dict(call.initial_metadata() or ()).get(KEY),
                who=f"the aggregator at {self._access.address}",
            )
            return reply

        return self._patiently(called)

    def _stream(self, method: RpcMethod, request: Any, *, most: int) -> bytes:
        """What comes in frames, as it was announced."""
        return self._patiently(
            lambda channel: received(
                _caller(channel.unary_stream, method)(request, **self._how()), most=most
            )
        )

    def _patiently(self, call: Callable[[Any], R]) -> R:
        """The answer.

        Raises RefusedError, ProtocolError where the aggregator failed, and where patience ended
        what happened last."""
        retry = self._retry
        pause_s = self._retry.first_pause_s
        until_s = retry.clock() + retry.patience_s
        while True:
            try:
                return call(self._open())
            except ProtocolError as failed:
                failure = failed
            except grpc.RpcError as error:
                failure = meaning(error, self._access.address)
            if not (
                isinstance(failure, UnreachableError)
                or (isinstance(failure, RefusedError) and failure.code == Refusal.BUSY)
            ):
                raise failure from None
            if retry.clock() + pause_s > until_s:
                # whoever asks later begins with a new handshake: the certificate may have been
                # renewed
                self.hang_up()
                raise failure from None
            retry.tell(failure)
            # at random: clients that lost the same aggregator do not come back all at once
            retry.sleep(pause_s * (0.5 + 0.5 * retry.jitter()))
            pause_s = min(2 * pause_s, retry.longest_pause_s)

    def _open(self) -> Any:
        with self._lock:
            if self._channel is None or self._files.due():
                try:
                    self._channel = open_channel(self._access)
                except FedRecError:  # replaced by half, or not to be used yet
                    if self._channel is None:
                        raise
                    self._files.ask()
            return self._channel

    def _how(self) -> Mapping[str, Any]:
        return {"timeout": self._retry.deadline_s, "metadata": self._metadata}


class RemoteReportEndpoint(Line):
    """A `ReportEndpoint` over gRPC. A context; `hang_up` ends the connection."""

    def __init__(self, access: Access, *, retry: Retry | None = None) -> None:
        super().__init__(access, "client", retry or Retry())

    def enroll(self, tokens: Sequence[bytes]) -> int:
        """Implements `ReportEndpoint.enroll`, in messages of 16,384. Raises RefusedError or
        UnreachableError."""
        size = methods.TOKENS_PER_MESSAGE
        parts = [tokens[start : start + size] for start in range(0, len(tokens), size)] or [()]
        return max(
            int(self._unary(methods.ENROLL, pb.EnrollRequest(tokens=part)).users) for part in parts
        )

    def growth(self, since: LedgerHead, own: OwnLedger) -> LedgerGrowth:
        """Implements `ReportEndpoint.growth`. Raises RefusedError or UnreachableError."""
        heads = [bytes.fromhex(head) for head in own.heads]
        request = pb.GetGrowthRequest(
            number=since.number, head=since.head, charged=own.number, charged_heads=heads
        )
        return methods.read_growth(self._unary(methods.GET_GROWTH, request))

    def report(self, run: str, round: int, batch: bytes) -> Receipt:
        """Implements `ReportEndpoint.report`.

        Raises UnreachableError; RefusedError only where the caller itself is turned away."""
        try:
            reply = self._patiently(lambda channel: self._upload(channel, run, round, batch))
        except RefusedError as refusal:
            if refusal.code == Refusal.BUSY:
                raise UnreachableError(
                    f"the aggregator takes no more reports now: {refusal.cause}", refusal.remedy
                ) from None
            raise
        return Receipt(int(reply.accepted), dict(reply.rejected))

    def forget(self, token: bytes) -> SignedStatement:
        """Implements `ReportEndpoint.forget`. Raises RefusedError or UnreachableError."""
        reply = self._unary(methods.FORGET, pb.ForgetRequest(token=token))
        return SignedStatement(reply.statement, reply.signature, reply.certificate)

    def _upload(self, channel: Any, run: str, round: int, batch: bytes) -> Any:
        if len(batch) <= methods.FRAME_BYTES:
            frame = pb.ReportFrame(run=run, round=round, total_bytes=len(batch), data=batch)
            # the same on the wire, and saves a thread
            return _caller(channel.unary_unary, methods.REPORT)(frame, **self._how())
        return _caller(channel.stream_unary, methods.REPORT)(
            _frames(run, round, batch), **self._how()
        )


class RemoteReleaseEndpoint(Line):
    """A `ReleaseEndpoint` over gRPC. A context; `hang_up` ends the connection."""

    def __init__(self, access: Access, *, retry: Retry | None = None) -> None:
        super().__init__(access, "server", retry or Retry())

    def enrolled(self) -> int:
        """Implements `ReleaseEndpoint.enrolled`. Raises UnreachableError."""
        return int(self._unary(methods.ENROLLED, pb.EnrolledRequest()).users)

    def budget(self) -> Budget:
        """What is spent over all runs, and what is left. Raises as `enrolled`, and RefusedError of
        an aggregator that knows no such call."""
        return methods.read_budget(self._unary(methods.GET_BUDGET, pb.GetBudgetRequest()))

    def statement(self, run: str) -> SignedStatement:
        """What its ledger says of a run. Raises as `budget`, and RefusedError where it charged
        nothing of that run."""
        reply = self._unary(methods.GET_STATEMENT, pb.GetStatementRequest(run=run))
        return SignedStatement(reply.statement, reply.signature, reply.certificate)

    def growth(self, since: LedgerHead) -> LedgerGrowth:
        """Implements `ReleaseEndpoint.growth`. Raises RefusedError or UnreachableError."""
        return methods.read_growth(
            self._unary(
                methods.GET_GROWTH, pb.GetGrowthRequest(number=since.number, head=since.head)
            )
        )

    def open_run(self, run: str, plan: Plan) -> None:
        """Implements `ReleaseEndpoint.open_run`. Raises RefusedError or UnreachableError."""
        self._unary(methods.OPEN_RUN, pb.OpenRunRequest(run=run, plan=methods.plan_bytes(plan)))

    def open_round(self, opening: Opening) -> RoundStatus:
        """Implements `ReleaseEndpoint.open_round`. Raises RefusedError or UnreachableError."""
        return methods.read_status(
            self._unary(methods.OPEN_ROUND, pb.OpenRoundRequest(**vars(opening)))
        )

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Implements `ReleaseEndpoint.status`. Raises RefusedError or UnreachableError."""
        until_s = self._retry.clock() + wait_s
        while True:
            left_s = max(0.0, min(until_s - self._retry.clock(), _ROUND_TRIP_S))
            status = methods.read_status(
                self._unary(
                    methods.GET_ROUND, pb.GetRoundRequest(run=run, round=round, wait_s=left_s)
                )
            )
            if status.phase in {Phase.RELEASED, Phase.SHORT} or self._retry.clock() >= until_s:
                return status

    def close(self, run: str, round: int) -> RoundStatus:
        """Implements `ReleaseEndpoint.close`. Raises RefusedError or UnreachableError."""
        return methods.read_status(
            self._unary(methods.CLOSE_ROUND, pb.CloseRoundRequest(run=run, round=round))
        )

    def release(self, run: str, round: int) -> bytes:
        """Implements `ReleaseEndpoint.release`, its length bounded and its hash checked.

        Raises RefusedError or UnreachableError."""
        return self._stream(
            methods.GET_RELEASE, pb.GetReleaseRequest(run=run, round=round), most=MAX_RELEASE_BYTES
        )


def healthy(access: Access, *, timeout_s: float = 5.0) -> bool:
    """Whether the aggregator says that it serves.

    Raises as `open_channel`, and RefusedError where its version of the messages is far."""
    check = (
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    with open_channel(access, timeout_s=timeout_s) as channel:
        try:
            asked = channel.unary_unary("/grpc.health.v1.Health/Check", *check)
            reply, call = asked.with_call(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return False
    spoken(dict(call.initial_metadata() or ()).get(KEY), who=f"the aggregator at {access.address}")
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def _caller(kind: Callable[..., Any], method: RpcMethod) -> Callable[..., Any]:
    caller: Callable[..., Any] = kind(
        method.path, method.request.SerializeToString, method.reply.FromString
    )
    return caller


def _frames(run: str, round: int, batch: bytes) -> Iterator[pb.ReportFrame]:
    size = methods.FRAME_BYTES
    yield pb.ReportFrame(run=run, round=round, total_bytes=len(batch), data=batch[:size])
    for start in range(size, len(batch), size):
        yield pb.ReportFrame(data=batch[start : start + size])


def received(frames: Iterator[pb.ReleaseFrame], *, most: int = MAX_RELEASE_BYTES) -> bytes:
    """The whole release.

    Raises UnreachableError where it is not what its first frame announced: it may be fetched again.
    """
    first = next(frames, pb.ReleaseFrame())
    if first.total_bytes > most:
        raise refused(
            Refusal.TOO_LARGE,
            f"the answer announces {first.total_bytes} bytes, at most {most} are taken",
        )
    content = bytearray(first.data)
    for frame in frames:
        content += frame.data
        if len(content) > first.total_bytes:
            break
    if len(content) != first.total_bytes or hashlib.sha256(content).hexdigest() != first.sha256:
        raise UnreachableError(
            "the release did not arrive as it was sent",
            "Fetch it again: it is the same every time.",
        )
    return bytes(content)


def meaning(error: Any, address: str, party: str = "aggregator") -> ProtocolError:
    """What a failed call says: the party's own code where it gave one, a lost call otherwise."""
    trailing = dict(error.trailing_metadata() or ())
    status = error.code()
    details = str(error.details())
    code = trailing.get(methods.CODE_KEY, "")
    remedy = trailing.get(methods.REMEDY_KEY, b"").decode("utf-8", "replace")
    if code in set(Refusal):
        return RefusedError(code, details, remedy)
    if code:
        return ProtocolError(details, remedy)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return refused(Refusal.TOO_LARGE, f"the message is larger than the {party} takes")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        cause = f"the {party} at {address} does not know this call: its fedrec is older"
        return refused(Refusal.WRONG_PROTOCOL, cause, "Upgrade fedrec there.")
    if status in _LOST:
        return UnreachableError(
            f"no answer from the {party} at {address} ({status.name}: {details})",
            f"Check that it runs, and go on.{proxy_words(address)}",
        )
    return ProtocolError(
        f"the {party} at {address} answers {status.name}: {details}",
        "Use the same version of fedrec everywhere.",
    )
