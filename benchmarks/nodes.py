"""A thousand nodes.

What a thousand idle nodes cost the server: its real service of rounds, and synthetic clients over
mutual TLS which wait for messages between rounds. The server's process has all of `fedrec server`
loaded: a message to all clients and their answers, the time between rounds (`--seconds`, 300
unsaid), and another message. Between rounds its resident memory and processor time are taken; in
rounds, seconds until the last client has answered. Allowed: 500 MB and a tenth of a core.
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
    """The server's process: the service of rounds for these clients, two messages to all with
    `seconds` between, and what that took."""
    import fedrec_server.main  # noqa: F401 - what a server has loaded counts
    from fedrec_server.broadcast import ClientBroadcast
    from fedrec_server.round_service import RoundService
    from fedrec_server.settings_tables import LinkTable

    files = {"certificate": "server.pem", "key": "server-key.pem", "client_ca": "ca.pem"}
    with RoundService(
        LinkTable(**{name: str(keys / file) for name, file in files.items()})
    ) as link:
        there.send(link.address)
        there.send(_measured(ClientBroadcast(link, 1_800.0), len(names), seconds))


def _measured(clients: Any, count: int, seconds: float) -> Tables | str:
    """Rows of processes and of rounds; or why there are none."""
    deadline = time.monotonic() + _ARRIVAL_S
    while (arrived := len(clients.post.nodes())) < count:
        if time.monotonic() > deadline:
            return f"{arrived} of {count} nodes are there"
        time.sleep(0.5)
    before_s = _round(clients, count)
    cpu_s = processor_s(os.getpid())
    most_mb = 0.0
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < seconds:
        time.sleep(min(5.0, seconds / 2))
        most_mb = max(most_mb, memory_mb(os.getpid()))
    took_s = time.monotonic() - begun_s
    row: Row = {
        "process": "server",
        "mb": most_mb,
        "share_of_a_core": (processor_s(os.getpid()) - cpu_s) / took_s,
        "peak_mb": memory_mb(os.getpid(), peak=True),
    }
    waiting = len(clients.post.nodes())
    after_s = _round(clients, count)
    rounds: Row = {"s_before": before_s, "s_after": after_s, "nodes_that_waited": waiting}
    return {"processes": [row], "rounds": [rounds]}


def _round(clients: Any, count: int) -> float:
    begun_s = time.monotonic()
    answers = clients.join(_TERMS)
    if (heard := sum(not answer.refusal for answer in answers)) != count:
        raise RuntimeError(f"{heard} of {count} nodes answered")
    return time.monotonic() - begun_s
