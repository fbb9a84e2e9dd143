"""How many messages a second do Flower's nodes answer: called in this process, and on Ray's actors
where Ray is installed?

Nodes echo: an array goes out, is read as numpy, and goes back. Both engines carry the same messages
between the same apps, asked and heard in the same loop; of several waves to all nodes the fastest
counts, and Ray's own start is told apart.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedrec_simulations.runtimes.in_process import FIRST_NODE
from fedrec_simulations.runtimes.in_process_grid import InProcessGrid
from fedrec_simulations.runtimes.ray_engine import play, rays_folder

_PAUSE_S = 0.005
_ARRAYS = "arrays"

echo = ClientApp()
"""What every node answers with."""


@echo.query("echo")
def _echo(message: Message, _context: Context) -> Message:
    arrays = message.content.array_records[_ARRAYS].to_numpy_ndarrays()
    return Message(RecordDict({_ARRAYS: ArrayRecord(arrays)}), reply_to=message)


@dataclass(frozen=True)
class Shape:
    """Nodes, bytes of the array that goes out and of the one that comes back, and how often all
    nodes are asked."""

    nodes: int = 100
    payload_bytes: tuple[int, ...] = (0, 100_000, 1_000_000)
    waves: int = 5


def run(*, quick: bool = False) -> dict[str, Any]:
    """Messages a second as a JSON-able dict; `ray` is None where Ray is not installed.

    `quick`: few nodes, small arrays."""
    shape = Shape(nodes=4, payload_bytes=(0, 1_000), waves=2) if quick else Shape()
    here = _rates(
        InProcessGrid(dict.fromkeys(range(FIRST_NODE, FIRST_NODE + shape.nodes), echo)), shape
    )
    there, start_s, actors = _on_ray(shape) if find_spec("ray") else (None, None, None)
    return {
        "shape": {
            "nodes": shape.nodes,
            "payload_bytes": list(shape.payload_bytes),
            "waves": shape.waves,
        },
        "messages_per_second": {"in_process_grid": here, "ray": there},
        "grid_over_ray": {size: here[size] / there[size] for size in here} if there else None,
        "ray_actors": actors,
        "ray_start_seconds": start_s,
    }


def _on_ray(shape: Shape) -> tuple[dict[str, float], float, int]:
    """Messages a second, seconds until every node had answered once, and the number of actors."""
    actors, started, found = (
        min(shape.nodes, os.cpu_count() or 1),
        time.perf_counter(),
        list[tuple[dict[str, float], float]](),
    )
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _context: Context) -> None:
        while len(list(grid.get_node_ids())) < shape.nodes:
            time.sleep(_PAUSE_S)
        _wave(grid, 0)
        start_s = time.perf_counter() - started
        found.append((_rates(grid, shape), start_s))

    with rays_folder() as folder:
        play(server, echo, Path(folder), num_nodes=shape.nodes, actors=actors)
    ((rates, start_s),) = found
    return rates, start_s, actors


def _rates(grid: Grid, shape: Shape) -> dict[str, float]:
    """Of each payload: messages a second in the fastest wave."""
    best_s = {
        size: min((_wave(grid, size) for _ in range(shape.waves)), default=math.inf)
        for size in shape.payload_bytes
    }
    return {f"{size} bytes": shape.nodes / seconds for size, seconds in best_s.items()}


def _wave(grid: Grid, payload_bytes: int) -> float:
    """Seconds until all nodes have answered.

    Raises RuntimeError where one fails or sends something else back."""
    content = RecordDict({_ARRAYS: ArrayRecord([np.zeros(payload_bytes, np.uint8)])})
    started = time.perf_counter()
    messages = [Message(content, node, "query.echo") for node in grid.get_node_ids()]
    replies = _replies(grid, list(grid.push_messages(messages)))
    took_s = time.perf_counter() - started
    if any(
        reply.has_error() or len(reply.content.array_records[_ARRAYS]["0"].data) < payload_bytes
        for reply in replies
    ):
        raise RuntimeError("a node did not send back what it was sent")
    return took_s


def _replies(grid: Grid, names: Sequence[str]) -> list[Message]:
    """To all of these messages.

    Flower's own loop sleeps 3 s between looks, which would be all that is measured."""
    waiting, heard = set(names), list[Message]()
    while waiting:
        found: Iterable[Message] = list(grid.pull_messages(sorted(waiting)))
        for reply in found:
            waiting.discard(reply.metadata.reply_to_message_id)
            heard.append(reply)
        if not found:
            time.sleep(_PAUSE_S)
    return heard
