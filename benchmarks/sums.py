"""Sums of a round beside what a user would pick.

The same sums over partitions with Dask, Ray Data and Spark's treeAggregate where these are
installed, on one core. For every item the sum of c [x, x x'] over the users who rated it, x a
vector of 32 integers of the user, as reports are: 560 numbers an item, what an item statistic of a
round is. Theirs: on each part the product of SciPy's sparse matrix of items by users and the dense
rows of users, blocks of 8,192 users, in float64; then the engine's own tree of sums. Ours:
`ExactSums` of a part, merged. All from the same files, read and decoded in the time; of Spark and
Ray, after they have started. With `--data` of a partitioned folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from benchmarks.measuring import fastest
from benchmarks.results import Row, Tables
from fedrec.arrays import Float64s
from fedrec.data.partitions import open_partitions
from fedrec.federation.messages import BlockReports, BlockSpec, Reports, triangle
from fedrec.federation.reports import ExactSums
from fedrec.run.data.describing import partition
from fedrec.settings import load

WIDTH = 32
NUMBERS = 32 + 32 * 33 // 2
_BLOCK = 8_192
Once = Callable[[], Float64s]


def run(*, quick: bool, data: list[str] | None = None) -> Tables:
    """Seconds of one core for one pass, least of three, by engine."""
    rows = list[Row]()
    with TemporaryDirectory(prefix="fedrec-sums-") as folder:
        path = data[0] if data else f"{folder}/parts"
        if not data:
            scenario = load(None, [f"data.preset={'small' if quick else 'ml10m'}"])
            partition(scenario, path, parts=2 if quick else 16, resume=False)
        expected = _ours(path)
        events = open_partitions(path).events
        for name, (module, engine) in ENGINES.items():
            if find_spec(module) is not None:
                with ExitStack() as stack:
                    once = engine(path, stack)
                    same = bool(np.array_equal(once(), expected))
                    took = fastest({name: once}, turns=1 if quick else 3)[name]
                row = {"engine": name, "seconds": took.wall_s, "same_sums": same}
                rows.append(row | {"million_events_a_second": events / took.wall_s / 1e6})
    return {
        "One pass on one core": [
            {**row, "over_ours": row["seconds"] / rows[0]["seconds"]} for row in rows
        ]
    }


def vectors(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """(n, 32) integers of at most 11 bits, a function of each user's number."""
    offsets = np.arange(WIDTH, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    seeds = numbers.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + offsets
    return ((seeds >> np.uint64(40)) % np.uint64(2_047)).astype(np.int32) - 1_023


def plain_sums(path: str, index: int) -> Float64s:
    """(m, 560): what a user of NumPy and SciPy writes."""
    part = open_partitions(path).read_part(index)
    events = part.events
    x = vectors(part.numbers).astype(np.float64)
    total = np.zeros((events.num_items, NUMBERS))
    a, b = triangle(WIDTH)
    for start in range(0, events.num_users, _BLOCK):
        mine = events.users_subset(np.arange(start, min(start + _BLOCK, events.num_users)))
        ones = sparse.csr_matrix(
            (mine.values.astype(np.float64) * 2, mine.items, mine.user_ptr),
            shape=(mine.num_users, mine.num_items),
        )
        rows = x[start : start + _BLOCK]
        total += ones.T @ np.hstack([rows, rows[:, a] * rows[:, b]])
    return total


def _ours(path: str) -> Float64s:
    total, *others = (_exact(path, index) for index in _parts(path))
    for other in others:
        total.merge(other)
    return np.hstack(total.blocks).astype(np.float64)


def _exact(path: str, index: int) -> ExactSums:
    part = open_partitions(path).read_part(index)
    events = part.events
    x = vectors(part.numbers)
    sums = ExactSums(
        [
            BlockSpec("b", "linear", events.num_items, WIDTH, 1.0, 1.0),
            BlockSpec("A", "outer", events.num_items, WIDTH, 1.0, 1.0),
        ]
    )
    twice = (events.values * 2).astype(np.int32)
    for start in range(0, events.num_users, 2 * _BLOCK):
        ptr = events.user_ptr[start : start + 2 * _BLOCK + 1]
        mine = slice(int(ptr[0]), int(ptr[-1]))
        block = BlockReports(twice[mine], x[start : start + 2 * _BLOCK])
        sums.add(Reports(ptr - ptr[0], events.items[mine], (block, block)))
    return sums


def _parts(path: str) -> range:
    return range(len(open_partitions(path).parts))


def _plain(path: str) -> Float64s:
    return sum((plain_sums(path, index) for index in _parts(path)), np.zeros(1))


def _dask(path: str, stack: ExitStack) -> Once:
    dask = import_module("dask")

    def once() -> Float64s:
        totals = [dask.delayed(plain_sums)(path, index) for index in _parts(path)]
        while len(totals) > 1:
            pairs = [totals[start : start + 2] for start in range(0, len(totals), 2)]
            totals = [dask.delayed(np.add)(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        found: Float64s = totals[0].compute(scheduler="synchronous")
        return found

    return once


def _ray_data(path: str, stack: ExitStack) -> Once:
    ray = import_module("ray")
    one = {"env_vars": {"OMP_NUM_THREADS": "1"}}
    quiet = {"log_to_driver": False, "include_dashboard": False}
    ray.init(address="local", num_cpus=1, runtime_env=one, **quiet)
    stack.callback(ray.shutdown)
    data = import_module("ray.data")
    data.DataContext.get_current().enable_progress_bars = False

    def summed(batch: dict[str, Any]) -> dict[str, Any]:
        found = [plain_sums(path, int(index)).ravel() for index in batch["id"]]
        return {"total": np.sum(found, axis=0, keepdims=True)}

    def once() -> Float64s:
        parts = len(_parts(path))
        mapped = data.range(parts, override_num_blocks=parts).map_batches(summed, batch_size=1)
        batches = (batch["total"].sum(axis=0) for batch in mapped.iter_batches(batch_size=1))
        return np.asarray(sum(batches, np.zeros(1)), np.float64).reshape(-1, NUMBERS)

    return once


def _spark(path: str, stack: ExitStack) -> Once:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # that of this environment, which has fedrec
    builder = import_module("pyspark.sql").SparkSession.builder.master("local[1]")
    settings = {"driver.memory": "4g", "ui.enabled": "false", "driver.maxResultSize": "0"}
    for key, value in settings.items():
        builder = builder.config(f"spark.{key}", value)
    session = builder.getOrCreate()
    stack.callback(session.stop)
    context = session.sparkContext
    context.setLogLevel("ERROR")

    def once() -> Float64s:
        parts = _parts(path)
        mapped = context.parallelize(parts, len(parts)).map(lambda index: plain_sums(path, index))
        found: Float64s = mapped.treeAggregate(0.0, np.add, np.add)
        return found

    return once


ENGINES: dict[str, tuple[str, Callable[[str, ExitStack], Once]]] = {
    "fedrec": ("fedrec", lambda path, stack: partial(_ours, path)),
    "NumPy and SciPy in one loop": ("scipy", lambda path, stack: partial(_plain, path)),
    "Dask": ("dask", _dask),
    "Ray Data": ("ray", _ray_data),
    "Spark, treeAggregate": ("pyspark", _spark),
}
"""By name, ours first: the package that it needs, and what makes its sums."""
