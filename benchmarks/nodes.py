"""A thousand nodes.

What a thousand idle nodes cost the server: a real reverse proxy and SuperLink, and synthetic nodes
over mutual TLS which wait for messages between rounds. The server's process has all of `fedrec
server` loaded and does its Flower side: a message to all nodes and their answers, the time between
rounds (`--seconds`, 300 unsaid), and another message. Between rounds its resident memory and
processor time are taken, and those of its SuperLink; in rounds, seconds until the last node has
answered. Allowed together: 500 MB and a tenth of a core.
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

from benchmarks.measuring import memory_mb, processor_s
from benchmarks.parties import SPAWN, started
from benchmarks.results import Row, Tables
from fedrec.federation.protocol import Terms
from fedrec.operations.certificates import write_development_certificates

_TERMS = Terms("nodes", "{}", "ratings", (1.0, 5.0), ("item",))
_ARRIVAL_S = 1_800.0


def run(*, quick: bool, seconds: float = 300.0) -> Tables:
    """Rows of processes. `quick` takes 12 nodes and 2 s.

    Raises RuntimeError where nodes stay away.
    """
    count, seconds = (12, 2.0) if quick else (1_000, seconds)
    names = [f"phone-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        keys = Path(folder)
        write_development_certificates(keys, clients=names)
        server, pipe = started(serve, keys, names, seconds, daemon=False)
        stack.callback(server.join)
        stack.callback(server.terminate)
        fleet = SPAWN.Process(target=_live, args=(pipe.recv(), keys, names), daemon=True)
        fleet.start()
        stack.callback(fleet.join)
        stack.callback(fleet.kill)
        try:
            found: Tables | str = pipe.recv()
        except EOFError:
            raise RuntimeError("the server's process ended; its words stand above") from None
        nodes: Row = {"process": "all nodes", "mb": memory_mb(fleet.pid or 0)}
    if isinstance(found, str):
        raise RuntimeError(found)
    first, rounds = found.values()
    rows = [*first, {**dict.fromkeys(first[0]), **nodes}]
    return {f"{count:,} nodes, {seconds:,.0f} s between rounds": rows, "Rounds": rounds}


def _live(address: str, keys: Path, names: Sequence[str]) -> None:
    from benchmarks import light_nodes

    light_nodes.live(address, keys, names)


def serve(keys: Path, names: Sequence[str], seconds: float, there: Connection) -> None:
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
        pids = {"server": os.getpid(), "SuperLink": superlink.pid}

        def rounds(broadcast: Any) -> None:
            there.send(_measured(broadcast, proxy, pids, len(names), seconds))

        app = server_app(
            rounds, timeout_s=1_800.0, again_s=1_800.0, owner=proxy.owner, wake=proxy.wake
        )
        AppRunner(superlink.address, superlink.secret).run(app, bundle("0" * 64))


def _measured(
    broadcast: Any, proxy: Any, pids: dict[str, int], nodes: int, seconds: float
) -> Tables | str:
    """Rows of processes and of rounds; or why there are none."""
    deadline = time.monotonic() + _ARRIVAL_S
    while (arrived := len(list(broadcast.grid.get_node_ids()))) < nodes or proxy.held < nodes:
        if time.monotonic() > deadline:
            return f"{arrived} of {nodes} nodes are there, {proxy.held} wait"
        time.sleep(0.5)
    before_s = _round(broadcast, nodes)
    while proxy.held < nodes and time.monotonic() < deadline + 60:
        time.sleep(0.2)
    cpu_s = {name: processor_s(pid) for name, pid in pids.items()}
    most_mb = dict.fromkeys(pids, 0.0)
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < seconds:
        time.sleep(min(5.0, seconds / 2))
        most_mb = {name: max(most_mb[name], memory_mb(pid)) for name, pid in pids.items()}
    took_s = time.monotonic() - begun_s
    rows: list[Row] = [
        {
            "process": name,
            "mb": most_mb[name],
            "share_of_a_core": (processor_s(pid) - cpu_s[name]) / took_s,
            "peak_mb": memory_mb(pid, peak=True),
        }
        for name, pid in pids.items()
    ]
    waiting = proxy.held
    after_s = _round(broadcast, nodes)
    rounds: Row = {"s_before": before_s, "s_after": after_s, "requests_that_waited": waiting}
    return {"processes": rows, "rounds": [rounds]}


def _round(broadcast: Any, nodes: int) -> float:
    begun_s = time.monotonic()
    answers = broadcast.join(_TERMS)
    if (heard := sum(not answer.refusal for answer in answers)) != nodes:
        raise RuntimeError(f"{heard} of {nodes} nodes answered")
    return time.monotonic() - begun_s
