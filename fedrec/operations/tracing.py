"""Traces of OpenTelemetry: a span for each phase of a round, and for each answer of serving.

On where the environment names a collector, as every program with OpenTelemetry: variables
`OTEL_EXPORTER_OTLP_ENDPOINT` and the others of its specification. A trace is one round: its id is a
digest of run and round, so that the spans of all parties lie in one trace while no message carries
anything for it. An answer is a trace of its own, with an id that means nothing.

A span has its times and what `ATTRIBUTES` names: nothing else can be written. Who asks, for what
and with what is not known here.
"""

from __future__ import annotations

import hashlib
import os
import time
from importlib import import_module
from typing import Any

from fedrec.extras import require

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
            began_ns = time.time_ns() - round(took_s * 1e9)
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
