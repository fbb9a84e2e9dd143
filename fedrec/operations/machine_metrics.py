"""Metrics of the machine under a party, read at each scrape: free disk, memory, and when its
certificates expire."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

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
    """Of control groups of version 2: of a unit of systemd, or of a container."""
    own = _CGROUP.read_text().splitlines()[-1].removeprefix("0::/")
    said = (_CGROUPS / own / "memory.max").read_text().strip()
    return None if said == "max" else float(said)
