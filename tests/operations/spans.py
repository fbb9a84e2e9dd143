"""Spans of a test, kept in memory."""

from __future__ import annotations

from typing import Any

import pytest

from fedrec.operations import party_state


def collected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where the spans of every party that begins from now on arrive."""
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason="no OpenTelemetry here")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    collector = memory.InMemorySpanExporter()
    monkeypatch.setenv(party_state.ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setattr(party_state, "_processor", lambda: export.SimpleSpanProcessor(collector))
    return collector
