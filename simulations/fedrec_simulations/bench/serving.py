"""How fast does `fedrec serve` answer, and in how much memory? A real server, and a load generator
in a process of its own.

Bundles hold standard normal numbers: m items of 64, 32 coefficients, k = 10, no filters, queries of
standard normal coefficients. The server has its default settings (exact ranking whatever the size)
but for limits a peer, which this machine's own callers do not have. One query at a time tells the
latency; 2 to 64 callers that each wait for their answer tell queries a second, of server and
generator together on this machine's cores. Memory is the server's resident set, beside the item
vectors alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.serving.bundle import FILE
from fedrec.storage import finite
from fedrec_simulations.bench.serving_load import Door, Generator, Job
from fedrec_simulations.bench.serving_process import Served, Shape, random_bundle, served
from fedrec_simulations.experiments.rows import table

SHAPES = (Shape(10_677), Shape(100_000), Shape(1_000_000))
CALLERS = (1, 2, 4, 8, 16, 32, 64)
DOORS: tuple[Door, ...] = ("grpc", "http")


@dataclass(frozen=True)
class Effort:
    """How long is measured: seconds a number of callers, and at least so many queries one at a time
    on the first shape."""

    shapes: Sequence[Shape] = SHAPES
    callers: Sequence[int] = CALLERS
    seconds: float = 4.0
    least: int = 4_000


QUICK = Effort((Shape(500, 16, 8),), (1, 4), 0.2, 50)


def run(*, quick: bool = False) -> dict[str, Any]:
    """All shapes as a JSON-able dict; `grpc` and `http` are the first shape's headline.

    `quick`: one small shape, for tests."""
    effort = QUICK if quick else Effort()
    with Generator() as ask:
        shapes = {
            shape.name: _measured(shape, effort, ask, effort.least if not place else 0)
            for place, shape in enumerate(effort.shapes)
        }
    first = shapes[effort.shapes[0].name]
    headlines = {door: headline(first[door]) for door in DOORS}
    return dict(
        finite(
            {
                "protocol": " ".join((__doc__ or "").split("\n\n")[1].split()),
                "shapes": shapes,
                **headlines,
            }
        )
    )


def headline(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of one door: latency of one query at a time, and the most queries a second."""
    best = max(rows, key=lambda row: row["qps"])
    return {
        "p50_ms": rows[0]["p50_ms"],
        "p99_ms": rows[0]["p99_ms"],
        "qps": best["qps"],
        "callers": best["callers"],
    }


def _measured(shape: Shape, effort: Effort, ask: Generator, least: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_bundle(folder / FILE, shape, seed=1)
        with served(folder, folder) as server:
            idle_mb = server.memory_mb()
            rows: dict[str, Any] = {
                door: [_row(server, shape, door, n, effort, ask, least) for n in effort.callers]
                for door in DOORS
            }
            memory = {
                "idle_mb": idle_mb,
                "after_mb": server.memory_mb(),
                "peak_mb": server.memory_mb("VmHWM"),
            }
    model = {"coefficients": shape.coefficients, "model_mb": shape.mb}
    return {**model, **memory, "peak_over_model": memory["peak_mb"] / shape.mb, **rows}


def _row(
    server: Served,
    shape: Shape,
    door: Door,
    callers: int,
    effort: Effort,
    ask: Generator,
    least: int,
) -> dict[str, float]:
    address, before_s = getattr(server, door), server.cpu_s()
    seen = ask(
        Job(
            door,
            address,
            server.version,
            shape.coefficients,
            callers,
            effort.seconds,
            least if callers == 1 else 0,
        )
    )
    p50, p90, p99 = (1e3 * np.percentile(seen.latency_s, (50, 90, 99))).tolist()
    return {
        "callers": callers,
        "queries": len(seen.latency_s),
        "qps": seen.per_second,
        "p50_ms": p50,
        "p90_ms": p90,
        "p99_ms": p99,
        "server_cores": (server.cpu_s() - before_s) / seen.took_s,
        "generator_cores": seen.cpu_s / seen.took_s,
    }


def markdown(result: dict[str, Any]) -> str:
    """A line per shape and door, then memory."""
    shapes = sorted(result["shapes"].items(), key=lambda shape: float(shape[1]["model_mb"]))
    lines = [[f"{name}, {door}", *_line(found[door])] for name, found in shapes for door in DOORS]
    head = (
        "items x width, protocol",
        "p50, ms",
        "p99, ms",
        "queries a second",
        "at callers",
        "p50 there, ms",
        "p99 there, ms",
    )
    sizes = [
        [
            name,
            *(f"{found[key]:,.0f}" for key in ("model_mb", "idle_mb", "after_mb", "peak_mb")),
            f"{found['peak_over_model']:.2f}",
        ]
        for name, found in shapes
    ]
    memory = table(
        (
            "memory of the server, MB",
            "item vectors",
            "idle",
            "after the load",
            "peak",
            "peak over item vectors",
        ),
        sizes,
    )
    return f"{result['protocol']}\n\n{table(head, lines)}\n\n{memory}"


def _line(rows: Sequence[dict[str, float]]) -> list[str]:
    one, best = rows[0], max(rows, key=lambda row: row["qps"])
    return [
        *(f"{one[key]:.2f}" for key in ("p50_ms", "p99_ms")),
        f"{best['qps']:,.0f}",
        f"{best['callers']:.0f}",
        *(f"{best[key]:.1f}" for key in ("p50_ms", "p99_ms")),
    ]
