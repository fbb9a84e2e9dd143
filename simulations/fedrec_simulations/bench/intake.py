"""How many reports a second does an aggregator take in? A real one over mutual TLS, from two client
processes.

Shape: MovieLens 1M's 3,706 items, one round of the default recipe at epsilon 5 (its width for 6,040
users), 143 ratings a user. All generated: only sizes matter here. Two ways of sending: batches of
256 users, as a site does, and one user a call, as phones would, there with four calls of a process
at once. Batches are packed before the clock starts; from the first call to the last receipt counts;
the aggregator's own processor time stands beside it, which a busy machine moves less. A report is
counted only if the round says so.

`large` is the other end: MovieLens 10M's 10,677 items, each a packed d x d matrix and a vector of d
(23 million numbers at d = 64), one report of 10,000 ratings, and the release fetched whole, each d
with an aggregator of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.factorization.default_ratings.settings import settings_for
from fedrec.federation.messages import BlockReports, Question, ReleaseSpec, Reports
from fedrec.federation.protocol import Opening, Phase
from fedrec.federation.report_batches import Batch, pack_reports
from fedrec.federation.reports import block
from fedrec.federation.wire import question_digest, question_header, unpack_release
from fedrec.operations.certificates import write_development_certificates
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint
from fedrec.transport.channel import Access
from fedrec_aggregator import main
from fedrec_aggregator.settings import AggregatorSettings, validated

CLIENTS = ("first", "second")
RUN = "intake"
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Shape:
    """Sizes of the benchmark; users are of each client, in one round each way of sending."""

    num_items: int = 3_706
    ratings: int = 143
    users_in_batches: int = 20_480
    users_alone: int = 4_096
    users_per_batch: int = 256
    calls_at_once: int = 4


@dataclass(frozen=True)
class LargeShape:
    """Sizes of the largest release and the largest report."""

    num_items: int = 10_677
    ratings: int = 10_000
    widths: tuple[int, ...] = (32, 64)


@dataclass(frozen=True)
class Sending:
    """What one client does in one round."""

    round: int
    users: int
    users_per_call: int
    calls_at_once: int


def run(*, quick: bool = False) -> dict[str, Any]:
    """Reports a second and sizes as a JSON-able dict.

    `quick` shrinks everything to a few seconds, for tests of the wiring."""
    shape = Shape(users_in_batches=512, users_alone=64) if quick else Shape()
    ways = {
        f"batches of {shape.users_per_batch}": Sending(
            0, shape.users_in_batches, shape.users_per_batch, 1
        ),
        "one user a call": Sending(1, shape.users_alone, 1, shape.calls_at_once),
    }
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as (access, pid):
        measured = {name: _measure(shape, sending, access, pid) for name, sending in ways.items()}
        most_mb = peak_mb(pid)
    digest = question_digest(question_header(_question(shape, 0), run=RUN, plan=_plan().digest()))
    return {
        "shape": {
            "items": shape.num_items,
            "ratings_per_user": shape.ratings,
            "width": _width(shape),
            "client_processes": len(CLIENTS),
        },
        "bytes_per_report": len(pack_reports(_batch(shape, np.arange(256), 0), digest)) / 256,
        "reports": {name: len(CLIENTS) * sending.users for name, sending in ways.items()},
        "reports_per_second": {name: rate for name, (rate, _) in measured.items()},
        "aggregator_cpu_us_per_report": {name: cpu_us for name, (_, cpu_us) in measured.items()},
        "aggregator_peak_mb": most_mb,
        "large": large(LargeShape(500, 400, (4, 8)) if quick else LargeShape()),
    }


def large(shape: LargeShape) -> dict[str, dict[str, float]]:
    """By width d: numbers and bytes of the release, seconds to report, to release and to fetch, the
    report's bytes, the peak memory."""
    return {f"d = {width}": _large(shape, width) for width in shape.widths}


