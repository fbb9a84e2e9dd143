"""One way to use the cores: run a compiled, lock-free kernel on consecutive ranges.

Kernels are numba functions with `nogil=True`, not `parallel=True`: they compile several times
faster, and a result that belongs to one user or one item never depends on how the ranges were cut.
Ranges are of equally many rows, or of rows with equal work.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedrec.arrays import Int64s

PIECES = 32
"""Ranges of rows with equal work; more than the cores, so that none waits long for the last."""


SMALL = 100_000
"""Work of less than about a tenth of a millisecond, which handing over to threads would only slow
down."""


@cache
def _limit() -> list[int]:
    return []


def use_at_most(number: int) -> None:
    """From now on this process uses so many cores: for one of several workers.

    Before the first `map_ranges`, whose pool keeps its size."""
    _limit()[:] = [number]


def one_blas_thread() -> Any:
    """A context in which sums do not depend on the machine: they do on the number of BLAS threads.
    With one, a notebook computes the bytes that the command line computes."""
    return threadpool_limits(limits=1, user_api="blas")


def cores() -> int:
    """How many cores this process may use."""
    return min(
        [
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1,
            *_limit(),
        ]
    )


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="fedrec")


def map_ranges(kernel: Callable[[int, int], None], size: int, *, pieces_per_core: int = 4) -> None:
    """Call `kernel(start, stop)` on ranges that cover [0, size), on all cores; the first exception
    is raised.

    The kernel must release the interpreter lock and write only what belongs to its range.
    """
    pieces = min(size, cores() * pieces_per_core)
    if pieces <= 1 or cores() == 1:
        kernel(0, size)
        return
    bounds = [size * p // pieces for p in range(pieces + 1)]
    futures = [_pool().submit(kernel, a, b) for a, b in itertools.pairwise(bounds)]
    for future in futures:
        future.result()


def map_rows(kernel: Callable[[int, int], None], ptr: Int64s, *, row_cost: int = 8) -> None:
    """Call `kernel(first_row, last_row)` on ranges of equal work: a row costs its events plus
    `row_cost`."""
    work = ptr + row_cost * np.arange(len(ptr))
    if work[-1] < SMALL:
        kernel(0, len(ptr) - 1)
        return
    bounds = np.searchsorted(work, np.linspace(0, work[-1], PIECES + 1)).clip(0, len(ptr) - 1)
    bounds[0] = 0
    bounds[-1] = len(ptr) - 1
    map_ranges(
        lambda a, b: kernel(int(bounds[a]), int(bounds[b])),
        PIECES,
        pieces_per_core=PIECES // cores() or 1,
    )


def peak_rss_mb() -> float:
    """The most memory that this process has had; not a number where the system does not say."""
    try:
        usage = import_module("resource")
    except ModuleNotFoundError:  # Windows
        return math.nan
    return float(usage.getrusage(usage.RUSAGE_SELF).ru_maxrss / 1024)
