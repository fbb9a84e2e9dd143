"""The aggregator's intake.

Reports a second that a real aggregator takes in over mutual TLS from two client processes. Shape of
MovieLens 1M's 3,706 items, one round of the default recipe at epsilon 5, 143 ratings a user, all
generated. Two ways of sending: batches of 256 users, as a site does, and one user a call, as phones
would, there with four calls of a process at once. Batches are packed before the clock starts; from
the first call to the last receipt counts, and only reports that the round says it has; the
aggregator's own processor time stands beside it, which a busy machine moves less.

The other end is MovieLens 10M's 10,677 items, each a packed d x d matrix and a vector of d: one
report of 10,000 ratings, and the release fetched whole, each d with an aggregator of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import memory_mb, processor_s
from benchmarks.parties import CLIENTS, Asked, Span, aggregator, length_s, names, said, started
from benchmarks.results import Row, Tables
from fedrec.factorization.default_ratings.settings import settings_for
from fedrec.federation.messages import BlockReports, Question, ReleaseSpec, Reports
from fedrec.federation.protocol import Phase
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.reports import block
from fedrec.federation.wire import unpack_release
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint
from fedrec.transport.channel import Access

RUN = "intake"
Sending = tuple[int, int, int, int]
"""What one client does: in which round, users, users a call, calls at once."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the benchmark; users are of each client, in one round each way of sending."""

    num_items: int = 3_706
    ratings: int = 143
    users_in_batches: int = 20_480
    users_alone: int = 4_096
    users_per_batch: int = 256


def run(*, quick: bool) -> Tables:
    """Rows by way of sending, then by width of the largest release."""
    shape = Shape(users_in_batches=512, users_alone=64) if quick else Shape()
    items, ratings, widths = (500, 400, (4, 8)) if quick else (10_677, 10_000, (32, 64))
    ways = {
        f"batches of {shape.users_per_batch}": (
            0,
            shape.users_in_batches,
            shape.users_per_batch,
            1,
        ),
        "one user a call": (1, shape.users_alone, 1, 4),
    }
    with tempfile.TemporaryDirectory() as folder, aggregator(Path(folder)) as (ways_in, pid):
        rows = [
            {"two_clients_send": name, **_measured(shape, sending, ways_in, pid)}
            for name, sending in ways.items()
        ]
    return {"Reports": rows, "The largest": [_largest(items, ratings, width) for width in widths]}


def _largest(items: int, ratings: int, width: int) -> Row:
    sizes = {"rows": items, "width": width}
    blocks = block("A", "outer", **sizes), block("b", "linear", **sizes)
    asked = Asked(RUN, Question(0, "items", {}, (ReleaseSpec("items/0", blocks),)), plan())
    opening = asked.opening
    packed = pack_reports(_one_report(items, ratings, asked.question), opening.digest)
    with (
        tempfile.TemporaryDirectory() as folder,
        aggregator(Path(folder), min_cohort=1) as (ways_in, pid),
        RemoteReportEndpoint(ways_in[CLIENTS[0]]) as client,
        RemoteReleaseEndpoint(ways_in["server"]) as server,
    ):
        # the second never reports
        client.enroll([bytes(token) for token in names(np.arange(2))])
        server.open_run(RUN, plan())
        server.open_round(opening)
        marks = [time.monotonic()]
        receipt = client.report(RUN, 0, packed)
        marks.append(time.monotonic())
        server.close(RUN, 0)
        status = server.status(RUN, 0, wait_s=600.0)
        marks.append(time.monotonic())
        content = server.release(RUN, 0)
        marks.append(time.monotonic())
        most_mb = memory_mb(pid, peak=True)
    if (receipt.accepted, status.clipped) != (1, 0) or status.phase is not Phase.RELEASED:
        raise RuntimeError(
            f"the report was not counted ({receipt}) or the round not released ({status.phase})"
        )
    values = unpack_release(content, asked.question.releases).values
    seconds = np.diff(marks).tolist()
    return {
        "d": width,
        "numbers_released": sum(array.size for array in values.values()),
        "release_bytes": len(content),
        "report_bytes": len(packed),
        **dict(zip(("report_s", "release_s", "fetch_s"), seconds, strict=True)),
        "aggregator_peak_mb": most_mb,
    }


