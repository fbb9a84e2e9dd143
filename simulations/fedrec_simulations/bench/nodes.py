"""What do a thousand idle nodes cost the server? A real proxy and SuperLink, and synthetic nodes
over mutual TLS.

The server's process has all of `fedrec server` loaded and does its Flower side: a message to all
nodes and their answers, the time between rounds, and another message. Between rounds its resident
memory and processor time are taken, and those of its SuperLink; during rounds, seconds until the
last node has answered. Nodes are of `fedrec_simulations.bench.light_nodes`, in a process of their
own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedrec.federation.protocol import Terms
from fedrec.operations.certificates import write_development_certificates
from fedrec_simulations.bench import intake
from fedrec_simulations.experiments.rows import table

_TERMS = Terms("nodes", "{}", "ratings", (1.0, 5.0), ("item",))
_ARRIVAL_S = 1_800.0
_ALLOWED_MB, _ALLOWED_CORES = 500.0, 0.1


def run(
    *, nodes: int = 1_000, seconds: float = 300.0, messages: int = 1, quick: bool = False
) -> dict[str, Any]:
    """seconds: between rounds. messages: to all nodes, before and after. `quick` takes 12 nodes and
    2 s, for tests of the wiring.

    Raises RuntimeError where nodes stay away.
    """
    nodes, seconds = (12, 2.0) if quick else (nodes, seconds)
    names = [f"phone-{number}" for number in range(nodes)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write_development_certificates(Path(folder), clients=names)
        here, there = intake.SPAWN.Pipe()
        server = intake.SPAWN.Process(
            target=serve, args=(Path(folder), names, seconds, messages, there)
        )
        server.start()
        there.close()  # so that its end is noticed here
        stack.callback(server.join)
        stack.callback(server.terminate)
        address = here.recv()
        fleet = intake.SPAWN.Process(target=_live, args=(address, Path(folder), names), daemon=True)
        fleet.start()
        stack.callback(fleet.join)
        stack.callback(fleet.kill)
        try:
            measured: dict[str, Any] = here.recv()
        except EOFError:
            raise RuntimeError("the server's process ended; its words stand above") from None
        fleet_mb = resident_mb(fleet.pid or 0)
    if "failure" in measured:
        raise RuntimeError(measured["failure"])
    allowed = {"mb": _ALLOWED_MB, "cores": _ALLOWED_CORES}
    return {
        "nodes": nodes,
        "seconds_between_rounds": seconds,
        "allowed": allowed,
        "nodes_mb": fleet_mb,
        **measured,
    }


def _live(address: str, keys: Path, names: Sequence[str]) -> None:
    from fedrec_simulations.bench import light_nodes

    light_nodes.run(address, keys, names, 10 * 86_400.0)


def serve(
    keys: Path, names: Sequence[str], seconds: float, messages: int, there: Connection
) -> None:
    """The server's process: a proxy and its SuperLink for these clients, two messages to all with
    `seconds` between, and what that took."""
    import fedrec_server.main  # noqa: F401 - what a server has loaded counts
    from fedrec.operations.addresses import Address
    from fedrec_server.executor import AppRunner
    from fedrec_server.fleet_listener import FleetListener
    from fedrec_server.fleet_proxy import Certificate
    from fedrec_server.flower import bundle, server_app
    from fedrec_server.superlink import SuperLink

    certificate = Certificate(keys / "server.pem", keys / "server-key.pem", keys / "ca.pem")
    with (
        SuperLink(keys / "flower", keys / "flower" / "superlink.sqlite") as superlink,
        FleetListener(
            Address("127.0.0.1", 0), lambda: superlink.address, certificate, holds=True
        ) as proxy,
    ):
        superlink.wait_until_up()
        there.send(str(proxy.address))

        def rounds(broadcast: Any) -> None:
            there.send(
                _measured(
                    broadcast, proxy, [os.getpid(), superlink.pid], len(names), seconds, messages
                )
            )

        app = server_app(
            rounds, timeout_s=1_800.0, again_s=1_800.0, owner=proxy.owner, wake=proxy.wake
        )
        AppRunner(superlink.address, superlink.secret).run(app, bundle("0" * 64))


def _measured(
    broadcast: Any, proxy: Any, pids: Sequence[int], nodes: int, seconds: float, messages: int
) -> dict[str, Any]:
    deadline = time.monotonic() + _ARRIVAL_S
    while len(list(broadcast.grid.get_node_ids())) < nodes or proxy.held < nodes:
        if time.monotonic() > deadline:
            return {
                "failure": (
                    f"{len(list(broadcast.grid.get_node_ids()))} of {nodes} nodes are there, "
                    f"{proxy.held} wait"
                )
            }
        time.sleep(0.5)
    before = [_round(broadcast, nodes) for _ in range(messages)]
    while proxy.held < nodes and time.monotonic() < deadline + 60:
        time.sleep(0.2)
    cpu_s, started = [intake.processor_s(pid) for pid in pids], time.monotonic()
    most_mb = [0.0, 0.0]
    while time.monotonic() - started < seconds:
        time.sleep(min(5.0, seconds / 2))
        most_mb = [max(most, resident_mb(pid)) for most, pid in zip(most_mb, pids, strict=True)]
    took_s = time.monotonic() - started
    cores = [(intake.processor_s(pid) - cpu) / took_s for pid, cpu in zip(pids, cpu_s, strict=True)]
    held = proxy.held
    after = [_round(broadcast, nodes) for _ in range(messages)]
    parts = dict(zip(("server", "superlink"), zip(most_mb, cores, strict=True), strict=True))
    return {
        "held": held,
        "between_rounds": {name: {"mb": mb, "cores": share} for name, (mb, share) in parts.items()},
        "peak_mb": {name: intake.peak_mb(pid) for name, pid in zip(parts, pids, strict=True)},
        "round_seconds": [*before, *after],
    }


def _round(broadcast: Any, nodes: int) -> float:
    started = time.monotonic()
    answers = broadcast.join(_TERMS)
    if (heard := sum(not answer.refusal for answer in answers)) != nodes:
        raise RuntimeError(f"{heard} of {nodes} nodes answered")
    return time.monotonic() - started


def resident_mb(pid: int) -> float:
    """Memory that a process holds now."""
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    )


def markdown(result: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    parts = result["between_rounds"]
    lines = [[name, f"{row['mb']:,.0f}", f"{row['cores']:.1%}"] for name, row in parts.items()]
    total = [sum(row[key] for row in parts.values()) for key in ("mb", "cores")]
    allowed = [result["allowed"][key] for key in ("mb", "cores")]
    over = [
        " (above what is allowed)" if a > b else "" for a, b in zip(total, allowed, strict=True)
    ]
    lines.append(["together", f"{total[0]:,.0f}{over[0]}", f"{total[1]:.1%}{over[1]}"])
    lines.append(["allowed", f"{allowed[0]:,.0f}", f"{allowed[1]:.0%}"])
    rounds = ", ".join(f"{seconds:.1f}" for seconds in result["round_seconds"])
    words = f"{result['held']:,} requests waited at the end."
    words += f" A message to all nodes and all answers: {rounds} s." if rounds else ""
    head = (
        f"{result['nodes']:,} nodes, {result['seconds_between_rounds']:,.0f} s between rounds",
        "resident MB",
        "of a core",
    )
    return f"{table(head, lines)}\n\n{words}"
