"""Numbers for Prometheus: one registry per process, with the same names in every party.

Counts, sizes, times and budgets only, labelled by codes and never by user, sender or item: a scrape
shows no more than the server may know (docs/privacy.md, who sees what).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec.operations.party_state import LateGauge, PartyState

ALERTED = ("budget", "busy", "forbidden", "not-enrolled", "stale-ledger", "wrong-certificate")
"""Codes of refusals that alert rules watch: exported as 0 from the start, or the first one would be
no increase."""
# from a test's rounds to an hour
_ROUND_BUCKETS_S = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
OUTCOMES: Mapping[str, Sequence[str]] = {"client": ("answered", "refused"), "serving": ()}
"""How a round may end, by party; of server and aggregator: released, short, failed."""


class Metrics:
    """What one party counts; `party` is a constant label of its information metric."""

    def __init__(self, party: str, version: str) -> None:
        self.registry = CollectorRegistry()
        info = Gauge(
            "fedrec_info",
            "Which party this is, and its version",
            ["party", "version"],
            registry=self.registry,
        )
        info.labels(party, version).set(1)
        self._reports = Counter(
            "fedrec_reports",
            "Reports of users, accepted or rejected",
            ["result"],
            registry=self.registry,
        )
        self._rejected = Counter(
            "fedrec_reports_rejected",
            "Reports turned away, by refusal code",
            ["reason"],
            registry=self.registry,
        )
        self._refused = Counter(
            "fedrec_requests_refused",
            "Requests turned away, by refusal code",
            ["reason"],
            registry=self.registry,
        )
        self._bytes = Counter(
            "fedrec_bytes", "Bytes of reports and releases", ["direction"], registry=self.registry
        )
        self._rounds = Counter(
            "fedrec_rounds", "Rounds decided, by how", ["phase"], registry=self.registry
        )
        self._seconds = Histogram(
            "fedrec_round_seconds",
            "From a round's opening to its end",
            buckets=_ROUND_BUCKETS_S,
            registry=self.registry,
        )
        # exported where they are known, and only there
        self._spent = LateGauge(
            self.registry, "fedrec_budget_epsilon_spent", "Epsilon of everything charged so far"
        )
        self._left = LateGauge(
            self.registry,
            "fedrec_budget_epsilon_left",
            "Epsilon of the largest run that the limit still allows; +Inf without a limit",
        )
        self._unknown = LateGauge(
            self.registry, "fedrec_events_unknown", "Events of items that the catalogue lacks"
        )
        self._events = LateGauge(self.registry, "fedrec_events", "Events of this site, all")
        self._quality = LateGauge(
            self.registry, "fedrec_model_quality", "What people said of the newest model", "part"
        )
        self.state = PartyState(self.registry, party=party)
        for phase in OUTCOMES.get(party, ("released", "short", "failed")):
            self._rounds.labels(phase)
        for result in ("accepted", "rejected"):
            self._reports.labels(result)
        for reason in ALERTED:
            self._refused.labels(reason)
            self._rejected.labels(reason)
        for direction in ("in", "out"):
            self._bytes.labels(direction)

    def reports(self, *, accepted: int, rejected: Mapping[str, int]) -> None:
        """What became of a batch."""
        self._reports.labels("accepted").inc(accepted)
        self._reports.labels("rejected").inc(sum(rejected.values()))
        for reason, count in rejected.items():
            self._rejected.labels(reason).inc(count)

    def refused(self, reason: str) -> None:
        """One request turned away whole."""
        self._refused.labels(reason).inc()

    def moved(self, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Bytes of reports and releases that passed."""
        self._bytes.labels("in").inc(bytes_in)
        self._bytes.labels("out").inc(bytes_out)

    def decided(self, phase: str, *, took_s: float | None = None) -> None:
        """One round, or one attempt at it, came to its end; one of `OUTCOMES`.

        A success is noted."""
        self._rounds.labels(phase).inc()
        if took_s is not None:
            self._seconds.observe(took_s)
        if phase in {"released", "answered"}:
            self.state.succeeded()

    def budget(self, *, spent: float, left: float) -> None:
        """Epsilon, as the party's ledger states it."""
        self._spent().set(spent)
        self._left().set(left)

    def items(self, unknown: int, events: int) -> None:
        """Events of the newest run that its catalogue did not name, and all."""
        self._unknown().set(unknown)
        self._events().set(events)

    def evaluated(self, said: Mapping[str, float]) -> None:
        """Parts of what people said of the newest model: its value, the ends of its interval,
        everybody's, how many they are, and how far its interval is behind the first version's."""
        for part, value in said.items():
            self._quality(part).set(value)

    def serve(self, host: str, port: int) -> Endpoint:
        """`served` of this party's registry."""
        return served(self.registry, host, port)


@dataclass(frozen=True)
class Endpoint:
    """Metrics being served; a context that ends the serving."""

    host: str
    port: int
    _server: Any
    _thread: Any

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(self.host, self.port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def served(registry: CollectorRegistry, host: str, port: int) -> Endpoint:
    """Answer GET /metrics on an address, port 0 for any.

    Raises SettingsError where it cannot be had."""
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as failure:
        raise SettingsError(
            f"metrics on {host}:{port}: {failure.strerror or failure}",
            "Name a free address, or port 0.",
        ) from None
    return Endpoint(host, server.server_port, server, thread)
