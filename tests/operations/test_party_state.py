"""Gauges of what a party does: closed sets of labels, and nothing that nobody set."""

from prometheus_client import CollectorRegistry, generate_latest

from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing, PartyState


def shown(registry: CollectorRegistry) -> list[str]:
    return [
        line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")
    ]


def test_what_nobody_set_is_not_exported() -> None:
    text = "\n".join(shown(Metrics("server", "1").registry))
    for name in (
        "fedrec_budget",
        "users_enrolled",
        "fedrec_quorum",
        "last_success",
        "fedrec_clients",
        "fedrec_round ",
    ):
        assert name not in text
    assert 'fedrec_rounds_total{phase="short"} 0.0' in text


def test_exactly_one_phase_and_one_reason_is_one() -> None:
    registry = CollectorRegistry()
    time_s = [100.0]
    state = PartyState(registry, clock=lambda: time_s[0])
    assert "fedrec_start_time_seconds 100.0" in shown(registry)
    for now_s, phase, reason in (
        (200.0, Doing.GATHERING, Awaited.CLIENTS),
        (300.0, Doing.COLLECTING, Awaited.REPORTS),
    ):
        time_s[0] = now_s
        state.doing(phase)
        assert state.waiting(reason)
        time_s[0] += 50
        assert not state.waiting(reason)  # since when it waits does not change
        lines = shown(registry)
        assert [
            line for line in lines if line.startswith("fedrec_phase") and line.endswith(" 1.0")
        ] == [f'fedrec_phase{{phase="{phase}"}} 1.0']
        assert [
            line for line in lines if line.startswith("fedrec_waiting{") and line.endswith(" 1.0")
        ] == [f'fedrec_waiting{{reason="{reason}"}} 1.0']
        assert f"fedrec_waiting_since_timestamp_seconds {now_s}" in lines


def test_a_success_is_noted_when_a_round_is_released_or_answered_and_only_then() -> None:
    for party, success, others in (
        ("server", "released", ("short", "failed")),
        ("client", "answered", ("refused",)),
    ):
        metrics = Metrics(party, "1")
        for phase in others:
            metrics.decided(phase)
        assert not any("last_success" in line for line in shown(metrics.registry))
        metrics.decided(success, took_s=1.0)
        assert any(
            line.startswith("fedrec_last_success_timestamp_seconds ")
            for line in shown(metrics.registry)
        )
