"""What a waiting server says each half minute: what for, since when, who does not answer."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedrec.federation.protocol import Answer
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing
from fedrec.transport.channel import Access
from fedrec_server import waiting_log
from fedrec_server.waiting_log import WaitingLog
from fedrec_server.watching import WatchedClients
from tests.waiting import until

NOBODY = Access("127.0.0.1:1", insecure=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "server.jsonl"
    logs.configure("server", file=file)
    return file


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_it_names_the_aggregator_that_does_not_answer_and_the_clients_that_have_not(
    log: Path,
) -> None:
    state = Metrics("server", "1").state
    state.unanswered = lambda: {"library", "hospital"}
    waiting = WaitingLog(state, [NOBODY])
    for reason in (Awaited.NOTHING, Awaited.SCHEDULE):  # not a word while nothing is wrong
        state.waiting(reason)
        waiting.say(60.0)
    state.waiting(Awaited.REPORTS)
    waiting.say(60.0)
    state.waiting(Awaited.AGGREGATOR)
    waiting.say(90.0)
    reports, aggregator = lines(log)
    assert (reports["code"], reports["wait_s"], reports["level"]) == ("reports", 60, "warning")
    assert reports["missing"] == "aggregator 127.0.0.1:1, client hospital, client library"
    assert (aggregator["code"], aggregator["missing"]) == ("aggregator", "aggregator 127.0.0.1:1")


def test_it_is_said_again_and_again_for_as_long_as_it_waits(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_log, "EVERY_S", 0.01)
    state = Metrics("server", "1").state
    with WaitingLog(state, []).running():
        state.waiting(Awaited.QUORUM)
        until(lambda: log.exists() and len(lines(log)) >= 3)
    assert {line["code"] for line in lines(log)} == {"quorum"}


def test_before_the_first_round_whoever_has_not_come_is_named_too() -> None:
    metrics = Metrics("server", "1")
    world = SimpleNamespace(join=lambda terms: [Answer("hospital", 3)])
    watched = WatchedClients(world, metrics, known=["hospital", "library"])  # type: ignore[arg-type]
    watched.join(None)  # type: ignore[arg-type]
    assert metrics.state.unanswered() == {"library"}
    metrics.state.doing(Doing.COLLECTING)
    assert not metrics.state.unanswered()
