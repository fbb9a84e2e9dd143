"""Traces of answers: how long each took, and nothing of who asked what."""

from typing import Any

import pytest

from tests.operations.spans import collected

NUMBERS = [11.25, 0.0, -13.75, 0.5, 0.0, 2.0]


def test_an_answer_is_a_span_without_coefficients_items_or_addresses(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = collected(monkeypatch)
    running = start()
    running.recommend(running.told.newest, NUMBERS)
    query = {"version": running.told.newest, "coefficients": NUMBERS, "k": 2}
    assert running.post(query).status_code == 200
    assert running.post(query | {"k": 0}).status_code == 422
    spans = collector.get_finished_spans()
    assert [dict(span.attributes) for span in spans] == [
        {"network.protocol.name": protocol} for protocol in ("grpc", "http")
    ]
    assert {span.name for span in spans} == {"serving answer"}
    assert len({span.context.trace_id for span in spans}) == len(spans)
    for span in spans:
        assert span.end_time >= span.start_time
        for told in ("11.25", "13.75", "127.0.0.1", running.told.newest):
            assert told not in span.to_json()
