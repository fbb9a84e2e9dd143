"""Shares among three aggregators.

Bytes and processor time that they cost a user and each of them, by stage, in one process: synthetic
users of 150 items, rows of a step. `checked`: clients may be hostile, and one aggregator checks a
row with its neighbour, at epsilon 5 in seven such steps. Processor time is that of the process,
with one thread, least of three: compare stages with each other, not with another machine.

Users a second that three real aggregators take in and sum, over mutual TLS, from two client
processes: one step of the default recipe at MovieLens 1M's 3,883 items. Shares are made before the
clock starts, under the ticket of the round; from the first call to the last receipt counts as
intake, from the closing of the round to the release as summing. Users are counted only if all three
hold them and the round is released. Rows are zero: shares are uniform numbers whatever they hide.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks import parties
from benchmarks.measuring import fastest, memory_mb, processor_s
from benchmarks.parties import CLIENTS, Asked, Span, length_s, listening, names, said, started
from benchmarks.results import Row, Tables
from fedrec.arrays import Int64s
from fedrec.federation.hostile_clients import on_checked_grid, opening_mu
from fedrec.federation.messages import Question, ReleaseSpec, Reports
from fedrec.federation.protocol import Phase
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.federation.wire import report_digest
from fedrec.operations.certificates import PLACES, write_development_certificates
from fedrec.operations.pins import read_pins, write_pins
from fedrec.privacy.calibration import among_three, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.sharing.layout import checked_layout, layout, plain_numbers, with_own_noise
from fedrec.sharing.record import addressed, pack_shares, upload_bytes
from fedrec.sharing.servers import ShareSums, opening, projection
from fedrec.sharing.shares import Shares, fresh_seeds, share
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint
from fedrec.transport.channel import Access
from fedrec.transport.three_party_client import RemoteShareEndpoint
from fedrec_client.three_way import ThreeWay, names_of
from fedrec_simulations.runtimes.processes import free_addresses

SHAPES = ((3_883, 9, 8), (3_883, 33, 8), (10_677, 33, 8), (40_000, 33, 8))
"""Items, width of a vector, folds: MovieLens 1M's steps, and larger ones."""
_USERS = 256
_ITEMS_HELD = 150
_STAGES = ("client", "expand", "check", "add")
"""Of a client, then of an aggregator."""
_PLAN = among_three(
    calibrate(Guarantee(5.0, 1e-5), {"step": 1.0, "others": 6.0}),
    calibrated_for="one-corrupt",
    hostile_clients="checked",
)
RUN = "sharing-intake"


def run(*, quick: bool) -> Tables:
    """A row for each shape, of honest and of checked clients, then rows of intake and summing."""
    steps = [_Step(*shape) for shape in (((200, 9, 8),) if quick else SHAPES)]
    shape = Shape(items=200, users=64, users_per_message=16) if quick else Shape()
    return {
        "One user in one round, processor time in ms": [
            _costs(step, checked=checked) for step in steps for checked in (False, True)
        ],
        "Intake": _intake(shape),
    }


