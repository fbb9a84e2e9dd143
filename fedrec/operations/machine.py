"""Gauges of the machine under a party, read at each scrape; a bound on freed memory it keeps."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fedrec.operations import logs
from fedrec.operations.clock import ClockJump, Clocks

_STATM = Path("/proc/self/statm")
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
"""Of glibc's malloc.h."""
_LARGE_BYTES = 2**20
_ARENAS = 2
"""Blocks of 1 MB or more go back when they are freed; two arenas are enough, as threads that hold
much are few. See `keep_little`."""


def watch_machine(
    registry: CollectorRegistry, *, state: Path | None, certificates: Iterable[Path | str]
) -> None:
    """Export gauges of the disk under `state`, of this process's memory and of the certificate
    among `certificates` that expires first; empty paths are left out.

    What cannot be read is not exported."""
    registry.register(_Machine(state, [Path(path) for path in certificates if str(path)]))


class ClockWatch:
    """Jumps of this machine's clock by over an hour. One refuses nothing: it is counted and logged,
    and a party that has a ledger writes it there."""

    def __init__(self, registry: CollectorRegistry, log: logging.Logger) -> None:
        self._log = log
        self._clocks = Clocks()
        self._jumps = Counter(
            "fedrec_clock_jumps",
            "Times that the clock was set by more than an hour",
            registry=registry,
        )

    def look(self) -> ClockJump | None:
        """What happened since the last look, told."""
        if (jump := self._clocks.jump()) is not None:
            self.tell(jump)
        return jump

    def tell(self, jump: ClockJump) -> None:
        """Count and log one that another found, as a ledger whose last entry is of later."""
        self._jumps.inc()
        wait_s = jump.expected_s - jump.now_s
        logs.say(self._log, "clock-set", level=logging.WARNING, wait_s=wait_s)


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