def _one_report(num_items: int, n: int, question: Question) -> Batch:
    """Return the report of one user, about 0.4 of the radius: 10,000 equal coefficients of the
    grid, vectors of norm about 0.6."""
    rng = np.random.default_rng(0)
    items = np.sort(rng.choice(num_items, n, replace=False)).astype(np.int32)
    vectors = (rng.integers(-128, 128, (1, spec.width), dtype=np.int32) for spec in question.blocks)
    blocks = tuple(BlockReports(np.full(n, 50, np.int32), vector) for vector in vectors)
    user = names(np.arange(1))
    return Batch(user, user, Reports(np.array([0, n], np.int64), items, blocks))


def _measured(shape: Shape, sending: Sending, ways: Mapping[str, Access], pid: int) -> Row:
    """One round, all reports of it counted."""
    round, users, _, _ = sending
    with RemoteReleaseEndpoint(ways["server"]) as endpoint:
        endpoint.open_run(RUN, plan())
        pipes = [
            started(_send, shape, sending, number * users, ways[name])[1]
            for number, name in enumerate(CLIENTS)
        ]
        size = max(pipe.recv() for pipe in pipes)
        endpoint.open_round(asked_for(shape, round).opening)
        before_s = processor_s(pid)
        spans = said(pipes, "go")
        cpu_s = processor_s(pid) - before_s
        counted = endpoint.status(RUN, round).reported
    if counted != len(CLIENTS) * users:
        raise RuntimeError(f"{counted} of {len(CLIENTS) * users} reports were counted")
    return {
        "reports": counted,
        "bytes_a_report": size,
        "reports_a_second": counted / length_s(spans),
        "aggregator_µs_a_report": 1e6 * cpu_s / counted,
        "aggregator_peak_mb": memory_mb(pid, peak=True),
    }


def _send(shape: Shape, sending: Sending, first_user: int, way: Access, there: Connection) -> None:
    """In a client's process: enrol, pack and tell the bytes of a report, wait for the word, send,
    and tell when that began and ended."""
    round, count, a_call, at_once = sending
    digest = asked_for(shape, round).opening.digest
    users = first_user + np.arange(count) + 10**9 * round
    parts = np.array_split(users, -(-count // a_call))
    batches = [pack_reports(batch_of(shape, part, round), digest) for part in parts]
    with RemoteReportEndpoint(way) as endpoint, ThreadPoolExecutor(at_once) as calls:
        endpoint.enroll([bytes(token) for token in names(users)])
        there.send(len(batches[0]) / len(parts[0]))
        there.recv()
        span = Span(time.monotonic(), len(users))
        list(calls.map(lambda batch: endpoint.report(RUN, round, batch), batches))
        there.send(span.over())


def batch_of(shape: Shape, users: npt.NDArray[np.int64], round: int) -> Batch:
    """Reports of these users, within the radius."""
    rng = np.random.default_rng(int(users[0]))
    n = len(users)
    drawn = [np.sort(rng.choice(shape.num_items, shape.ratings, replace=False)) for _ in range(n)]
    width = asked_for(shape, round).question.blocks[0].width
    # 143 coefficients of this size times a vector of at most this length stay within it
    vectors = rng.integers(-4_000, 4_000, (n, width), dtype=np.int32)
    coefficients = rng.integers(-1_000, 1_000, n * shape.ratings, dtype=np.int32)
    ptr = np.arange(n + 1, dtype=np.int64) * shape.ratings
    items = np.concatenate(drawn).astype(np.int32)
    reports = Reports(ptr, items, (BlockReports(coefficients, vectors),))
    return Batch(names(users + 5 * 10**9), names(users), reports)


def asked_for(shape: Shape, round: int) -> Asked:
    """A step of the default recipe."""
    settings = settings_for(Guarantee(5.0, 1e-5), users=6_040, items=shape.num_items, features=True)
    name = f"items/{round}"
    spec = block(name, "linear", rows=shape.num_items, width=settings.width + 1)
    return Asked(RUN, Question(round, "items", {}, (ReleaseSpec(name, (spec,)),)), plan())


def plan() -> Plan:
    """Return the plan of two rounds."""
    return calibrate(Guarantee(5.0, 1e-5), {"items/0": 1.0, "items/1": 1.0})
