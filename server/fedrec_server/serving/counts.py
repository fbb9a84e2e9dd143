"""Counts for Prometheus: requests, times, batches, versions.

Never a coefficient, an item, an address."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fedrec.operations.addresses import Address
from fedrec.operations.metrics import Endpoint, served
from fedrec.operations.party_state import Doing, PartyState
from fedrec_server.serving.refusals import Code

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_TOGETHER = (1, 2, 4, 8, 16, 32, 64, 128)


class ServingCounts:
    """One registry; `protocol` is grpc or http."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        info = Gauge(
            "fedrec_info",
            "Which party this is, and its version",
            ["party", "version"],
            registry=self.registry,
        )
        info.labels("serving", version).set(1)
        seconds = Histogram(
            "fedrec_query_seconds",
            "From a query's arrival to its answer",
            ["protocol"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._seconds = {protocol: seconds.labels(protocol) for protocol in ("grpc", "http")}
        self._refused = Counter(
            "fedrec_requests_refused",
            "Requests turned away, by code",
            ["reason"],
            registry=self.registry,
        )
        self._batch = Histogram(
            "fedrec_batch_queries",
            "Queries ranked together",
            buckets=_TOGETHER,
            registry=self.registry,
        )
        self._bytes = Counter(
            "fedrec_bundle_bytes", "Bytes of bundles sent", registry=self.registry
        )
        self._versions = Gauge(
            "fedrec_model_versions", "Versions that answer", registry=self.registry
        )
        self._swaps = Counter(
            "fedrec_model_swaps", "Bundles loaded", ["result"], registry=self.registry
        )
        self.state = PartyState(self.registry, party="serving")
        self._refused.labels(Code.BUSY)
        for result in ("loaded", "failed"):
            self._swaps.labels(result)

    def answered(self, protocol: str, took_s: float) -> None:
        """One query."""
        self._seconds[protocol].observe(took_s)
        self.state.spans.answer(protocol, took_s)

    def refused(self, code: str) -> None:
        """One request turned away."""
        self._refused.labels(code).inc()

    def batch(self, size: int) -> None:
        """Queries that were ranked together."""
        self._batch.observe(size)

    def sent(self, size: int) -> None:
        """A part of a bundle."""
        self._bytes.inc(size)

    def swapped(self, result: str, versions: int) -> None:
        """A bundle was loaded, or could not be; how many versions answer now."""
        self._swaps.labels(result).inc()
        self._versions.set(versions)
        if result == "loaded":
            self.state.succeeded()
            self.state.doing(Doing.SERVING)

    def served(self, address: Address) -> Endpoint:
        """Answer GET /metrics there. Raises SettingsError."""
        return served(self.registry, address.host, address.port)