@dataclass(frozen=True)
class _Step:
    """A question, and what users hold."""

    items: int
    width: int
    folds: int

    @cached_property
    def question(self) -> Question:
        spec = block("step", "linear", rows=self.items, width=self.width, folds=self.folds)
        return Question(0, "step", {}, (ReleaseSpec("step", (spec,)),))

    def reports(self, asked: Question) -> Reports:
        """Bounded, on the grid of the question."""
        rng = np.random.default_rng(1)
        count = min(_ITEMS_HELD, self.items // 2)
        held = [np.sort(rng.choice(self.items, count, replace=False)) for _ in range(_USERS)]
        ptr: Int64s = count * np.arange(_USERS + 1, dtype=np.int64)
        vectors = rng.normal(size=(_USERS * self.folds, self.width))
        real = [RealBlock(rng.normal(size=int(ptr[-1])), vectors)]
        return bounded(ptr, np.concatenate(held).astype(np.int32), real, asked.releases)


def _costs(step: _Step, *, checked: bool) -> Row:
    """Milliseconds of each stage."""
    asked = on_checked_grid(step.question, _PLAN) if checked else step.question
    shape = checked_layout(asked) if checked else layout(asked)
    reports = step.reports(asked)
    own_keys = [bytes([i % 256]) * 32 for i in range(_USERS)]

    def client() -> Shares:
        numbers = plain_numbers(reports, shape)
        hidden = with_own_noise(numbers, shape, own_keys) if checked else numbers
        return share(hidden, fresh_seeds(_USERS))

    sent = client()
    sums = ShareSums(shape)
    pair = sent.held_by(0)
    stages: dict[str, Callable[[], object]] = {
        "client": client,
        "expand": lambda: sent.held_by(0),
        "add": lambda: sums.add(*pair),
    }
    if (parts := shape.checked) is not None:
        C = projection([b"a", b"b", b"c"], parts.data.stop)
        keys = bytes(32), bytes([1]) * 32
        stages["check"] = lambda: opening(*pair, parts, C, 0, keys, b"x")
    took = fastest(stages, turns=3)
    cpu = {name: 1e3 * took[name].cpu_s / _USERS if name in took else None for name in _STAGES}
    return {
        "clients": "checked" if checked else "honest",
        "items": step.items,
        "vectors": step.folds,
        "width": step.width,
        "upload_bytes": upload_bytes(shape.length),
        **cpu,
        "bits_of_a_vector": round(-math.log2(asked.blocks[0].vector_step)) if checked else None,
        "mu_of_an_opening": opening_mu(asked)["step"] if checked else None,
    }


@dataclass(frozen=True)
class Shape:
    """Sizes of the benchmark; users are of each client."""

    items: int = 3_883
    width: int = 9
    folds: int = 8
    users: int = 8_192
    users_per_message: int = 256


def _intake(shape: Shape) -> list[Row]:
    """Rows of intake and of summing."""
    asked = _asked(shape)
    users = shape.users * len(CLIENTS)
    with (
        tempfile.TemporaryDirectory() as folder,
        _three(Path(folder)) as (ways, pids),
        ExitStack() as stack,
    ):
        endpoints = [stack.enter_context(RemoteReleaseEndpoint(each)) for each in ways["server"]]
        endpoint = ThreeEndpoints(endpoints)
        endpoint.open_run(RUN, asked.plan)
        pins = names_of([str(each.pin) for each in ways["server"]])
        pipes = [
            started(_send, shape, number * shape.users, ways[name], pins)[1]
            for number, name in enumerate(CLIENTS)
        ]
        for pipe in pipes:
            pipe.recv()  # enrolled
        endpoint.open_round(asked.opening)
        said(pipes, "share")
        before_s = [processor_s(pid) for pid in pids]
        took_s = length_s(said(pipes, "go"))
        taken_s = [processor_s(pid) for pid in pids]
        closed_s = time.monotonic()
        endpoint.close(RUN, 0)
        status = endpoint.status(RUN, 0, wait_s=600.0)
        summed_s = time.monotonic() - closed_s
        done_s = [processor_s(pid) for pid in pids]
        most_mb = [memory_mb(pid, peak=True) for pid in pids]
    if status.phase is not Phase.RELEASED or status.reported != users:
        raise RuntimeError(
            f"{status.reported} of {users} users were counted, the round is {status.phase.value}"
        )
    stages = {"taken in": (took_s, before_s, taken_s), "summed": (summed_s, taken_s, done_s)}
    return [
        {
            "users": users,
            "stage": name,
            "users_a_second": users / seconds,
            **{
                f"µs_a_user_at_place_{place}": 1e6 * (end - start) / users
                for place, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
            },
            "most_peak_mb": max(most_mb),
        }
        for name, (seconds, starts, ends) in stages.items()
    ]


@contextmanager
def _three(folder: Path) -> Iterator[tuple[Mapping[str, Sequence[Access]], list[int]]]:
    """Three processes that listen, and how each party reaches them."""
    write_development_certificates(folder, clients=CLIENTS, three_aggregators=True)
    pins = {
        name.rpartition(":")[2]: pin
        for name, pin in read_pins(write_pins(folder)).items()
        if "aggregator" in name
    }
    addresses = dict(enumerate(free_addresses(3), 1))
    processes = []
    try:
        for place, address in addresses.items():
            peers = [{"place": i, "address": a} for i, a in addresses.items() if i != place]
            settings = parties.aggregator_settings(
                folder,
                f"aggregator-{place}",
                listen=address,
                pins="pins.toml",
                clients=[{"name": name} for name in CLIENTS],
                simulation=True,
                privacy=parties.ANY_EPSILON,
                limits={"min_cohort": 2},
                three_party={"place": place, "peers": peers},
            )
            processes.append(listening(settings)[0])
        files = {name: f"client-{name}" for name in CLIENTS} | {"server": "server"}
        ways = {
            who: [
                parties.access(folder, address, file, pin=pins[PLACES[place - 1]])
                for place, address in addresses.items()
            ]
            for who, file in files.items()
        }
        yield ways, [process.pid or 0 for process in processes]
    finally:
        parties.ended(processes)


def _send(
    shape: Shape,
    first_user: int,
    ways: Sequence[Access],
    pins: tuple[bytes, ...],
    there: Connection,
) -> None:
    """In a client's process: enrol, share under the ticket, wait for the word, send, and tell when
    that began and ended."""
    asked = _asked(shape)
    length = layout(asked.question).length
    users = first_user + np.arange(shape.users)
    tokens, ids = ([row.tobytes() for row in names(users + offset)] for offset in (0, 10**9))
    with ExitStack() as stack:
        endpoints = [stack.enter_context(RemoteShareEndpoint(each)) for each in ways]
        way = ThreeWay(endpoints, pins)
        way.enroll(tokens)
        there.send("enrolled")
        there.recv()
        ticket = way.ticket(RUN, 0, report_digest(asked.opening.digest, 0))
        messages = []
        for start in range(0, shape.users, shape.users_per_message):
            some = slice(start, start + shape.users_per_message)
            rows = np.zeros((len(ids[some]), length), np.uint64)
            sent = addressed(rows, ids[some], tokens[some], ticket, secret=os.urandom(32))
            messages.append([pack_shares(each, place, ticket) for place, each in enumerate(sent)])
        there.send("ready")
        there.recv()
        span = Span(time.monotonic(), shape.users)
        for each in messages:
            if (receipt := way.report(RUN, 0, each)).rejected:
                raise RuntimeError(f"shares were turned away: {receipt}")
        there.send(span.over())


def _asked(shape: Shape) -> Asked:
    plan = calibrate(Guarantee(5.0, 1e-5), {"step": 1.0})
    question = _Step(shape.items, shape.width, shape.folds).question
    return Asked(RUN, question, among_three(plan, calibrated_for="one-corrupt"))
