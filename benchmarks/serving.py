"""The serving server under load.

Latency, queries a second and memory of a real `fedrec serve`, and a load generator, each a process,
on the same cores. Bundles hold standard normal numbers: m items of 64, 32 coefficients, k = 10, no
filters, queries of standard normal coefficients. A bare uvicorn and a bare grpc.aio that answer the
same bytes take turns with it. The server has its default settings (exact ranking
whatever the size) but for limits a peer, which this machine's own callers do not have. One query at
a time tells the latency; 2 to 64 callers that each wait for their answer tell queries a second, of
server and generator together. Memory is the server's resident set, beside the item vectors alone.

Beside each number of callers: FAISS flat within the benchmark, on all cores, with as many
questions in a batch as there are callers, and nothing carried or read; and the p50 over one pass on
all cores over the 8-bit codes, summed as 64-bit words. `equal_lists`: how many questions have the
exact list to the last bit of its scores. Items of these two are drawn like the bundle's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import catalogues
from benchmarks.measuring import memory_mb, processor_s
from benchmarks.results import Row, Tables
from benchmarks.serving_echo import echo
from benchmarks.serving_load import Door, Generator, Job
from benchmarks.serving_process import Served, Shape, random_bundle, served
from fedrec.numerics.threads import cores, map_ranges
from fedrec.serving.bundle import FILE
from fedrec.serving.compressed import Compressed
from fedrec.serving.ranking import Exact


def run(*, quick: bool) -> Tables:
    """Rows of load, and of memory. `quick`: one small shape."""
    shapes = [Shape(500, 16, 8)] if quick else [Shape(m) for m in (10_677, 100_000, 1_000_000)]
    load = list[Row]()
    memory = list[Row]()
    peers = list[Row]()
    lists = list[Row]()
    with Generator() as ask:
        for shape in shapes:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                random_bundle(folder / FILE, shape, seed=1)
                with served(folder, folder) as server:
                    idle_mb = memory_mb(server.process.pid)
                    rows = [*_rows(server, shape, ask, quick=quick)]
                    memory.append(_memory(server, shape, idle_mb))
            load += rows
            catalogue = catalogues.made(shape.items)
            coded = Compressed(catalogue)
            peers += _peers(catalogue, coded, rows)
            asked = catalogues.questions_of(np.random.default_rng(3), 64 if quick else 10_000)
            equal = catalogues.equal_lists(coded, Exact(catalogue), asked)
            lists.append(
                {"items_x_width": shape.name, "questions": len(asked), "equal_lists": equal}
            )
    return {
        "Load": load,
        "Beside FAISS flat and one pass over the codes": peers,
        "Lists": lists,
        "Memory of the server, MB": memory,
    }


def _peers(catalogue: Any, coded: Compressed, load: list[Row]) -> Iterator[Row]:
    import faiss

    faiss.omp_set_num_threads(cores())
    flat = faiss.IndexFlatIP(catalogue.items.shape[1])
    flat.add(catalogue.items)
    words = coded.codes.reshape(-1).view(np.int64)
    pass_ms = 1e3 * _median_s(lambda: map_ranges(lambda a, b: words[a:b].sum(), len(words)))
    rng = np.random.default_rng(2)
    # the BLAS that FAISS brings, too
    with threadpool_limits(cores(), "blas"):
        for row in load:
            users = catalogues.users_of(
                catalogue, catalogues.questions_of(rng, int(str(row["callers"])))
            )
            theirs = len(users) / _median_s(partial(flat.search, users, 10))
            yield {
                **{name: row[name] for name in ("items_x_width", "protocol", "callers")},
                "faiss_flat_a_second": theirs,
                "over_faiss_flat": float(str(row["queries_a_second"])) / theirs,
                "pass_ms": pass_ms,
                "p50_over_a_pass": float(str(row["p50_ms"])) / pass_ms,
            }


def _median_s(work: Callable[[], object], *, turns: int = 7) -> float:
    """Median seconds of turns after a first one."""
    took = list[float]()
    for _ in range(turns + 1):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return float(np.median(took[1:]))


def _memory(server: Served, shape: Shape, idle_mb: float) -> Row:
    peak_mb = memory_mb(server.process.pid, peak=True)
    return {
        "items_x_width": shape.name,
        "item_vectors": shape.mb,
        "idle": idle_mb,
        "after_the_load": memory_mb(server.process.pid),
        "peak": peak_mb,
        "peak_over_item_vectors": peak_mb / shape.mb,
    }


def _rows(server: Served, shape: Shape, ask: Generator, *, quick: bool) -> Iterator[Row]:
    """By protocol and number of callers; one caller asks at least so many questions that its p99
    says something."""
    many, seconds, least = ((4,), 0.2, 50) if quick else ((2, 4, 8, 16, 32, 64), 4.0, 400)
    addresses: dict[Door, str] = {"grpc": server.grpc, "http": server.http}
    bare: dict[Door, str]
    with echo(server.version, 10) as (grpc, http):
        bare = {"grpc": grpc, "http": http}
        yield from _load(server, shape, ask, addresses, bare, (1, *many), seconds, least)


def _load(
    server: Served,
    shape: Shape,
    ask: Generator,
    addresses: dict[Door, str],
    bare: dict[Door, str],
    numbers: tuple[int, ...],
    seconds: float,
    least: int,
) -> Iterator[Row]:
    told = server.version, shape.coefficients
    for door, address in addresses.items():
        alone = 0.0
        for callers in numbers:
            least_now = least if callers == 1 else 0
            echoed = ask(Job(door, bare[door], *told, callers, seconds / 2))
            before_s = processor_s(server.process.pid)
            job = Job(door, address, *told, callers, seconds, least_now)
            seen = ask(job)
            used_s = processor_s(server.process.pid) - before_s
            counted = len(seen.latency_s)
            warm_up = callers * job.warm_up  # answered before the clock started
            alone = alone or seen.per_second
            p50, p90, p99 = (1e3 * np.percentile(seen.latency_s, (50, 90, 99))).tolist()
            yield {
                "items_x_width": shape.name,
                "protocol": door,
                "callers": callers,
                "queries_a_second": seen.per_second,
                "over_one_caller": seen.per_second / alone,
                "over_bare_echo": seen.per_second / echoed.per_second,
                "p50_ms": p50,
                "p90_ms": p90,
                "p99_ms": p99,
                "server_cores": used_s * counted / (counted + warm_up) / seen.took_s,
                "generator_cores": seen.cpu_s / seen.took_s,
            }
