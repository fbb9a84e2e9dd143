"""Numbers for Prometheus: one registry per process, with the same names in every party, and gauges
of the machine under a party, which are read at each scrape.

Counts, sizes, times and budgets only, labelled by codes and never by user, sender or item: a scrape
shows no more than the server may know (DESIGN.md, who sees what).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address
from fedrec.operations.party_state import LateGauge, PartyState

ALERTED = ("budget", "busy", "forbidden", "not-enrolled", "stale-ledger", "wrong-certificate")
"""Codes of refusals that alert rules watch: exported as 0 from the start, or the first one would be
no increase."""
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
        self._jumps = Counter(
            "fedrec_clock_jumps",
            "Times that the clock was set by more than an hour",
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

    def clock_jumped(self) -> None:
        """The machine's clock was set."""
        self._jumps.inc()

    def budget(self, *, spent: float, left: float) -> None:
        """Epsilon, as the party's ledger states it."""
        self._spent().set(spent)
        self._left().set(left)

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


_STATM = Path("/proc/self/statm")
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def watch_machine(
    registry: CollectorRegistry, *, state: Path | None, certificates: Iterable[Path | str]
) -> None:
    """Export gauges of the disk under `state`, of this process's memory and of the certificate
    among `certificates` that expires first; empty paths are left out.

    What cannot be read is not exported."""
    registry.register(_Machine(state, [Path(path) for path in certificates if str(path)]))


class _Machine(Collector):
    def __init__(self, state: Path | None, certificates: Iterable[Path]) -> None:
        self._state = state
        self._certificates = sorted(set(certificates))

    def collect(self) -> Iterator[Metric]:
        for name, words, read in (
            ("fedrec_disk_free_bytes", "Free space under the state folder", self._free),
            ("fedrec_memory_bytes", "Resident memory of this process", _resident),
            ("fedrec_memory_limit_bytes", "Memory that the control group allows", _allowed),
            (
                "fedrec_certificate_expires_timestamp_seconds",
                "Unix time at which the first of this party's certificates expires",
                self._expires,
            ),
        ):
            with suppress(OSError, ValueError):
                if (value := read()) is not None:
                    yield GaugeMetricFamily(name, words, value)

    def _free(self) -> float | None:
        if self._state is None:
            return None
        there = next(p for p in (self._state, *self._state.absolute().parents) if p.exists())
        return float(shutil.disk_usage(there).free)

    def _expires(self) -> float | None:
        """A file that cannot be read counts as expired now."""
        times = [_first_end(path) for path in self._certificates]
        return min(times) if times else None


def _first_end(path: Path) -> float:
    try:
        chain = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return time.time()
    return min(each.not_valid_after_utc.timestamp() for each in chain)


def _resident() -> float | None:
    if not _STATM.exists():
        return None
    return float(int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))


def _allowed() -> float | None:
    """The limit in bytes of a control group of version 2: of a unit of systemd or a container."""
    own = _CGROUP.read_text().splitlines()[-1].removeprefix("0::/")
    said = (_CGROUPS / own / "memory.max").read_text().strip()
    return None if said == "max" else float(said)


_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
"""Of glibc's malloc.h."""
_LARGE_BYTES = 2**20
_ARENAS = 2


def keep_little() -> None:
    """Makes this process keep little freed memory; where the C library is not glibc, nothing
    happens.

    Large blocks go back to the system as soon as they are freed: models that were replaced, scores
    of a batch, a message that was answered. glibc raises the size from which it does so to the
    largest block that was freed, up to 32 MiB, and keeps what is smaller, for every thread that
    held some: after a few swaps and batches a server held 20 MB and several models more than it
    used.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_ARENA_MAX, _ARENAS)
