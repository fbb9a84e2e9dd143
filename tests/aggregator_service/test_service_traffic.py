"""Slow, greedy and lying peers: what they announce, hold and send is bounded, and nobody else waits
for them."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedrec.errors import RefusedError, UnreachableError
from fedrec.federation.protocol import Phase, Refusal
from fedrec.federation.round_messages import KEY, PROTOCOL
from fedrec.transport.aggregator_api import aggregator_pb2 as pb
from fedrec.transport.aggregator_api import methods
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint, Retry
from fedrec.transport.channel import open_channel
from tests.waiting import HANG_S, until, with_more_time

ONCE = Retry(patience_s=0.0, deadline_s=HANG_S)


class Uploads:
    """Uploads whose frames the test decides on; whatever they get back is kept."""

    def __init__(self, running: Any, name: str = "hospital") -> None:
        access = running.access("client", name)
        self.channel = open_channel(access)
        self._metadata = (*access.metadata("client"), (KEY, str(PROTOCOL)))
        self._end = threading.Event()
        self._calls = list[Any]()

    def begin(
        self, *frames: pb.ReportFrame, stall: bool = True, path: str = methods.REPORT.path
    ) -> Any:
        def sent() -> Iterator[pb.ReportFrame]:
            yield from frames
            if stall:
                self._end.wait(HANG_S)

        kind = self.channel.stream_unary(
            path, methods.REPORT.request.SerializeToString, methods.REPORT.reply.FromString
        )
        self._calls.append(kind.future(sent(), timeout=HANG_S, metadata=self._metadata))
        return self._calls[-1]

    def close(self) -> None:
        self._end.set()
        for call in self._calls:
            call.cancel()
        self.channel.close()


@pytest.fixture
def uploads() -> Iterator[Callable[..., Uploads]]:
    with contextlib.ExitStack() as stack:

        def build(*arguments: Any) -> Uploads:
            made = Uploads(*arguments)
            stack.callback(made.close)
            return made

        yield build


def frame(task: Any, *, total: int, data: bytes = b"") -> pb.ReportFrame:
    return pb.ReportFrame(run=task.run, round=0, total_bytes=total, data=data)


def opened(running: Any, task: Any) -> RemoteReleaseEndpoint:
    endpoint = running.server()
    running.client().enroll(task.tokens(range(1, 9)))
    endpoint.open_run(task.run, task.plan)
    endpoint.open_round(task.opening())
    return endpoint


def rejected(call: Any) -> dict[str, int]:
    return dict(call.result(HANG_S).rejected)


def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    error = call.exception(HANG_S)
    return error.code(), dict(error.trailing_metadata() or ()).get(methods.CODE_KEY, "")


def test_a_batch_that_announces_too_much_is_turned_away_before_it_is_sent(
    plain: Any, task: Any, uploads: Any
) -> None:
    too_much = plain.settings.limits.max_batch_bytes + 1
    for total in (too_much, 2**63):
        assert rejected(uploads(plain).begin(frame(task, total=total))) == {Refusal.TOO_LARGE: 1}


def test_a_batch_longer_or_shorter_than_announced_is_malformed(
    plain: Any, task: Any, uploads: Any
) -> None:
    longer = uploads(plain).begin(
        frame(task, total=10, data=b"x" * 8), pb.ReportFrame(data=b"x" * 8)
    )
    assert rejected(longer) == {Refusal.MALFORMED: 1}
    assert rejected(uploads(plain).begin(frame(task, total=10, data=b"x" * 8), stall=False)) == {
        Refusal.MALFORMED: 1
    }
    assert rejected(uploads(plain).begin(frame(task, total=10), pb.ReportFrame())) == {
        Refusal.MALFORMED: 1
    }


def test_a_frame_larger_than_a_message_is_refused_by_grpc_itself(
    plain: Any, task: Any, uploads: Any
) -> None:
    large = uploads(plain)
    large.channel.close()
    large.channel = grpc.insecure_channel(str(plain.address))  # without our own client's bound
    code, _ = status_of(large.begin(frame(task, total=8 * 2**20, data=b"x" * 4 * 2**20)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_header_larger_than_a_message_is_too_large_and_not_sent_for_ever(
    plain: Any, task: Any
) -> None:
    from dataclasses import replace

    with pytest.raises(RefusedError) as refusal:
        plain.server().open_round(replace(task.opening(), header=b"x" * 2 * 2**20))
    assert refusal.value.code == Refusal.TOO_LARGE


def test_a_stalled_upload_times_out_and_frees_its_place(
    start: Callable[..., Any], task: Any, uploads: Any, tmp_path: Path
) -> None:
    def attempt(upload_timeout_s: float) -> None:
        traffic = {"upload_timeout_s": upload_timeout_s, "max_uploads_per_client": 1}
        running = start(
            tls={}, insecure=True, traffic=traffic, state=str(tmp_path / f"{upload_timeout_s:g}")
        )
        endpoint = opened(running, task)
        slow = uploads(running)
        assert (
            status_of(slow.begin(frame(task, total=1_000, data=b"x")))[0]
            is grpc.StatusCode.DEADLINE_EXCEEDED
        )
        assert running.client(retry=ONCE).report(task.run, 0, task.batch([1])).accepted == 1
        assert endpoint.status(task.run, 0).reported == 1

    with_more_time(attempt, 0.3, 3.0, 30.0)


@pytest.mark.parametrize("method", [methods.ENROLL, methods.REPORT])
def test_a_call_without_a_first_message_times_out(
    start: Callable[..., Any], uploads: Any, method: Any
) -> None:
    running = start(
        tls={}, insecure=True, traffic={"upload_timeout_s": 0.3, "request_timeout_s": 0.3}
    )
    assert (
        status_of(uploads(running).begin(path=method.path))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    )


def test_a_call_that_ends_without_a_message_is_malformed(plain: Any, uploads: Any) -> None:
    assert (
        status_of(uploads(plain).begin(stall=False, path=methods.ENROLL.path))[1]
        == Refusal.MALFORMED
    )


@pytest.mark.parametrize("method", [methods.ENROLL, methods.REPORT])
@pytest.mark.parametrize("content", [b"\xff\xff", b"\x0a", b"\x0a\x02\xff\xfe"])
def test_bytes_that_are_no_message_are_malformed_and_leave_no_line_of_an_error(
    plain: Any, uploads: Any, caplog: Any, method: Any, content: bytes
) -> None:
    mine = uploads(plain)
    call = mine.channel.stream_unary(method.path, bytes, method.reply.FromString).future(
        iter([content]), timeout=HANG_S, metadata=mine._metadata
    )
    assert status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, Refusal.MALFORMED)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_frame_that_cannot_be_read_ends_the_upload(plain: Any, task: Any, uploads: Any) -> None:
    opened(plain, task)
    mine = uploads(plain)
    sent = iter([frame(task, total=1_000, data=b"x").SerializeToString(), b"\xff\xff"])
    call = mine.channel.stream_unary(
        methods.REPORT.path, bytes, methods.REPORT.reply.FromString
    ).future(sent, timeout=HANG_S, metadata=mine._metadata)
    assert set(rejected(call)) == {Refusal.MALFORMED}


def test_a_peer_with_many_uploads_is_busy_and_blocks_neither_servers_nor_other_clients(
    start: Callable[..., Any], task: Any, uploads: Any
) -> None:
    running = start(tls={}, insecure=True, traffic={"max_uploads_per_client": 3, "max_uploads": 5})
    endpoint = opened(running, task)
    greedy = uploads(running, "library")
    held = [greedy.begin(frame(task, total=1_000, data=b"x")) for _ in range(40)]
    turned_away = [call for call in held if settled(call)]
    while len(turned_away) < 37:
        turned_away = [call for call in held if settled(call)]
    assert {status_of(call) for call in turned_away} == {
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Refusal.BUSY.value)
    }
    assert running.client().report(task.run, 0, task.batch([1, 2])).accepted == 2
    assert endpoint.close(task.run, 0).phase is Phase.RELEASED
    assert endpoint.release(task.run, 0)
    assert sum(not call.done() for call in held) == 3


def settled(call: Any) -> bool:
    with contextlib.suppress(grpc.FutureTimeoutError):
        call.exception(0.05)
    return bool(call.done())


def test_all_clients_together_do_not_take_a_servers_place(
    start: Callable[..., Any], task: Any, uploads: Any
) -> None:
    running = start(
        tls={},
        insecure=True,
        any_client=True,
        traffic={"max_uploads_per_client": 4, "max_uploads": 4},
    )
    endpoint = opened(running, task)
    crowd = uploads(running, "library")
    for _ in range(4):
        crowd.begin(frame(task, total=1_000, data=b"x"))
    await_busy(running)
    with pytest.raises(UnreachableError, match="too many clients"):
        RemoteReportEndpoint(running.access("client", "hospital"), retry=ONCE).report(
            task.run, 0, task.batch([1])
        )
    assert endpoint.enrolled() == 8
    assert endpoint.close(task.run, 0).phase is Phase.SHORT


def await_busy(running: Any) -> None:
    """Until the crowd is in."""
    endpoint = RemoteReportEndpoint(running.access("client", "hospital"), retry=ONCE)

    def for_ever() -> None:
        while True:
            endpoint.enroll([])

    with pytest.raises(RefusedError, match="too many clients"):
        for_ever()


def small_memory(start: Callable[..., Any], **more: Any) -> Any:
    """Memory for two batches of the largest size."""
    bounds = {"max_upload_bytes": 2**21, "max_uploads_per_client": 8}
    limits = {"min_cohort": 2, "max_batch_bytes": 2**20}
    return start(tls={}, insecure=True, traffic=bounds, limits=limits, **more)


def announced(greedy: Uploads, task: Any, total: int) -> list[Any]:
    """Two uploads of so many bytes that never come; one of them was turned away."""
    calls = [greedy.begin(frame(task, total=total, data=b"x")) for _ in range(2)]
    until(lambda: any(settled(call) for call in calls), "one is too much")
    return calls


def test_one_client_reserves_no_more_than_its_share_and_others_report_meanwhile(
    start: Callable[..., Any], task: Any, uploads: Any
) -> None:
    running = small_memory(start)
    opened(running, task)
    held = announced(uploads(running, "library"), task, 2**20)
    turned_away = next(call for call in held if call.done())
    assert status_of(turned_away) == (grpc.StatusCode.RESOURCE_EXHAUSTED, Refusal.BUSY.value)
    assert dict(turned_away.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"
    assert running.client(retry=ONCE).report(task.run, 0, task.batch([1, 2, 3])).accepted == 3
    assert sum(not call.done() for call in held) == 1


def test_announced_bytes_of_all_clients_are_bounded_until_they_hang_up(
    start: Callable[..., Any], task: Any, uploads: Any
) -> None:
    running = small_memory(start, any_client=True)
    opened(running, task)
    crowd = [uploads(running, name) for name in ("library", "museum")]
    announced(crowd[0], task, 2**20)  # half of all memory
    announced(crowd[1], task, 2**19)  # half of what is left
    busy = uploads(running, "school").begin(frame(task, total=2**19, data=b"x"))
    assert status_of(busy) == (grpc.StatusCode.RESOURCE_EXHAUSTED, Refusal.BUSY.value)
    for each in crowd:
        each.close()
    assert running.client().report(task.run, 0, task.batch([1, 2, 3])).accepted == 3


def test_a_report_of_one_frame_needs_none_of_the_memory_that_others_announced(
    start: Callable[..., Any], task: Any, uploads: Any
) -> None:
    """A crowd takes half of what is left, and half again, until a report has no room in it."""
    running = small_memory(start, any_client=True)
    opened(running, task)
    batch = task.batch([1, 2, 3])
    for number in range(20 - len(batch).bit_length() + 1):
        announced(uploads(running, f"crowd-{number}"), task, 2 ** (20 - number))
    larger = uploads(running, "school").begin(frame(task, total=len(batch), data=b"x"))
    assert status_of(larger) == (grpc.StatusCode.RESOURCE_EXHAUSTED, Refusal.BUSY.value)
    assert running.client(retry=ONCE).report(task.run, 0, batch).accepted == 3


def test_an_aggregator_that_fails_says_so_without_the_words_of_its_error(
    plain: Any, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedrec.errors import ProtocolError
    from fedrec_aggregator.core import Aggregator

    def fail(self: Any) -> int:
        raise ValueError("a rating of four stars")

    monkeypatch.setattr(Aggregator, "enrolled", fail)
    with pytest.raises(ProtocolError) as failure:
        plain.server().enrolled()
    assert not isinstance(failure.value, UnreachableError)
    assert "ValueError" in failure.value.cause
    assert "four stars" not in failure.value.cause + plain.settings.log.read_text()
