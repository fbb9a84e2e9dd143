"""Enrolment.

The cost of enrolling more users where a million are enrolled: a real ledger on disk, and a real
aggregator over mutual TLS. The ledger is filled, closed and opened again in a process of its own:
seconds to start, and memory a user. Then users enrol one and a hundred a call. An enrolment is
durable when it is answered, and making it so costs more than all else: calls are timed as they are,
and again on a ledger that does not sync. Medians over calls, of the calling thread, processor time
with the system's part; through the service it is the aggregator's whole processor time, syncs, TLS
and gRPC included, divided by calls.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.measuring import memory_mb, processor_s
from benchmarks.parties import CLIENTS, SPAWN, aggregator
from benchmarks.results import Row, Tables
from fedrec.randomness import SystemStreams
from fedrec.transport.aggregator_client import RemoteReportEndpoint
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.opening_checks import Limits

_ENROLLED = 2**33
_NEW = 2**34
_SERVED = 2**36
"""First words of users that are enrolled before, of those that come, and of those that come through
the service: no user is of two."""


def run(*, quick: bool) -> Tables:
    """Rows of calls, and of the ledger."""
    users, calls = (10_000, 20) if quick else (1_000_000, 500)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state-aggregator"
        filled_s = _filled(state, users)
        with ProcessPoolExecutor(1, SPAWN) as process:
            ledger, rows = process.submit(_measured, state, calls).result()
        with (
            aggregator(Path(folder)) as (ways, pid),
            RemoteReportEndpoint(ways[CLIENTS[0]]) as endpoint,
        ):
            endpoint.enroll(_tokens(_SERVED, 1))
            before_s = processor_s(pid)
            for call in range(1, calls + 1):
                endpoint.enroll(_tokens(_SERVED + call, 1))
            served_us = 1e6 * (processor_s(pid) - before_s) / calls
    rows.append(_row("1 new, through the service", (served_us, None), (None, None)))
    return {
        "The ledger": [{"users": users, "s_to_fill": filled_s, **ledger}],
        f"Calls where {users:,} are enrolled": rows,
    }


def _filled(state: Path, users: int) -> float:
    """Enrol them by messages of 10,000, as clients do, of ten senders; seconds."""
    started = time.perf_counter()
    ledger = ReleaseLedger(state, limit=None)
    core = Aggregator(ledger, Limits(max_users_per_sender=users), noise=SystemStreams())
    for piece, start in enumerate(range(0, users, 10_000)):
        core.enroll(f"site-{piece % 10}", _tokens(_ENROLLED + start, min(10_000, users - start)))
    ledger.close()
    return time.perf_counter() - started


def _measured(state: Path, calls: int) -> tuple[Row, list[Row]]:
    """In a process of its own: start-up and memory, and calls of a core."""
    before_mb = memory_mb()
    started = time.perf_counter()
    ledger = ReleaseLedger(state, limit=None)
    opened: Row = {"s_to_open": time.perf_counter() - started}
    held = 2**20 * (memory_mb() - before_mb)
    core = Aggregator(ledger, Limits(max_users_per_sender=10**6), noise=SystemStreams())
    opened["bytes_a_user"] = held / core.enrolled()
    durable = {size: _timed(core, size * _NEW, size, calls) for size in (1, 100)}
    known = _timed(core, _NEW, 1, calls)
    ledger._db.execute("PRAGMA synchronous = OFF")  # for the measurement alone
    quick = {size: _timed(core, size * _NEW + 2**32, size, calls) for size in durable}
    ledger.close()
    rows = [_row(f"{size} new", durable[size], quick[size]) for size in durable]
    return opened, [*rows, _row("1 enrolled already", known, (None, None))]


def _row(call: str, durable: Sequence[float | None], quick: Sequence[float | None]) -> Row:
    return {
        "users_a_call": call,
        "processor_µs": durable[0],
        "wall_µs": durable[1],
        "processor_µs_without_sync": quick[0],
        "wall_µs_without_sync": quick[1],
    }


def _timed(core: Aggregator, first: int, size: int, calls: int) -> tuple[float, float]:
    """Medians of processor and wall microseconds, so that what else the machine does for a moment
    does not count."""
    spent = []
    for call in range(calls):
        tokens = _tokens(first + call * size, size)
        wall_s = time.perf_counter()
        cpu_s = time.thread_time()
        core.enroll("phone", tokens)
        spent.append((time.thread_time() - cpu_s, time.perf_counter() - wall_s))
    cpu_us, wall_us = 1e6 * np.median(spent, axis=0)
    return float(cpu_us), float(wall_us)


def _tokens(first: int, count: int) -> list[bytes]:
    """Distinct pseudonyms spread over the index, as a hash's are."""
    words = np.arange(first, first + count, dtype=np.uint64)
    mixed = words * np.uint64(0x9E3779B97F4A7C15)
    return [row.tobytes() for row in np.stack([mixed, words], axis=1)]
