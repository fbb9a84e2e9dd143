"""How many users a second do three aggregators take in, and sum? Real ones over mutual TLS, from
two client processes.

Shape: one step of the default recipe at MovieLens 1M's 3,883 items, shared among three aggregators
that are processes of this machine. Shares are made before the clock starts, under the ticket of the
round; from the first call to the last receipt counts as intake, from the closing of the round to
the release as summing. Each aggregator's processor time and most memory stand beside it. Users are
counted only if all three hold them and the round is released. Rows are zero: shares are uniform
numbers whatever they hide.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.protocol import Opening, Phase
from fedrec.federation.reports import block
from fedrec.federation.wire import question_digest, question_header, report_digest
from fedrec.operations.certificates import PLACES, write_development_certificates
from fedrec.operations.pins import read_pins, write_pins
from fedrec.privacy.calibration import Plan, among_three, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.sharing.layout import layout
from fedrec.sharing.record import addressed, pack_shares, upload_bytes
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint
from fedrec.transport.channel import Access
from fedrec.transport.share_client import RemoteShareEndpoint
from fedrec_aggregator import main
from fedrec_aggregator.settings import AggregatorSettings, validated
from fedrec_client.three_way import ThreeWay, names_of
from fedrec_simulations.bench.intake import CLIENTS, SPAWN, peak_mb, processor_s
from fedrec_simulations.runtimes.processes import free_addresses

RUN, ROUND, WAIT_S = "sharing-intake", 0, 600.0


@dataclass(frozen=True)
class Shape:
    """Sizes of the benchmark; users are of each client."""

    items: int = 3_883
    width: int = 9
    folds: int = 8
    users: int = 8_192
    users_per_message: int = 256


def run(*, quick: bool = False) -> dict[str, Any]:
    """Users a second, processor time and memory as a JSON-able dict.

    `quick` shrinks everything to a few seconds."""
    shape = Shape(items=200, users=64, users_per_message=16) if quick else Shape()
    length, users = layout(_question(shape)).length, shape.users * len(CLIENTS)
    with (
        tempfile.TemporaryDirectory() as folder,
        _running(Path(folder)) as (access, pids),
        ExitStack() as stack,
    ):
        endpoint = ThreeEndpoints(
            [stack.enter_context(RemoteReleaseEndpoint(each)) for each in access["server"]]
        )
        endpoint.open_run(RUN, _plan())
        pipes = _senders(shape, access)
        for pipe in pipes:
            pipe.recv()  # enrolled
        endpoint.open_round(
            Opening(RUN, ROUND, _header(shape), question_digest(_header(shape)), 3_600.0)
        )
        for pipe in pipes:
            pipe.send("share")
        for pipe in pipes:
            pipe.recv()  # ready to send
        before_s = [processor_s(pid) for pid in pids]
        for pipe in pipes:
            pipe.send("go")
        spans = [pipe.recv() for pipe in pipes]
        taken_s, started = [processor_s(pid) for pid in pids], time.monotonic()
        endpoint.close(RUN, ROUND)
        status = endpoint.status(RUN, ROUND, wait_s=WAIT_S)
        summed_s, done_s = time.monotonic() - started, [processor_s(pid) for pid in pids]
        most = [peak_mb(pid) for pid in pids]
    if status.phase is not Phase.RELEASED or status.reported != users:
        raise RuntimeError(
            f"{status.reported} of {users} users were counted, the round is {status.phase.value}"
        )
    took_s = max(float(end) for _, end in spans) - min(float(start) for start, _ in spans)
    return {
        "shape": {
            "items": shape.items,
            "width": shape.width,
            "folds": shape.folds,
            "client_processes": len(CLIENTS),
        },
        "users": users,
        "upload_bytes": upload_bytes(length),
        "users_per_second": {
            "taken in": users / took_s,
            "summed": users / summed_s,
            "both": users / (took_s + summed_s),
        },
        "aggregator_cpu_us_per_user": {
            "taken in": [1e6 * (b - a) / users for a, b in zip(before_s, taken_s, strict=True)],
            "summed": [1e6 * (b - a) / users for a, b in zip(taken_s, done_s, strict=True)],
        },
        "aggregator_peak_mb": most,
        "cores": os.cpu_count(),
    }


def _senders(shape: Shape, access: Mapping[str, Sequence[Access]]) -> list[Connection]:
    """The pipes to clients as processes of their own, each of which enrols its users."""
    names, pipes = names_of([str(each.pin) for each in access["server"]]), []
    for number, name in enumerate(CLIENTS):
        here, there = SPAWN.Pipe()
        arguments = (shape, number * shape.users, access[name], names, there)
        SPAWN.Process(target=_send, args=arguments, daemon=True).start()
        pipes.append(here)
    return pipes


def markdown(result: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    from fedrec_simulations.experiments.rows import table

    rates, cpu = result["users_per_second"], result["aggregator_cpu_us_per_user"]
    lines = [[name, f"{rates[name]:,.0f}", *(f"{each:,.0f}" for each in cpu[name])] for name in cpu]
    lines.append(["both, one after the other", f"{rates['both']:,.0f}", "", "", ""])
    most = ", ".join(f"{each:,.0f}" for each in result["aggregator_peak_mb"])
    words = (
        f"{result['users']:,} users, {result['upload_bytes'] / 1000:.1f} kB each, "
        f"{result['cores']} cores for all five processes; "
        f"most memory of the three: {most} MB."
    )
    head = ("", "users a second", "place 1, µs of CPU a user", "place 2", "place 3")
    return f"{table(head, lines)}\n\n{words}"


@contextmanager
def _running(folder: Path) -> Iterator[tuple[dict[str, list[Access]], list[int]]]:
    """Three processes that listen, and how each party reaches them."""
    write_development_certificates(folder, clients=CLIENTS, three_aggregators=True)
    pins = {
        name.rpartition(":")[2]: pin
        for name, pin in read_pins(write_pins(folder)).items()
        if "aggregator" in name
    }
    addresses, processes = free_addresses(3), []
    for place in (1, 2, 3):
        here, there = SPAWN.Pipe()
        processes.append(
            SPAWN.Process(
                target=_serve, args=(_settings(folder, place, addresses), there), daemon=True
            )
        )
        processes[-1].start()
        here.recv()
    try:
        names = {name: f"client-{name}" for name in CLIENTS} | {"server": "server"}
        yield (
            {
                who: [
                    _access(folder, address, pins[PLACES[i]], file)
                    for i, address in enumerate(addresses)
                ]
                for who, file in names.items()
            },
            [process.pid or 0 for process in processes],
        )
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _settings(folder: Path, place: int, addresses: list[str]) -> AggregatorSettings:
    own = {
        "certificate": f"aggregator-{place}.pem",
        "key": f"aggregator-{place}-key.pem",
        "client_ca": "ca.pem",
    }
    peers = [
        {"place": i, "address": address} for i, address in enumerate(addresses, 1) if i != place
    ]
    content = {
        "listen": addresses[place - 1],
        "state": f"state-{place}",
        "log": f"log-{place}.jsonl",
        "pins": "pins.toml",
        "clients": [{"name": name} for name in CLIENTS],
        "simulation": True,
        "tls": own,
        "privacy": {"max_epsilon": "inf"},
        "limits": {"min_cohort": 2},
        "three_party": {"place": place, "peers": peers},
    }
    return validated(content, folder=folder)


def _serve(settings: AggregatorSettings, there: Connection) -> None:
    main.run(settings, ready=lambda address: there.send(str(address)))


def _access(folder: Path, address: str, pin: str, file: str) -> Access:
    pair = str(folder / f"{file}.pem"), str(folder / f"{file}-key.pem")
    return Access(address, ca=str(folder / "ca.pem"), pin=pin, certificate=pair[0], key=pair[1])


def _send(
    shape: Shape, first_user: int, access: list[Access], names: tuple[bytes, ...], there: Connection
) -> None:
    """In a client's process: enrol, share under the ticket, wait for the word, send, and tell when
    that began and ended."""
    length = layout(_question(shape)).length
    users = first_user + np.arange(shape.users)
    tokens, ids = ([row.tobytes() for row in _names(users + offset)] for offset in (0, 10**9))
    with ExitStack() as stack:
        way = ThreeWay([stack.enter_context(RemoteShareEndpoint(each)) for each in access], names)
        way.enroll(tokens)
        there.send("enrolled")
        there.recv()
        ticket = way.ticket(RUN, ROUND, report_digest(question_digest(_header(shape)), 0))
        messages = []
        for start in range(0, shape.users, shape.users_per_message):
            some = slice(start, start + shape.users_per_message)
            rows = np.zeros((len(ids[some]), length), np.uint64)
            sent = addressed(rows, ids[some], tokens[some], ticket, secret=os.urandom(32))
            messages.append([pack_shares(each, place, ticket) for place, each in enumerate(sent)])
        there.send("ready")
        there.recv()
        started = time.monotonic()
        for each in messages:
            if (receipt := way.report(RUN, ROUND, each)).rejected:
                raise RuntimeError(f"shares were turned away: {receipt}")
        there.send((started, time.monotonic()))


def _names(users: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(n, 16) distinct names."""
    return np.stack([users, users], axis=1).astype("<i8").view(np.uint8)


def _question(shape: Shape) -> Question:
    spec = block("step", "linear", rows=shape.items, width=shape.width, folds=shape.folds)
    return Question(ROUND, "step", {}, (ReleaseSpec("step", (spec,)),))


def _header(shape: Shape) -> bytes:
    return question_header(_question(shape), run=RUN, plan=_plan().digest())


def _plan() -> Plan:
    return among_three(calibrate(Guarantee(5.0, 1e-5), {"step": 1.0}), calibrated_for="one-corrupt")
