"""State of a party, as Prometheus gauges of the same names in every party: phase, round, what it
waits for, who is there.

A gauge is exported from its first value on. A zero that nobody set would be a false alarm: the
server, for one, does not know the budget. Labels are the closed sets below; nothing is labelled by
user, client or run.

Traces of OpenTelemetry: a span for each phase of a round, and for each answer of serving.

On where the environment names a collector, as every program with OpenTelemetry: variables
`OTEL_EXPORTER_OTLP_ENDPOINT` and the others of its specification. A trace is one round: its id is a
digest of run and round, so that the spans of all parties lie in one trace while no message carries
anything for it. An answer is a trace of its own, with an id that means nothing.

A span has its times and what `ATTRIBUTES` names: nothing else can be written. Who asks, for what
and with what is not known here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Collection
from enum import StrEnum
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from fedrec.errors import FedRecError, require
from fedrec.operations import logs
from fedrec.operations.clock import steady

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ATTRIBUTES = frozenset({"fedrec.run", "fedrec.round", "network.protocol.name"})


class Spans:
    """Spans of one party, or nothing where no collector is named. Any thread may call.

    Raises SettingsError where one is named and the extra `telemetry` is not installed."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._tracer = _tracer(party) if os.environ.get(ENDPOINT) else None

    def phase(self, name: str, began_ns: int, *, run: str, round: int) -> None:
        """A phase of a round that ends now."""
        if self._tracer:
            attributes = {"fedrec.run": run, "fedrec.round": round}
            self._tell(name, began_ns, _round(run, round), attributes)

    def answer(self, protocol: str, took_s: float) -> None:
        """An answer of serving that was made now."""
        if self._tracer:
            began_ns = time.time_ns() - round(took_s * 1e9)  # traces count whole nanoseconds
            self._tell("answer", began_ns, None, {"network.protocol.name": protocol})

    def _tell(self, name: str, began_ns: int, parent: Any, attributes: dict[str, Any]) -> None:
        assert attributes.keys() <= ATTRIBUTES
        assert self._tracer
        span = self._tracer.start_span(
            f"{self._party} {name}", context=parent, attributes=attributes, start_time=began_ns
        )
        span.end()


def _tracer(party: str) -> Any:
    processor = _processor()
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    about = Resource.create({"service.name": f"fedrec-{party}"})
    provider = TracerProvider(resource=about)
    provider.add_span_processor(processor)
    return provider.get_tracer("fedrec")


def _processor() -> Any:
    require("telemetry", ENDPOINT)
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporters = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    return BatchSpanProcessor(exporters.OTLPSpanExporter())


def _round(run: str, round: int) -> Any:
    """The parent of every span of a round: nobody sends it, and everybody knows its name."""
    from opentelemetry import trace

    digest = hashlib.sha256(f"{run}/{round}".encode()).digest()
    parent = trace.SpanContext(
        int.from_bytes(digest[:16], "big"),
        int.from_bytes(digest[16:24], "big"),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent))


class Doing(StrEnum):
    """Phases of a party."""

    STARTING = "starting"
    GATHERING = "gathering"  # server: clients are told the run's terms
    COLLECTING = "collecting"  # server, aggregator: a round is open, reports come in
    RELEASING = "releasing"  # server, aggregator: the round's sums are noised and fetched
    LEARNING = "learning"  # server: it takes its step, and writes down what it has
    ANSWERING = "answering"  # client: its users' reports are made and handed in
    SERVING = "serving"
    IDLE = "idle"
    STOPPING = "stopping"
    FINISHED = "finished"


class Awaited(StrEnum):
    """What a party waits for, and cannot go on without."""

    NOTHING = "nothing"
    CLIENTS = "clients"  # too few have joined
    USERS = "users"  # too few are there of those who must be
    REPORTS = "reports"  # of clients that were asked
    QUORUM = "quorum"  # too few users have reported in a round
    AGGREGATOR = "aggregator"  # it does not answer
    DATABASE = "database"  # aggregator: that of its ledger is away
    SERVER = "server"  # it has asked for nothing, or does not answer
    MODEL = "model"  # there is none to serve
    SCHEDULE = "schedule"  # the next run is not due yet
    BUDGET = "budget"  # the next run cannot be afforded yet
    OPERATOR = "operator"  # its training was stopped by a refusal that its log names


_OF_A_ROUND = {Doing.COLLECTING, Doing.RELEASING, Doing.LEARNING, Doing.ANSWERING}