def _large(shape: LargeShape, width: int) -> dict[str, float]:
    rows = shape.num_items
    blocks = (
        block("A", "outer", rows=rows, width=width),
        block("b", "linear", rows=rows, width=width),
    )
    question = Question(0, "items", {}, (ReleaseSpec("items/0", blocks),))
    header = question_header(question, run=RUN, plan=_plan().digest())
    packed = pack_reports(_one_report(shape, question), question_digest(header))
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), min_cohort=1) as (access, pid),
    ):
        with (
            RemoteReportEndpoint(access[CLIENTS[0]]) as client,
            RemoteReleaseEndpoint(access["server"]) as server,
        ):
            # the second never reports
            client.enroll([bytes(_names(np.arange(1))[0]), bytes(_names(np.arange(1, 2))[0])])
            server.open_run(RUN, _plan())
            server.open_round(Opening(RUN, 0, header, question_digest(header), 3_600.0))
            marks = [time.monotonic()]
            receipt = client.report(RUN, 0, packed)
            marks.append(time.monotonic())
            server.close(RUN, 0)
            status = server.status(RUN, 0, wait_s=600.0)
            marks.append(time.monotonic())
            content = server.release(RUN, 0)
            marks.append(time.monotonic())
        most_mb = peak_mb(pid)
    if (receipt.accepted, status.clipped) != (1, 0) or status.phase is not Phase.RELEASED:
        raise RuntimeError(
            f"the report was not counted ({receipt}) or the round not released ({status.phase})"
        )
    values = unpack_release(content, question.releases).values
    seconds = dict(
        zip(
            ("report_seconds", "release_seconds", "fetch_seconds"),
            np.diff(marks).tolist(),
            strict=True,
        )
    )
    sizes = {
        "numbers": sum(array.size for array in values.values()),
        "release_bytes": len(content),
        "report_bytes": len(packed),
    }
    return {**sizes, **seconds, "aggregator_peak_mb": most_mb}


def _one_report(shape: LargeShape, question: Question) -> Batch:
    """Of one user, about 0.4 of the radius: 10,000 equal coefficients of the grid, vectors of norm
    about 0.6."""
    rng, n = np.random.default_rng(0), shape.ratings
    items = np.sort(rng.choice(shape.num_items, n, replace=False)).astype(np.int32)
    vectors = (rng.integers(-128, 128, (1, spec.width), dtype=np.int32) for spec in question.blocks)
    user, blocks = (
        _names(np.arange(1)),
        tuple(BlockReports(np.full(n, 50, np.int32), vector) for vector in vectors),
    )
    return Batch(user, user, Reports(np.array([0, n], np.int64), items, blocks))


@contextmanager
def running(folder: Path, *, min_cohort: int = 100) -> Iterator[tuple[dict[str, Access], int]]:
    """A process that listens, and how each party reaches it."""
    write_development_certificates(folder, clients=CLIENTS)
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(_settings(folder, min_cohort), there), daemon=True)
    process.start()
    try:
        address = here.recv()
        names = {name: f"client-{name}" for name in CLIENTS} | {"server": "server"}
        yield (
            {name: _access(folder, address, file) for name, file in names.items()},
            process.pid or 0,
        )
    finally:
        process.terminate()
        process.join()


def _settings(folder: Path, min_cohort: int) -> AggregatorSettings:
    tls = {"certificate": "aggregator.pem", "key": "aggregator-key.pem", "client_ca": "ca.pem"}
    places = {"listen": "127.0.0.1:0", "state": "state", "log": "log.jsonl"}
    limits = {"min_cohort": min_cohort}
    return validated(
        {
            **places,
            "any_client": True,
            "tls": tls,
            "privacy": {"max_epsilon": "inf"},
            "limits": limits,
        },
        folder=folder,
    )


def _serve(settings: AggregatorSettings, there: Connection) -> None:
    main.run(settings, ready=lambda address: there.send(str(address)))


def _access(folder: Path, address: str, file: str) -> Access:
    return Access(
        address,
        ca=str(folder / "ca.pem"),
        certificate=str(folder / f"{file}.pem"),
        key=str(folder / f"{file}-key.pem"),
    )


