"""What does it cost to enrol one user more where a million are enrolled? A real ledger on disk, and
a real aggregator over mutual TLS.

The ledger is filled, closed and opened again in a process of its own: seconds to start, and memory
a user. Then users enrol one and a hundred a call. An enrolment is durable when it is answered, and
making it so costs more than all else: calls are timed as they are, and again on a ledger that does
not sync. Times are of the calling thread, processor time with the system's part; through the
service it is the aggregator's whole processor time, syncs, TLS and gRPC included, divided by calls.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.randomness import SystemStreams
from fedrec.transport.aggregator_client import RemoteReportEndpoint
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.limits import Limits
from fedrec_simulations.bench import intake
from fedrec_simulations.experiments.rows import table

TOKENS_A_CALL = (1, 100)
_ENROLLED, _NEW = 2**33, 2**34
"""First words of users that are enrolled before, and of those that come: no user is of both."""


def run(*, quick: bool = False) -> dict[str, Any]:
    """Seconds, bytes and microseconds as a JSON-able dict.

    `quick` takes 10,000 users, for tests of the wiring."""
    users, calls = (10_000, 20) if quick else (1_000_000, 500)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        filled_s = _filled(state, users)
        with ProcessPoolExecutor(1, intake.SPAWN) as process:
            ledger = process.submit(_ledger, state, calls).result()
        with (
            intake.running(Path(folder)) as (access, pid),
            RemoteReportEndpoint(access[intake.CLIENTS[0]]) as endpoint,
        ):
            endpoint.enroll(_tokens(3 * _NEW, 1))
            before_s = intake.processor_s(pid)
            for call in range(calls):
                endpoint.enroll(_tokens(3 * _NEW + 1 + call, 1))
            service_us = 1e6 * (intake.processor_s(pid) - before_s) / calls
    return {
        "users": users,
        "calls": calls,
        "fill_seconds": filled_s,
        **ledger,
        "service_cpu_us_per_call": service_us,
    }


def _filled(state: Path, users: int) -> float:
    """Enrol them by messages of 10,000, as clients do, of ten senders; seconds."""
    started, ledger = time.perf_counter(), ReleaseLedger(state, limit=None)
    core = Aggregator(ledger, Limits(max_users_per_sender=users), noise=SystemStreams())
    for piece, start in enumerate(range(0, users, 10_000)):
        core.enroll(f"site-{piece % 10}", _tokens(_ENROLLED + start, min(10_000, users - start)))
    ledger.close()
    return time.perf_counter() - started


def _ledger(state: Path, calls: int) -> dict[str, Any]:
    """In a process of its own: start-up, memory, and calls of a core."""
    before_bytes, started = _resident_bytes(), time.perf_counter()
    ledger = ReleaseLedger(state, limit=None)
    start_s, held = time.perf_counter() - started, _resident_bytes() - before_bytes
    core = Aggregator(ledger, Limits(max_users_per_sender=10**6), noise=SystemStreams())
    bytes_per_user = held / core.enrolled()
    new = {f"{size} new": size for size in TOKENS_A_CALL}
    durable = {words: _timed(core, _calls(size * _NEW, size, calls)) for words, size in new.items()}
    known = _timed(core, _calls(_NEW, 1, calls))
    ledger._db.execute("PRAGMA synchronous = OFF")  # for the measurement alone
    unsynced = {
        words: _timed(core, _calls(size * _NEW + 2**32, size, calls)) for words, size in new.items()
    }
    rows = {words: {"durable": durable[words], "without_sync": unsynced[words]} for words in new}
    ledger.close()
    return {
        "start_seconds": start_s,
        "bytes_per_user": bytes_per_user,
        "per_call": rows | {"1 enrolled already": {"durable": known}},
    }


def _calls(first: int, size: int, calls: int) -> list[list[bytes]]:
    return [_tokens(first + call * size, size) for call in range(calls)]


def _timed(core: Aggregator, calls: Sequence[Sequence[bytes]]) -> dict[str, float]:
    """Medians in microseconds, so that what else the machine does for a moment does not count."""
    spent = []
    for tokens in calls:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        core.enroll("phone", tokens)
        spent.append((time.thread_time() - cpu_s, time.perf_counter() - wall_s))
    cpu_us, wall_us = 1e6 * np.median(spent, axis=0)
    return {"cpu_us": float(cpu_us), "wall_us": float(wall_us)}


def _tokens(first: int, count: int) -> list[bytes]:
    """Distinct pseudonyms spread over the index, as a hash's are."""
    words = np.arange(first, first + count, dtype=np.uint64)
    mixed = words * np.uint64(0x9E3779B97F4A7C15)
    return [row.tobytes() for row in np.stack([mixed, words], axis=1)]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def markdown(result: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    lines = []
    for words, row in result["per_call"].items():
        durable, unsynced = row["durable"], row.get("without_sync", row["durable"])
        lines.append(
            [
                words,
                *(
                    f"{value:,.0f}"
                    for value in (unsynced["cpu_us"], durable["cpu_us"], durable["wall_us"])
                ),
            ]
        )
    lines.append(
        ["1 new, through the service", "–", f"{result['service_cpu_us_per_call']:,.0f}", "–"]
    )
    head = (
        f"users a call, {result['users']:,} enrolled",
        "processor without sync, µs",
        "processor, µs",
        "wall, µs",
    )
    filled = f"All were enrolled in {result['fill_seconds']:.0f} s by messages of 10,000."
    opened = (
        f"The ledger opens in {result['start_seconds']:.1f} s and holds "
        f"{result['bytes_per_user']:.0f} bytes a user."
    )
    return f"{table(head, lines)}\n\n{filled} {opened}"
