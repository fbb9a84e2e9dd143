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
from fedrec_server import main
from fedrec_server.main import WaitingLog
from fedrec_server.watched_clients import WatchedClients
from tests.waiting import until

# without TLS the call fails, with TLS its handshake does, which raises
NOBODY = [Access("127.0.0.1:1", insecure=True), Access("127.0.0.1:2", name="server")]


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
    waiting = WaitingLog(state, NOBODY)
    for reason in (Awaited.NOTHING, Awaited.SCHEDULE):  # not a word while nothing is wrong
        state.waiting(reason)
        waiting.say(60.0)
    state.waiting(Awaited.REPORTS)
    waiting.say(60.0)
    state.waiting(Awaited.AGGREGATOR)
    waiting.say(90.0)
    reports, aggregator = lines(log)
    assert (reports["code"], reports["wait_s"], reports["level"]) == ("reports", 60, "warning")
    silent = "aggregator 127.0.0.1:1, aggregator 127.0.0.1:2"
    assert reports["missing"] == f"{silent}, client hospital, client library"
    assert (aggregator["code"], aggregator["missing"]) == ("aggregator", silent)


def test_it_is_said_again_and_again_for_as_long_as_it_waits(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "EVERY_S", 0.3)
    state = Metrics("server", "1").state
    with WaitingLog(state, []).running():
        state.waiting(Awaited.QUORUM)
        until(lambda: log.exists() and len(lines(log)) >= 3)
    assert {line["code"] for line in lines(log)} == {"quorum"}
    assert [line["event"] for line in lines(log)] == ["waiting"] * len(lines(log))


def test_waits_that_end_in_time_are_not_said_however_many_there_are(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports of one round after the other: no sample of them is a long wait."""
    state = Metrics("server", "1").state
    now_s = [0.0]
    monkeypatch.setattr("fedrec.operations.party_state.steady", lambda: now_s[0])
    waiting = WaitingLog(state, [])
    heard = list[float]()
    monkeypatch.setattr(waiting, "say", heard.append)
    for _ in range(100):
        state.waiting(Awaited.REPORTS)
        now_s[0] += 20.0
        waiting.look()
        state.waiting(Awaited.NOTHING)
        waiting.look()
    assert not heard
    state.waiting(Awaited.REPORTS)
    for _ in range(65):
        now_s[0] += 1.0
        waiting.look()
    assert heard == [pytest.approx(30.0), pytest.approx(60.0)]


def test_before_the_first_round_whoever_has_not_come_is_named_too() -> None:
    metrics = Metrics("server", "1")
    world = SimpleNamespace(join=lambda terms: [Answer("hospital", 3)])
    watched = WatchedClients(world, metrics, known=["hospital", "library"])  # type: ignore[arg-type]
    watched.join(None)  # type: ignore[arg-type]
    assert metrics.state.unanswered() == {"library"}
    metrics.state.doing(Doing.COLLECTING)
    assert not metrics.state.unanswered()
