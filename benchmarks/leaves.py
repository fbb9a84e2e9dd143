"""Leaf aggregators.

Reports a second that 1, 2 and 10 real leaves and a real root take in over mutual TLS from two
client processes. The batches are those of `intake`, each leaf's users apart, packed before the
clock starts. Every number of leaves gets the same users; the noise is seeded, so that equal
releases say that the merged sums are equal. Beside reports a second of wall time stands what the
leaves could take if each had a core: reports over the processor time of the leaf that needed most.
On a machine whose cores clients and leaves share, the second is the one that scales. Each client's
first batch to each leaf is sent before the clock starts: it loads the leaf's kernels. Of three
trials the one in which the leaves needed least counts. Then a leaf and the root are killed (-9)
after all have reported, started again on their folders, and everybody sends again.
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

from benchmarks import intake, parties
from benchmarks.intake import RUN, Shape
from benchmarks.measuring import processor_s
from benchmarks.parties import CLIENTS, Span, length_s, listening, names, said, started
from benchmarks.results import Row, Tables
from fedrec.errors import RefusedError
from fedrec.federation.leaves import even_ranges
from fedrec.federation.protocol import Phase, Refusal, RoundStatus
from fedrec.federation.report_batches import pack_reports, select_users
from fedrec.operations.certificates import write_development_certificates
from fedrec.operations.pins import write_pins
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint
from fedrec.transport.channel import Access
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.delivery import LeafEndpoints
from fedrec_simulations.runtimes.processes import free_addresses

_ROOT = "root"
_DRAWN_AT_ONCE = 2_560
_ATTEMPTS = 5
_SMALL = Shape(users_in_batches=256, users_per_batch=64)
_FIRST = (0, 1)
_REST = (1, None)
_ALL = (0, None)
"""Of the batches for each leaf."""


def run(*, quick: bool) -> Tables:
    """A row for each number of leaves, and for each that is killed."""
    shape = _SMALL if quick else Shape()
    if not quick:  # kernels are compiled and kept on disk
        _trial(_SMALL, 1, "")
    ends = ("", _ROOT) if quick else ("", "leaf-1", _ROOT)
    rows = list[Row]()
    for count in (1, 2) if quick else (1, 2, 10):
        for killed in ends if count == 2 else ("",):
            trials = [_trial(shape, count, killed) for _ in range(1 if quick or killed else 3)]
            if len({trial["release"] for trial in trials}) > 1:
                raise RuntimeError(f"{count} leaves released different sums")
            rows.append(max(trials, key=lambda trial: float(trial["with_a_core_each"])))
    first = rows[0]
    return {
        f"{len(CLIENTS) * shape.users_in_batches:,} reports": [
            {
                **row,
                "times_one_leaf": row["with_a_core_each"] / first["with_a_core_each"],
                "same_release": row["release"] == first["release"],
            }
            for row in rows
        ]
    }


def _trial(shape: Shape, count: int, killed: str) -> Row:
    asked = intake.asked_for(shape, 0)
    with (
        tempfile.TemporaryDirectory() as folder,
        _tree(Path(folder), count) as tree,
        RemoteReleaseEndpoint(tree.access(_ROOT, "server")) as endpoint,
    ):
        pipes = [
            started(
                _send,
                shape,
                number * shape.users_in_batches,
                [tree.access(leaf, f"client-{name}") for leaf in tree.leaves],
            )[1]
            for number, name in enumerate(CLIENTS)
        ]
        users = sum(int(pipe.recv()) for pipe in pipes)
        endpoint.open_run(RUN, asked.plan)
        endpoint.open_round(asked.opening)
        warmed = sum(span.users for span in said(pipes, _FIRST))
        before = tree.processor_s()
        spans = said(pipes, _REST)
        after = tree.processor_s()
        if killed:
            os.kill(tree.processes[killed].pid, signal.SIGKILL)
            tree.processes[killed].join()
            tree.start(killed)
        status = _closed(endpoint, asked, pipes)
        if status.phase is not Phase.RELEASED or status.reported != users:
            raise RuntimeError(
                f"{status.reported} of {users} reports were counted, the round is {status.phase}"
            )
        release = endpoint.release(RUN, 0)
        root_s = tree.processor_s()[_ROOT] - before[_ROOT]
        for pipe in pipes:
            pipe.send(None)
    # processor time is counted in ticks of .01 s
    most_s = max(0.01, *(after[name] - before[name] for name in tree.leaves))
    return {
        "leaves": count,
        "killed": killed or "none",
        "reports_a_second": (users - warmed) / length_s(spans),
        "with_a_core_each": (users - warmed) / most_s,
        "root_processor_s": None if killed == _ROOT else root_s,
        "attempt": status.attempt,
        "release": sha256(release).hexdigest()[:16],
    }


def _closed(
    endpoint: RemoteReleaseEndpoint, asked: parties.Asked, pipes: Sequence[Connection]
) -> RoundStatus:
    """The round's end; begun again where root or leaf forgot it, as the server does
    (`round_driver`)."""
    status = RoundStatus(RUN, 0, asked.opening.digest, Phase.SHORT)
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
        endpoint.open_run(RUN, asked.plan)
        endpoint.open_round(asked.opening)
        said(pipes, _ALL)
    return status


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
        self.processes[name], _ = listening(self._settings(name))

    def processor_s(self) -> dict[str, float]:
        return {name: processor_s(process.pid) for name, process in self.processes.items()}

    def access(self, party: str, who: str) -> Access:
        return parties.access(self.folder, self.addresses[party], who)

    def _settings(self, name: str) -> AggregatorSettings:
        file = "aggregator" if name == _ROOT else f"aggregator-{name}"
        ends = [
            {"first": f"{one.first:04x}", "last": f"{one.last:04x}"}
            for one in even_ranges(len(self.leaves))
        ]
        own: dict[str, Any] = {"listen": self.addresses[name], "pins": "pins.toml"}
        if name == _ROOT:
            own["simulation"] = True
            own["privacy"] = {**parties.ANY_EPSILON, "noise": "seeded", "seed": 1}
            own["leaves"] = [
                {"name": leaf, "address": self.addresses[leaf], **each}
                for leaf, each in zip(self.leaves, ends, strict=True)
            ]
        else:
            own["clients"] = [{"name": client} for client in CLIENTS]
            own["leaf"] = {"name": name, **ends[self.leaves.index(name)]}
        return parties.aggregator_settings(self.folder, file, **own)


@contextmanager
def _tree(folder: Path, count: int) -> Iterator[_Tree]:
    leaves = [f"leaf-{number}" for number in range(1, count + 1)]
    write_development_certificates(folder, clients=CLIENTS, leaves=dict.fromkeys(leaves, ()))
    write_pins(folder)
    tree = _Tree(folder, dict(zip([*leaves, _ROOT], free_addresses(count + 1), strict=True)))
    try:
        for name in tree.addresses:
            tree.start(name)
        yield tree
    finally:
        parties.ended(list(tree.processes.values()))


def _send(shape: Shape, first_user: int, ways: Sequence[Access], there: Connection) -> None:
    """In a client's process: enrol and pack for each leaf; at every word send the batches that it
    names, a thread for each leaf; None ends."""
    users = first_user + np.arange(shape.users_in_batches)
    asked = intake.asked_for(shape, 0)
    digest = asked.opening.digest
    endpoints = [RemoteReportEndpoint(way) for way in ways]
    leaves = LeafEndpoints(endpoints, even_ranges(len(ways)))
    batches = [list[tuple[int, bytes]]() for _ in endpoints]
    # the same reports, however many leaves there are
    for first in range(0, len(users), _DRAWN_AT_ONCE):
        drawn = intake.batch_of(shape, users[first : first + _DRAWN_AT_ONCE], 0)
        places = leaves.places(drawn.tokens)
        for leaf, own in enumerate(batches):
            mine = np.flatnonzero(places == leaf)
            for start in range(0, len(mine), shape.users_per_batch):
                part = mine[start : start + shape.users_per_batch]
                kept = np.isin(np.arange(len(places)), part)
                one = select_users(drawn, kept, asked.question.blocks)
                own.append((len(part), pack_reports(one, digest)))
    leaves.enroll([bytes(token) for token in names(users)])
    there.send(len(users))

    def sent(leaf: int, which: slice) -> int:
        for _, batch in batches[leaf][which]:
            endpoints[leaf].report(RUN, 0, batch)
        return sum(count for count, _ in batches[leaf][which])

    with ThreadPoolExecutor(len(endpoints)) as calls:
        while (ends := there.recv()) is not None:
            start_s = time.monotonic()
            which = [slice(*ends)] * len(endpoints)
            there.send(Span(start_s, sum(calls.map(sent, range(len(endpoints)), which))).over())