def _measure(
    shape: Shape, sending: Sending, access: dict[str, Access], pid: int
) -> tuple[float, float]:
    """Reports a second of one round, all of them counted, and the aggregator's processor time for
    one in microseconds."""
    with RemoteReleaseEndpoint(access["server"]) as endpoint:
        endpoint.open_run(RUN, _plan())
        pipes = []
        for number, name in enumerate(CLIENTS):
            here, there = SPAWN.Pipe()
            SPAWN.Process(
                target=_send,
                args=(shape, sending, number * sending.users, access[name], there),
                daemon=True,
            ).start()
            pipes.append(here)
        enrolled = [pipe.recv() for pipe in pipes]
        header = question_header(_question(shape, sending.round), run=RUN, plan=_plan().digest())
        endpoint.open_round(Opening(RUN, sending.round, header, question_digest(header), 3_600.0))
        before_s = processor_s(pid)
        for pipe in pipes:
            pipe.send("go")
        spans = [pipe.recv() for pipe in pipes]
        cpu_s = processor_s(pid) - before_s
        counted = endpoint.status(RUN, sending.round).reported
    if counted != sum(enrolled):
        raise RuntimeError(f"{counted} of {sum(enrolled)} reports were counted")
    took_s = max(float(end) for _, end in spans) - min(float(start) for start, _ in spans)
    return counted / took_s, 1e6 * cpu_s / counted


def _send(
    shape: Shape, sending: Sending, first_user: int, access: Access, there: Connection
) -> None:
    """In a client's process: enrol, pack, wait for the word, send, and tell when that began and
    ended."""
    digest = question_digest(
        question_header(_question(shape, sending.round), run=RUN, plan=_plan().digest())
    )
    users = first_user + np.arange(sending.users) + 10**9 * sending.round
    parts = np.array_split(users, -(-sending.users // sending.users_per_call))
    batches = [pack_reports(_batch(shape, part, sending.round), digest) for part in parts]
    with (
        RemoteReportEndpoint(access) as endpoint,
        ThreadPoolExecutor(sending.calls_at_once) as calls,
    ):
        endpoint.enroll([bytes(token) for token in _names(users)])
        there.send(len(users))
        there.recv()
        start = time.monotonic()
        list(calls.map(lambda batch: endpoint.report(RUN, sending.round, batch), batches))
        there.send((start, time.monotonic()))


def _batch(shape: Shape, users: np.ndarray[Any, np.dtype[np.int64]], round: int) -> Batch:
    rng, n = np.random.default_rng(int(users[0])), len(users)
    items = np.concatenate(
        [np.sort(rng.choice(shape.num_items, shape.ratings, replace=False)) for _ in range(n)]
    ).astype(np.int32)
    spec = _question(shape, round).blocks[0]
    # 143 coefficients of this size times a vector of at most this length stay within the radius
    vectors = rng.integers(-4_000, 4_000, (n, spec.width), dtype=np.int32)
    coefficients = rng.integers(-1_000, 1_000, n * shape.ratings, dtype=np.int32)
    reports = Reports(
        np.arange(n + 1, dtype=np.int64) * shape.ratings,
        items,
        (BlockReports(coefficients, vectors),),
    )
    return Batch(_names(users + 5 * 10**9), _names(users), reports)


def _names(users: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(n, 16) distinct names."""
    return np.stack([users, users], axis=1).astype("<i8").view(np.uint8)


def _question(shape: Shape, round: int) -> Question:
    spec = block(f"items/{round}", "linear", rows=shape.num_items, width=_width(shape))
    return Question(round, "items", {}, (ReleaseSpec(f"items/{round}", (spec,)),))


def _width(shape: Shape) -> int:
    return (
        settings_for(Guarantee(5.0, 1e-5), users=6_040, items=shape.num_items, features=True).width
        + 1
    )


def _plan() -> Plan:
    return calibrate(Guarantee(5.0, 1e-5), {"items/0": 1.0, "items/1": 1.0})


def processor_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    """The most memory that a process held at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
