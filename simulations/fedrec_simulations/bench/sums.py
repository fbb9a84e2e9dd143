"""The same sums over partitions with what a user would pick: Dask, Ray Data, Spark's treeAggregate;
per core, beside ours.

For every item the sum of c [x, x x'] over the users who rated it, x a vector of 32 integers of the
user, as reports are: 560 numbers an item, what an item statistic of a round is. Theirs: on each
part the product of scipy's sparse matrix of items by users and the dense rows of users, blocks of
8,192 users, in float64; then the engine's own tree of sums. Ours: `ExactSums` of a part, merged.
All on one core, from the same files, read and decoded in the time; of Spark and Ray, after they
have started.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.partitions import PartitionedData, open_partitions
from fedrec.federation.messages import BlockReports, BlockSpec, Reports, triangle
from fedrec.federation.sums import ExactSums
from fedrec.run.data.partitioning import partition
from fedrec.settings import load
from fedrec_simulations.experiments.rows import table

WIDTH, PARTS, REPEATS = 32, 16, 3
_BLOCK = 8_192


def run(data: str, *, quick: bool) -> dict[str, Any]:
    """Seconds of one core for one pass, least of three, by engine; engines that are not installed
    are named. data: a partitioned folder."""
    with TemporaryDirectory(prefix="fedrec-sums-") as folder:
        path = data or f"{folder}/parts"
        if not data:
            preset = "small" if quick else "ml10m"
            partition(
                load(None, [f"data.preset={preset}"]),
                path,
                parts=2 if quick else PARTS,
                resume=False,
            )
        expected = _ours(path)()
        rows, missing = list[dict[str, Any]](), list[str]()
        for name, (module, engine) in ENGINES.items():
            if find_spec(module) is None:
                missing.append(name)
                continue
            once, close = engine(path)
            found = once()  # kernels are compiled, workers are up
            seconds = min(_timed(once) for _ in range(1 if quick else REPEATS))
            close()
            rows.append(
                {"engine": name, "seconds": seconds, "equal": bool(np.array_equal(found, expected))}
            )
        ours = next(row["seconds"] for row in rows if row["engine"] == OURS)
        events = open_partitions(path).events
        lines = [
            [
                r["engine"],
                f"{r['seconds']:.2f}",
                f"{r['seconds'] / ours:.1f}",
                f"{events / r['seconds'] / 1e6:.1f}",
            ]
            for r in rows
        ]
        header = ["engine", "seconds", "times ours", "million events a second and core"]
        return {
            "events": events,
            "rows": rows,
            "not_installed": missing,
            "table": table(header, lines),
        }


def _timed(once: Callable[[], Any]) -> float:
    started = time.perf_counter()
    once()
    return time.perf_counter() - started


def vectors(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """(n, 32) integers of at most 11 bits, a function of each user's number."""
    offsets = np.arange(WIDTH, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    seeds = numbers.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + offsets
    return ((seeds >> np.uint64(40)) % np.uint64(2_047)).astype(np.int32) - 1_023


def plain_sums(path: str, index: int) -> Float64s:
    """(m, 560): what a user of numpy and scipy writes."""
    part = open_partitions(path).read_part(index)
    events, x = part.events, vectors(part.numbers).astype(np.float64)
    total, (a, b) = np.zeros((events.num_items, WIDTH + WIDTH * (WIDTH + 1) // 2)), triangle(WIDTH)
    for start in range(0, events.num_users, _BLOCK):
        mine = events.users_subset(np.arange(start, min(start + _BLOCK, events.num_users)))
        ones = sparse.csr_matrix(
            (mine.values.astype(np.float64) * 2, mine.items, mine.user_ptr),
            shape=(mine.num_users, mine.num_items),
        )
        rows = x[start : start + _BLOCK]
        total += ones.T @ np.hstack([rows, rows[:, a] * rows[:, b]])
    return total


def _exact(data: PartitionedData, index: int) -> ExactSums:
    part = data.read_part(index)
    events, x = part.events, vectors(part.numbers)
    specs = [
        BlockSpec("b", "linear", events.num_items, WIDTH, 1.0, 1.0),
        BlockSpec("A", "outer", events.num_items, WIDTH, 1.0, 1.0),
    ]
    sums, twice = ExactSums(specs), (events.values * 2).astype(np.int32)
    for start in range(0, events.num_users, 2 * _BLOCK):
        stop = min(start + 2 * _BLOCK, events.num_users)
        ptr = events.user_ptr[start : stop + 1]
        mine = slice(int(ptr[0]), int(ptr[-1]))
        block = BlockReports(twice[mine], x[start:stop])
        sums.add(Reports(ptr - ptr[0], events.items[mine], (block, block)))
    return sums


def _ours(path: str) -> Callable[[], Float64s]:
    def once() -> Float64s:
        data = open_partitions(path)
        total = _exact(data, 0)
        for index in range(1, len(data.parts)):
            total.merge(_exact(data, index))
        return np.hstack(total.blocks).astype(np.float64)

    return once


Engine = Callable[[str], tuple[Callable[[], Float64s], Callable[[], None]]]


def _fedrec(path: str) -> tuple[Callable[[], Float64s], Callable[[], None]]:
    return _ours(path), lambda: None


def _plain(path: str) -> tuple[Callable[[], Float64s], Callable[[], None]]:
    return lambda: sum(
        (plain_sums(path, index) for index in _parts(path)), np.zeros(1)
    ), lambda: None


def _dask(path: str) -> tuple[Callable[[], Float64s], Callable[[], None]]:
    dask = import_module("dask")

    def once() -> Float64s:
        totals = [dask.delayed(plain_sums)(path, index) for index in _parts(path)]
        while len(totals) > 1:
            totals = [
                dask.delayed(np.add)(*pair) if len(pair) == 2 else pair[0]
                for pair in _pairs(totals)
            ]
        found: Float64s = totals[0].compute(scheduler="synchronous")
        return found

    return once, lambda: None


def _ray_data(path: str) -> tuple[Callable[[], Float64s], Callable[[], None]]:
    ray = import_module("ray")
    ray.init(
        address="local",
        num_cpus=1,
        log_to_driver=False,
        include_dashboard=False,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    data = import_module("ray.data")
    data.DataContext.get_current().enable_progress_bars = False

    def summed(batch: dict[str, Any]) -> dict[str, Any]:
        return {
            "total": np.stack([plain_sums(path, int(index)).ravel() for index in batch["id"]]).sum(
                axis=0, keepdims=True
            )
        }

    def once() -> Float64s:
        parts = len(_parts(path))
        made = data.range(parts, override_num_blocks=parts).map_batches(summed, batch_size=1)
        total = sum(
            (batch["total"].sum(axis=0) for batch in made.iter_batches(batch_size=1)), np.zeros(1)
        )
        return np.asarray(total, np.float64).reshape(-1, WIDTH + WIDTH * (WIDTH + 1) // 2)

    return once, ray.shutdown


def _spark(path: str) -> tuple[Callable[[], Float64s], Callable[[], None]]:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # that of this environment, which has fedrec
    sql = import_module("pyspark.sql")
    session = (
        sql.SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
    )
    session = session.config("spark.driver.maxResultSize", "0").getOrCreate()
    context = session.sparkContext
    context.setLogLevel("ERROR")

    def once() -> Float64s:
        parts = _parts(path)
        mapped = context.parallelize(parts, len(parts)).map(lambda index: plain_sums(path, index))
        found: Float64s = mapped.treeAggregate(0.0, np.add, np.add)
        return found

    return once, session.stop


def _parts(path: str) -> range:
    return range(len(open_partitions(path).parts))


def _pairs(values: list[Any]) -> list[list[Any]]:
    return [values[start : start + 2] for start in range(0, len(values), 2)]


OURS = "fedrec"
ENGINES: dict[str, tuple[str, Engine]] = {
    OURS: ("fedrec", _fedrec),
    "numpy and scipy in one loop": ("scipy", _plain),
    "Dask": ("dask", _dask),
    "Ray Data": ("ray", _ray_data),
    "Spark, treeAggregate": ("pyspark", _spark),
}
