"""Traces: a round of all parties is one trace, and a span can hold nothing but what is listed."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedrec.errors import SettingsError
from fedrec.federation.protocol import Answer, Phase, RoundStatus
from fedrec.operations import party_state
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import ATTRIBUTES, Spans
from fedrec_client.worker_main import Counted
from fedrec_server.watched_clients import WatchedClients
from fedrec_server.watching import WatchedEndpoint
from tests.operations.spans import collected

SECRET = "zq-person"


class Participant:
    """A client that answers; what it holds is nobody's business."""

    name = SECRET
    users = SimpleNamespace(num_users=3)
    ledger = SimpleNamespace(limit=None)

    def join(self, terms: Any) -> Answer:
        return Answer(self.name, 3)

    def answer(self, invitation: Any) -> Answer:
        return Answer(self.name, 3, accepted=3)


class Endpoint:
    def open_round(self, opening: Any) -> RoundStatus:
        return RoundStatus(opening.run, opening.round, "d", Phase.OPEN)

    def close(self, run: str, round: int) -> RoundStatus:
        return RoundStatus(run, round, "d", Phase.RELEASED)

    def release(self, run: str, round: int) -> bytes:
        return SECRET.encode()


def test_a_round_of_all_parties_is_one_trace_and_its_spans_hold_what_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = collected(monkeypatch)
    monkeypatch.setattr(Counted, "_budget", lambda self: None)
    metrics = Metrics("server", "1")
    client = Counted(Participant(), Metrics("client", "1"), Path())  # type: ignore[arg-type]
    everybody: Any = SimpleNamespace(
        join=lambda terms: [client.join(terms)], ask=lambda asked: [client.answer(asked)]
    )
    endpoint = WatchedEndpoint(Endpoint(), metrics)  # type: ignore[arg-type]
    clients = WatchedClients(everybody, metrics)
    clients.join(SimpleNamespace(run="run-1"))  # type: ignore[arg-type]
    for round in (0, 1):
        endpoint.open_round(SimpleNamespace(run="run-1", round=round))  # type: ignore[arg-type]
        asked: Any = SimpleNamespace(run="run-1", question=SimpleNamespace(round=round))
        clients.ask(asked)
        endpoint.close("run-1", round)
        endpoint.release("run-1", round)
    spans = collector.get_finished_spans()
    per_round = ["client answering", "server collecting", "server releasing"]
    assert [span.name for span in spans] == [*per_round, "server learning", *per_round]
    assert [span.attributes["fedrec.round"] for span in spans] == [0] * 4 + [1] * 3
    traces = [span.context.trace_id for span in spans]
    assert traces == [traces[0]] * 4 + [traces[-1]] * 3
    assert traces[0] != traces[-1]
    server = [span for span in spans if span.name.startswith("server")]
    assert all(one.end_time <= next_one.start_time for one, next_one in pairwise(server))
    for span in spans:
        assert span.attributes.keys() <= ATTRIBUTES
        assert not span.events
        assert not span.links
        assert SECRET not in span.to_json()


def test_a_span_takes_no_attribute_that_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = collected(monkeypatch)
    with pytest.raises(AssertionError):
        Spans("client")._tell("answering", 0, None, {"user": SECRET})
    assert not collector.get_finished_spans()


def test_without_a_collector_nothing_is_imported_and_without_the_extra_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = (
        "import sys; from fedrec.operations.metrics import Metrics; Metrics('server', '1');"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    monkeypatch.setenv(party_state.ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setattr("fedrec.errors.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="opentelemetry") as missing:
        Metrics("server", "1")
    assert "fedrec[telemetry]" in missing.value.remedy


def test_a_client_that_joins_again_adds_nothing_to_the_last_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = collected(monkeypatch)
    monkeypatch.setattr(Counted, "_budget", lambda self: None)
    client = Counted(Participant(), Metrics("client", "1"), Path())  # type: ignore[arg-type]
    asked: Any = SimpleNamespace(run="run-1", question=SimpleNamespace(round=0))
    client.answer(asked)
    client.join(SimpleNamespace(run="run-2"))  # type: ignore[arg-type]
    [answered] = collector.get_finished_spans()
    assert answered.attributes["fedrec.run"] == "run-1"