class LateGauge:
    """A gauge that is exported from its first use on. Any thread may call."""

    def __init__(self, registry: CollectorRegistry, name: str, words: str, *labels: str) -> None:
        self._registry = registry
        self._gauge = Gauge(name, words, labels, registry=None)
        self._lock = Lock()  # two threads must not register the gauge twice
        self._exported = False

    def __call__(self, *labels: str) -> Gauge:
        """The gauge, or that of these labels."""
        with self._lock:
            if not self._exported:
                self._registry.register(self._gauge)
                self._exported = True
        return self._gauge.labels(*labels) if labels else self._gauge


class PartyState:
    """Gauges of one party. Any thread may call; `clock` is unix time."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        party: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self.spans = Spans(party)
        self._in_round = ("", 0)
        self._phase_ns = 0
        self.phase = Doing.STARTING
        self.unanswered: Callable[[], Collection[str]] = tuple  # clients; named in logs alone
        gauge = partial(LateGauge, registry)
        self._enrolled = gauge("fedrec_users_enrolled", "Users enrolled; at a client its own")
        self._clients = gauge(
            "fedrec_clients", "Clients by state: connected, joined, absent", "state"
        )
        self._round = gauge("fedrec_round", "Number of the round in progress, or of the last one")
        self._needed = gauge(
            "fedrec_quorum_needed_users",
            "Users that must report before the round in progress is released",
        )
        self._there = gauge(
            "fedrec_quorum_users",
            "Users that have reported in the round in progress, as far as this party knows",
        )
        self._success = gauge(
            "fedrec_last_success_timestamp_seconds",
            "Unix time of the last round released, question answered or model loaded",
        )
        self._phase = gauge("fedrec_phase", "1 for the phase that this party is in", "phase")
        self._waiting = gauge("fedrec_waiting", "1 for what this party waits for", "reason")
        self._since = gauge(
            "fedrec_waiting_since_timestamp_seconds", "Unix time since when it waits for that"
        )
        gauge("fedrec_start_time_seconds", "Unix time at which this process started")().set(clock())
        self.doing(Doing.STARTING)
        self._await(Awaited.NOTHING)

    def doing(self, phase: Doing) -> None:
        """The phase that begins."""
        if phase is not self.phase:
            run, round = self._in_round
            if run and self.phase in _OF_A_ROUND:
                self.spans.phase(self.phase.value, self._phase_ns, run=run, round=round)
            self._phase_ns = time.time_ns()
            if phase not in _OF_A_ROUND:
                self._in_round = ("", 0)
        self.phase = phase
        for each in Doing:
            self._phase(each.value).set(each is phase)

    def waiting(self, reason: Awaited) -> bool:
        """What it waits for from now on; whether that is something else than before."""
        if new := reason is not self.awaited:
            self._await(reason)
        return new

    def enrolled(self, users: int) -> None:
        """Users enrolled."""
        self._enrolled().set(users)

    def clients(
        self,
        *,
        connected: Callable[[], float] | None = None,
        joined: int | None = None,
        absent: int | None = None,
    ) -> None:
        """Clients; `connected` is asked at every scrape."""
        if connected is not None:
            self._clients("connected").set_function(connected)
        for state, count in (("joined", joined), ("absent", absent)):
            if count is not None:
                self._clients(state).set(count)

    def round(self, number: int, run: str) -> None:
        """The round in progress; after the phase that it begins with."""
        self._in_round = (run, number)
        self._round().set(number)

    def quorum(self, *, needed: int | None = None, there: int | None = None) -> None:
        """Users that must report in the round in progress, and that have."""
        for gauge, users in ((self._needed, needed), (self._there, there)):
            if users is not None:
                gauge().set(users)

    def succeeded(self, at_s: float | None = None) -> None:
        """A round was released, a question answered, a model loaded: now, or at a unix time."""
        self._success().set(self._clock() if at_s is None else at_s)

    def waited_s(self) -> float:
        """How long it has waited for what it waits for."""
        return steady() - self._began_s

    def _await(self, reason: Awaited) -> None:
        self.awaited = reason
        self._began_s = steady()
        for each in Awaited:
            self._waiting(each.value).set(each is reason)
        self._since().set(self._clock())


def noting(
    state: PartyState, reason: Awaited, log: logging.Logger
) -> Callable[[FedRecError], None]:
    """Told of each failed attempt at a call: says what is waited for, and the cause, at the first
    and where the cause is another one."""
    said = [""]

    def note(failure: FedRecError) -> None:
        if state.waiting(reason) or said[0] != failure.cause:
            said[0] = failure.cause
            why = {"cause": failure.cause, "remedy": failure.remedy}
            logs.say(log, "waiting", level=logging.WARNING, code=reason.value, **why)

    return note
