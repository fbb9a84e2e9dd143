"""Spans of a deployment's processes arrive at a collector over OTLP. They hold nothing about a
person, nor do logs where gRPC says all that it can."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedrec.operations.party_state import ATTRIBUTES, ENDPOINT
from fedrec.settings import load
from fedrec_simulations.demo.trial import Trial
from tests.hidden import logs_with
from tests.simulation import kills
from tests.simulation.deployed import Deployed
from tests.simulation.kills import PERSON, Assault, Tally
from tests.waiting import HANG_S

pytestmark = [pytest.mark.processes, pytest.mark.rare]  # a collector of traces


class Collector(ThreadingHTTPServer):
    """OTLP/HTTP: what parties post to /v1/traces. bodies: as they came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Traces)
        self.bodies = list[bytes]()

    @property
    def spans(self) -> list[tuple[str, Any]]:
        """Spans, each with the name of its service."""
        messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        return [
            (
                next(
                    a.value.string_value for a in of.resource.attributes if a.key == "service.name"
                ),
                span,
            )
            for body in list(self.bodies)
            for of in messages.ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in of.scope_spans
            for span in scope.spans
        ]


class _Traces(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert (self.path, self.headers["Content-Type"]) == (
            "/v1/traces",
            "application/x-protobuf",
        )
        self.server.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join(HANG_S)


def test_spans_of_a_round_and_of_an_answer_arrive_over_otlp_without_a_person_s_data(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http", reason="needs fedrec[telemetry]: the exporter"
    )
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    trial = Trial(load(None, kills.SCENARIO), tmp_path)
    company = Assault(seed=0, kills=0, tally=Tally())
    there = Deployed(trial.files(0), company)
    try:
        there.start()
        rounds = sum(1 for _ in there.rounds())
        asking = {PERSON: lambda: company.pid(PERSON)}
        kills.ask(trial, there, there.serve(), 0, company, asking)
        company.wait_for(
            lambda: (
                {"serving answer", "server releasing", "client answering"}
                <= {span.name for _, span in collector.spans}
                or None
            ),
            what="spans of all parties",
            timeout_s=HANG_S,
        )
    finally:
        company.stop()  # what is on its way is sent before a party ends
    spans = collector.spans
    assert {service for service, _ in spans} >= {
        "fedrec-server",
        "fedrec-client",
        "fedrec-serving",
    }
    traces = {
        name: [span.trace_id for _, span in spans if span.name == name]
        for name in ("server collecting", "server releasing", "client answering", "serving answer")
    }
    assert len(set(traces["server releasing"])) == rounds
    assert set(traces["server releasing"]) == set(traces["client answering"])
    assert len(traces["client answering"]) == rounds * len(there.files.shards)
    assert set(traces["serving answer"]).isdisjoint(traces["server releasing"])
    for _, span in spans:
        assert {attribute.key for attribute in span.attributes} <= ATTRIBUTES
        assert not span.events
        assert not span.links
    # nor does anything else of what arrived: what logs may not hold, or the names of sites
    hidden = kills.secrets(trial) | {shard.name for shard in there.files.shards}
    assert len(hidden) > trial.dataset.interactions.num_users
    for body in collector.bodies:
        assert not [word for word in hidden if word.encode() in body]
    assert not logs_with(there.files.root, hidden - {shard.name for shard in there.files.shards})
