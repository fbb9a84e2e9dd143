"""How many reports a second do 1, 2 and 10 leaves take in? Real leaves and a real root over mutual
TLS, two client processes.

Shape: `intake`'s batches, each leaf's users apart, all of them packed before the clock starts.
Every number of leaves gets the same users; the noise is seeded, so that equal releases say that the
merged sums are equal. Per count of leaves: reports a second of wall time, and what the leaves could
take if each had a core: reports over the processor time of the leaf that needed most. On a machine
whose cores clients and leaves share, the second is the one that scales. Each client's first batch
to each leaf is sent before the clock starts: it loads the leaf's kernels.

Each is the one of three trials in which the leaves needed least.

Then a leaf and the root are killed (-9) after all have reported, started again on their folders,
and everybody sends again.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.errors import RefusedError
from fedrec.federation.leaves import even_ranges
from fedrec.federation.protocol import Opening, Phase, Refusal, RoundStatus
from fedrec.federation.report_batches import pack_reports, select_users
from fedrec.federation.wire import question_digest, question_header
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.pins import write_pins
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint
from fedrec.transport.channel import Access
from fedrec_aggregator.settings import AggregatorSettings, validated
from fedrec_client.leaves import LeafEndpoints
from fedrec_simulations.bench import intake
from fedrec_simulations.bench.intake import CLIENTS, RUN, SPAWN, Shape
from fedrec_simulations.experiments.rows import table
from fedrec_simulations.runtimes.processes import free_addresses

COUNTS, REPEATS = (1, 2, 10), 3
_ROOT = "root"
_DRAWN_AT_ONCE, _ATTEMPTS = 2_560, 5
_SMALL = Shape(users_in_batches=256, users_per_batch=64)
_TICK_S = 0.01
"""Processor time is counted in these."""
_FIRST, _REST, _ALL = slice(0, 1), slice(1, None), slice(None)
"""Of the batches for each leaf."""


def run(*, quick: bool) -> dict[str, Any]:
    """Rows by count of leaves. quick: a few users and two leaves at most, for tests of the
    wiring."""
    shape, counts = (_SMALL, (1, 2)) if quick else (Shape(), COUNTS)
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        # kernels are compiled and kept on disk
        _trial(_SMALL, Path(folder), 1, "")
    for count in counts:
        for killed in ("", "leaf-1", _ROOT) if count == 2 else ("",):
            trials = list[dict[str, Any]]()
            for _ in range(1 if quick or killed else REPEATS):
                with tempfile.TemporaryDirectory() as folder:
                    trials.append(_trial(shape, Path(folder), count, killed))
            if len({trial["release_sha256"] for trial in trials}) > 1:
                raise RuntimeError(f"{count} leaves released different sums")
            rows.append(max(trials, key=lambda trial: float(trial["capacity"])))
    first = rows[0]
    for row in rows:
        row["same_release"] = row["release_sha256"] == first["release_sha256"]
        row["times_one_leaf"] = row["capacity"] / first["capacity"]
    header = [
        "leaves",
        "killed",
        "reports/s, wall",
        "reports/s, a core each",
        "times one leaf",
        "root's processor s",
        "same release",
    ]
    lines = [
        [
            str(row["leaves"]),
            row["killed"] or "-",
            f"{row['per_second']:,.0f}",
            f"{row['capacity']:,.0f}",
            f"{row['times_one_leaf']:.2f}",
            f"{row['root_cpu_s']:.2f}",
            str(row["same_release"]),
        ]
        for row in rows
    ]
    return {
        "users": len(CLIENTS) * shape.users_in_batches,
        "rows": rows,
        "table": table(header, lines),
    }


def _trial(shape: Shape, folder: Path, count: int, killed: str) -> dict[str, Any]:
    with _tree(folder, count) as tree:
        pipes = [_client(shape, number, tree) for number in range(len(CLIENTS))]
        users = sum(int(pipe.recv()) for pipe in pipes)
        opening = _opening(shape)
        with RemoteReleaseEndpoint(tree.access(_ROOT, "server")) as endpoint:
            endpoint.open_run(RUN, intake._plan())
            endpoint.open_round(opening)
            warmed = sum(sent.users for sent in _sent(pipes, _FIRST))
            before = tree.processor_s()
            spans = _sent(pipes, _REST)
            after = tree.processor_s()
            if killed:
                tree.kill(killed)
                tree.start(killed)
            status = _closed(endpoint, opening, pipes)
            if status.phase is not Phase.RELEASED or status.reported != users:
                raise RuntimeError(
                    f"{status.reported} of {users} reports were counted, the round is "
                    f"{status.phase}"
                )
            release, root_s = endpoint.release(RUN, 0), tree.processor_s()[_ROOT] - before[_ROOT]
        for pipe in pipes:
            pipe.send(None)
    took_s = max(span.end_s for span in spans) - min(span.start_s for span in spans)
    most_s = max(_TICK_S, *(after[name] - before[name] for name in tree.leaves))
    rates = {
        "per_second": (users - warmed) / took_s,
        "capacity": (users - warmed) / most_s,
        "root_cpu_s": root_s,
        "attempt": status.attempt,
    }
    return {
        "leaves": count,
        "killed": killed,
        **rates,
        "release_sha256": sha256(release).hexdigest(),
    }


def _closed(
    endpoint: RemoteReleaseEndpoint, opening: Opening, pipes: Sequence[Connection]
) -> RoundStatus:
    """The round's end; begun again where root or leaf forgot it, as the server does
    (`round_driver`)."""
    status = RoundStatus(RUN, 0, opening.digest, Phase.SHORT)
    for _ in range(_ATTEMPTS):
        try:
            status = endpoint.close(RUN, 0)
            if status.phase is Phase.RELEASING:
                status = endpoint.status(RUN, 0, wait_s=600.0)
            if status.phase is Phase.RELEASED:
                break
        except RefusedError as failure:
            if failure.code != Refusal.ROUND_UNKNOWN:
                raise
        endpoint.open_run(RUN, intake._plan())
        endpoint.open_round(opening)
        _sent(pipes, _ALL)
    return status


@dataclass(frozen=True)
class _Sent:
    """What a client sent: from when to when, and of how many users."""

    start_s: float
    end_s: float
    users: int


def _sent(pipes: Sequence[Connection], which: slice) -> list[_Sent]:
    for pipe in pipes:
        pipe.send((which.start, which.stop))
    return [pipe.recv() for pipe in pipes]


def _opening(shape: Shape) -> Opening:
    header = question_header(intake._question(shape, 0), run=RUN, plan=intake._plan().digest())
    return Opening(RUN, 0, header, question_digest(header), 3_600.0)


@dataclass
class _Tree:
    """Processes of leaves and root by name, on fixed addresses so that one that is killed comes
    back."""

    folder: Path
    addresses: dict[str, str]
    processes: dict[str, Any] = field(default_factory=dict)

    @property
    def leaves(self) -> tuple[str, ...]:
        return tuple(name for name in self.addresses if name != _ROOT)

    def start(self, name: str) -> None:
        here, there = SPAWN.Pipe()
        self.processes[name] = SPAWN.Process(
            target=intake._serve, args=(self._settings(name), there), daemon=True
        )
        self.processes[name].start()
        here.recv()

    def kill(self, name: str) -> None:
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].join()

    def processor_s(self) -> dict[str, float]:
        return {name: intake.processor_s(process.pid) for name, process in self.processes.items()}

    def access(self, party: str, who: str) -> Access:
        return intake._access(self.folder, self.addresses[party], who)

    def _settings(self, name: str) -> AggregatorSettings:
        file = "aggregator" if name == _ROOT else f"aggregator-{name}"
        tls = {"certificate": f"{file}.pem", "key": f"{file}-key.pem", "client_ca": "ca.pem"}
        places = {
            "listen": self.addresses[name],
            "state": f"state-{name}",
            "log": f"{name}.jsonl",
            "pins": "pins.toml",
            "tls": tls,
        }
        ends = [
            {"first": f"{one.first:04x}", "last": f"{one.last:04x}"}
            for one in even_ranges(len(self.leaves))
        ]
        if name != _ROOT:
            clients = [{"name": client} for client in CLIENTS]
            return validated(
                {
                    **places,
                    "clients": clients,
                    "leaf": {"name": name, **ends[self.leaves.index(name)]},
                },
                folder=self.folder,
            )
        leaves = [
            {"name": leaf, "address": self.addresses[leaf], **own}
            for leaf, own in zip(self.leaves, ends, strict=True)
        ]
        privacy = {"max_epsilon": "inf", "noise": "seeded", "seed": 1}
        return validated(
            {**places, "simulation": True, "privacy": privacy, "leaves": leaves}, folder=self.folder
        )


@contextmanager
def _tree(folder: Path, count: int) -> Iterator[_Tree]:
    names = [f"leaf-{number}" for number in range(1, count + 1)]
    write_development_certificates(folder, clients=CLIENTS, leaves=dict.fromkeys(names, ()))
    write_pins(folder)
    tree = _Tree(folder, dict(zip([*names, _ROOT], free_addresses(count + 1), strict=True)))
    try:
        for name in tree.addresses:
            tree.start(name)
        yield tree
    finally:
        for process in tree.processes.values():
            process.terminate()
            process.join()


def _client(shape: Shape, number: int, tree: _Tree) -> Connection:
    here, there = SPAWN.Pipe()
    accesses = [tree.access(leaf, f"client-{CLIENTS[number]}") for leaf in tree.leaves]
    SPAWN.Process(
        target=_send, args=(shape, number * shape.users_in_batches, accesses, there), daemon=True
    ).start()
    return here


def _send(shape: Shape, first_user: int, accesses: Sequence[Access], there: Connection) -> None:
    """In a client's process: enrol and pack for each leaf; at every word send the batches that it
    names, a thread for each leaf; None ends."""
    users, ranges, digest = (
        first_user + np.arange(shape.users_in_batches),
        even_ranges(len(accesses)),
        _opening(shape).digest,
    )
    endpoints = [RemoteReportEndpoint(access) for access in accesses]
    leaves, specs = LeafEndpoints(endpoints, ranges), intake._question(shape, 0).blocks
    batches = [list[tuple[int, bytes]]() for _ in endpoints]
    # the same reports, however many leaves there are
    for first in range(0, len(users), _DRAWN_AT_ONCE):
        drawn = intake._batch(shape, users[first : first + _DRAWN_AT_ONCE], 0)
        places = leaves.places(drawn.tokens)
        for leaf in range(len(endpoints)):
            mine = np.flatnonzero(places == leaf)
            for part in (
                np.array_split(mine, -(-len(mine) // shape.users_per_batch)) if len(mine) else []
            ):
                kept = np.isin(np.arange(len(places)), part)
                packed = pack_reports(select_users(drawn, kept, specs), digest)
                batches[leaf].append((len(part), packed))
    leaves.enroll([bytes(token) for token in intake._names(users)])
    there.send(len(users))

    def sent(leaf: int, which: slice) -> int:
        for _, batch in batches[leaf][which]:
            endpoints[leaf].report(RUN, 0, batch)
        return sum(count for count, _ in batches[leaf][which])

    with ThreadPoolExecutor(len(endpoints)) as calls:
        while (asked := there.recv()) is not None:
            start, which = time.monotonic(), slice(*asked)
            users_sent = sum(calls.map(sent, range(len(endpoints)), [which] * len(endpoints)))
            there.send(_Sent(start, time.monotonic(), users_sent))
