"""A round over gRPC is the round in process: the same codes, the same bytes."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Opening, Phase, Refusal, ReleaseEndpoint, ReportEndpoint
from fedrec.federation.wire import unpack_release
from fedrec.operations.metrics import Metrics
from fedrec.privacy.calibration import calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits
from fedrec_aggregator.service import AggregatorService
from fedrec_aggregator.settings_tables import TrafficSettings
from tests.waiting import HANG_S

USERS = [1, 2, 3, 4]


def in_process(folder: Path, running: Any) -> Aggregator:
    limits = running.settings.limits.limits()
    return Aggregator(
        ReleaseLedger(folder, limit=running.settings.limit),
        limits,
        noise=Streams(running.settings.privacy.seed),
    )


def round_of(task: Any, endpoint: ReleaseEndpoint, client: ReportEndpoint) -> bytes:
    assert client.enroll(task.tokens(USERS)) == len(USERS)
    endpoint.open_run(task.run, task.plan)
    assert endpoint.open_round(task.opening()).phase is Phase.OPEN
    assert client.report(task.run, 0, task.batch(USERS[:3])).accepted == 3
    assert endpoint.close(task.run, 0).phase is Phase.RELEASED
    return endpoint.release(task.run, 0)


def test_a_release_over_grpc_has_the_bytes_of_one_in_process(
    start: Callable[..., Any], task: Any, tmp_path: Path
) -> None:
    running = start()
    with running.client() as client, running.server() as server:
        remote = round_of(task, server, client)
    local = in_process(tmp_path / "local", running)
    assert remote == round_of(task, local, local.client_endpoint("hospital"))


def test_a_release_of_many_frames_arrives_as_it_was_stored(
    start: Callable[..., Any], task: Any
) -> None:
    running = start(tls={}, insecure=True)
    large = type(task)(rows=2_000, width=24)
    with running.client() as client, running.server() as server:
        content = round_of(large, server, client)
    assert len(content) > 4 * 2**20
    assert content == (running.settings.state / "releases/run-1/round-000.safetensors").read_bytes()
    unpack_release(content, large.question().releases)


def test_a_batch_of_many_frames_is_one_batch(plain: Any, task: Any) -> None:
    from_many = [2 * user for user in range(1, 301)]
    task = type(task)(rows=3_000, width=8, events=600)
    with plain.client() as client, plain.server() as server:
        client.enroll(task.tokens(from_many))
        server.open_run(task.run, task.plan)
        server.open_round(task.opening())
        batch = task.batch(from_many)
        assert len(batch) > 4 * 256 * 2**10
        assert client.report(task.run, 0, batch).accepted == len(from_many)
        status = server.status(task.run, 0)
        assert status.reported == len(from_many)


def refusals(
    task: Any, endpoint: ReleaseEndpoint, client: ReportEndpoint, other: ReportEndpoint
) -> list[Any]:
    """What each of these says, in this order, of an aggregator where nothing happened yet."""
    unknown = type(task)(run="run-2")
    foreign = calibrate(Guarantee(4.0, 1e-5), {"sums/0": 1.0})
    whole = task.opening()
    attempts: list[Callable[[], Any]] = [
        lambda: endpoint.open_round(whole),
        lambda: endpoint.open_run("../x", task.plan),
        lambda: endpoint.open_run(task.run, task.plan),
        lambda: endpoint.open_run(task.run, foreign),
        lambda: endpoint.open_run("dear", calibrate(Guarantee(1_000.0, 1e-5), {"sums/0": 1.0})),
        lambda: endpoint.status(task.run, 0),
        lambda: endpoint.release(task.run, 0),
        lambda: endpoint.open_round(
            Opening(task.run, 0, whole.header, whole.digest, 60.0, "0" * 64)
        ),
        lambda: endpoint.open_round(Opening(task.run, 0, b"{}", whole.digest, 60.0)),
        lambda: endpoint.open_round(whole).phase,
        lambda: client.report(task.run, 0, task.batch([1])),
        lambda: client.enroll(task.tokens([1, 2])),
        lambda: other.enroll(task.tokens([1])),
        lambda: client.enroll([b"short"]),
        lambda: client.report(task.run, 0, b"garbage" * 20),
        lambda: client.report(task.run, 1, task.batch([1])),
        lambda: client.report("run-2", 0, unknown.batch([1])),
        lambda: client.report(task.run, 0, unknown.batch([1])),
        lambda: client.report(task.run, 0, task.batch([1])),
        lambda: client.report(task.run, 0, task.batch([1])),
        lambda: endpoint.close(task.run, 0).phase,
        lambda: client.report(task.run, 0, task.batch([2])),
        lambda: endpoint.status(task.run, 0),
    ]
    return [said(attempt) for attempt in attempts]


def said(attempt: Callable[[], Any]) -> Any:
    try:
        return attempt()
    except RefusedError as refusal:
        return refusal.code, refusal.cause, refusal.remedy


def test_codes_causes_and_receipts_are_the_same_over_grpc_and_in_process(
    start: Callable[..., Any], task: Any, tmp_path: Path
) -> None:
    running = start()
    with running.client() as client, running.client("library") as other, running.server() as server:
        remote = refusals(task, server, client, other)
    local = in_process(tmp_path / "local", running)
    expected = refusals(
        task, local, local.client_endpoint("hospital"), local.client_endpoint("library")
    )
    for over_grpc, in_this_process in zip(remote, expected, strict=True):
        if not hasattr(over_grpc, "remaining_s"):
            assert over_grpc == in_this_process
    codes = {entry[0] for entry in remote if isinstance(entry, tuple)}
    assert codes >= {
        Refusal.RUN_UNKNOWN,
        Refusal.WRONG_PLAN,
        Refusal.BUDGET,
        Refusal.ROUND_UNKNOWN,
        Refusal.STALE_LEDGER,
        Refusal.MALFORMED,
    }


def test_a_waiting_server_is_told_when_the_last_user_has_reported(
    start: Callable[..., Any], task: Any
) -> None:
    import threading

    running = start()
    with running.client() as client, running.server() as server:
        client.enroll(task.tokens(USERS))
        server.open_run(task.run, task.plan)
        server.open_round(task.opening())
        told = list[Any]()
        waiting = threading.Thread(
            target=lambda: told.append(server.status(task.run, 0, wait_s=HANG_S))
        )
        waiting.start()
        client.report(task.run, 0, task.batch(USERS))
        waiting.join(HANG_S)
    assert told
    assert told[0].phase is Phase.RELEASED


def test_a_client_enrols_no_more_users_than_the_operator_listed(
    start: Callable[..., Any], task: Any
) -> None:
    running = start()
    with running.client() as client:
        assert client.enroll(task.tokens(range(500))) == 500
        assert client.enroll(task.tokens(range(500))) == 500
        with pytest.raises(RefusedError) as refusal:
            client.enroll(task.tokens(range(499, 501)))
        assert refusal.value.code == Refusal.TOO_LARGE
        assert client.enroll([]) == 500


def test_the_log_tells_the_round_and_no_value(start: Callable[..., Any], task: Any) -> None:
    running = start()
    with running.client() as client, running.server() as server:
        round_of(task, server, client)
        client.report(task.run, 0, b"a secret that nobody may read")
    lines = [json.loads(line) for line in running.settings.log.read_text().splitlines()]
    assert [line["event"] for line in lines if line["event"] != "report"][:4] == [
        "listening",
        "enrolled",
        "opened",
        "released",
    ]
    assert all(line["party"] == "aggregator" and line["time"] and line["level"] for line in lines)
    released = next(line for line in lines if line["event"] == "released")
    assert (released["run"], released["round"], released["accepted"]) == (task.run, 0, 3)
    assert "secret" not in running.settings.log.read_text()
    assert not np.any(
        [token.hex() in running.settings.log.read_text() for token in task.tokens(USERS)]
    )


def test_after_a_round_the_metrics_say_how_many_reported_and_not_how_many_had_at_a_tick(
    tmp_path: Path, task: Any
) -> None:
    core = Aggregator(ReleaseLedger(tmp_path, limit=None), Limits(min_cohort=2), noise=Streams(1))
    client = core.client_endpoint("hospital")
    metrics = Metrics("aggregator", "9.9")
    roster: Any = None  # nobody calls over the network
    service = AggregatorService(
        core, roster, TrafficSettings(), metrics=metrics, log=logging.getLogger("test")
    )
    client.enroll(task.tokens(USERS))
    core.open_run(task.run, task.plan)
    core.open_round(task.opening())
    assert client.report(task.run, 0, task.batch(USERS[:1])).accepted == 1
    service.show_state()
    shown = [metrics.registry.get_sample_value("fedrec_quorum_users")]
    client.report(task.run, 0, task.batch(USERS[1:]))
    core.close(task.run, 0)
    service.show_state()
    assert [*shown, metrics.registry.get_sample_value("fedrec_quorum_users")] == [1, len(USERS)]
    service.close()
    core.ledger.close()
