"""How fast are blocked SGD and SGLD? Ratings a second at d = 16, 128, 1024, error against time, and
predictions a second.

Shape: MovieLens-10M's, planted, a tenth of it held out; the planted truth gives the error that no
model can beat. The reference of the same run is LIBMF (Chin et al. 2015) where it is installed, for
which `pip install libmf` is enough; `CFLAGS="-O3 -march=native -DUSEAVX -DUSEOMP -fopenmp"` before
it builds it as its authors do. LIBMF's time of a pass is the difference of two trainings, so that
its own preparation does not count; in error against time the preparation of both counts. Forms take
turns and keep their fastest. Both wall time and processor time are told: on a busy machine only the
second says what a core does ("per core" below). SGLD is the same pass with fresh Langevin noise on
every row that is met.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedrec.arrays import Float32s
from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted, planted_truth
from fedrec.factorization.sampling.blocked_sgd import (
    Blocks,
    Diffusion,
    Pass,
    Rows,
    blocks_of,
    descend,
    products,
)
from fedrec.numerics.threads import cores

PROTOTYPES = {"16": 107e6, "128": 32e6, "1024": 6e6}
"""Ratings a second of throw-away numba prototypes of SGD, on two quiet cores and another day."""
PAPER_PREDICTIONS = 8.5e6
"""The paper's abstract, d = 1024: recommendations a second on one machine of 32 virtual cores,
2015."""
RIDGE, RATE, DECAY = 0.03, 0.06, 0.3
"""Of both; the rate of a pass is RATE / (1 + DECAY t).

LIBMF adapts its own from LIBMF_RATE, its authors' choice."""
LIBMF_RATE = 0.1


@dataclass(frozen=True)
class Sizes:
    """Of the benchmark."""

    preset: str = "ml10m"
    widths: tuple[int, ...] = (16, 128, 1024)
    turns: int = 3
    passes: tuple[int, ...] = (1, 2, 4, 8, 16)
    pairs: int = 4_000_000


QUICK = Sizes("small", (8, 24), 1, (1, 2), 2_000)


def run(*, quick: bool = False) -> dict[str, Any]:
    """A JSON-able dict. `quick` shrinks everything to seconds, for tests of the wiring."""
    sizes = QUICK if quick else Sizes()
    everything = planted(SHAPES[sizes.preset], seed=1).interactions
    held_out = np.random.default_rng(1).random(len(everything)) < 0.1
    train, test = everything.select(~held_out), everything.select(held_out)
    floor = planted_truth(SHAPES[sizes.preset], seed=1).noise_floor(test)
    peer = libmf() is not None
    return {
        "shape": {
            "users": train.num_users,
            "items": train.num_items,
            "ratings": len(train),
            "cores": cores(),
        },
        "ratings_per_second": {
            str(d): _speeds(train, d, sizes.turns, peer=peer) for d in sizes.widths
        },
        "prototypes_ratings_per_second": PROTOTYPES,
        "error_against_seconds": {
            "dimension": sizes.widths[0],
            "floor": floor,
            "ours": _our_errors(train, test, sizes.widths[0], sizes.passes),
            "libmf": _libmf_errors(train, test, sizes.widths[0], sizes.passes) if peer else None,
        },
        "predictions_per_second": _predictions(train, sizes.widths[-1], sizes.pairs, sizes.turns),
        "paper_predictions_per_second": PAPER_PREDICTIONS,
    }


def libmf() -> Any | None:
    """LIBMF's binding, or None. It prints where it found itself and compares with `is`."""
    if importlib.util.find_spec("libmf") is None:
        return None
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("libmf.mf")


@dataclass
class Clock:
    """The fastest turn of one form, in wall seconds and in processor seconds of all threads;
    `less`, for what is not to count."""

    wall_s: float = math.inf
    cpu_s: float = math.inf

    def run(self, call: Callable[[], object]) -> None:
        """Time one call."""
        cpu, wall = time.process_time(), time.perf_counter()
        call()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.wall_s, self.cpu_s = min(self.wall_s, wall), min(self.cpu_s, cpu)

    def rates(self, count: int, *, less: Clock | None = None) -> dict[str, float]:
        """Per second of wall time, and per second of one core; nan where the turns were too
        disturbed to subtract."""
        wall, cpu = (
            (self.wall_s, self.cpu_s)
            if less is None
            else (self.wall_s - less.wall_s, self.cpu_s - less.cpu_s)
        )
        return {
            "wall": count / wall if wall > 0 else math.nan,
            "per_core": count / cpu if cpu > 0 else math.nan,
        }


def _speeds(train: Interactions, d: int, turns: int, *, peer: bool) -> dict[str, Any]:
    blocks, rows = _prepared(train, d)
    sgd, sgld = Pass(RATE, keep=1 - RATE * RIDGE), Pass(RATE, time=RATE)
    clocks = {name: Clock() for name in ("sgd", "sgld", "libmf_one_pass", "libmf")}
    descend(rows, blocks, sgd)  # compiles
    descend(rows, blocks, sgld, _NOISE)
    for _ in range(turns):
        clocks["sgd"].run(lambda: descend(rows, blocks, sgd))
        clocks["sgld"].run(lambda: descend(rows, blocks, sgld, _NOISE))
        if peer:
            clocks["libmf_one_pass"].run(lambda: _libmf_fit(train, d, 1))
            clocks["libmf"].run(lambda: _libmf_fit(train, d, 3))
    rates: dict[str, Any] = {name: clocks[name].rates(len(train)) for name in ("sgd", "sgld")}
    rates["sgld_over_sgd"] = rates["sgld"]["per_core"] / rates["sgd"]["per_core"]
    if peer:
        rates["libmf"] = clocks["libmf"].rates(2 * len(train), less=clocks["libmf_one_pass"])
        rates["sgd_over_libmf"] = {
            by: rates["sgd"][by] / rates["libmf"][by] for by in ("wall", "per_core")
        }
    return rates


_NOISE = Diffusion(ridge=1.0, temperature=1e-3, key=7)


def _prepared(train: Interactions, d: int) -> tuple[Blocks, Rows]:
    rng = np.random.default_rng(0)
    blocks = blocks_of(train, (train.values - _mid(train)).astype(np.float32), stripes=8)
    # as LIBMF starts
    U, V = (
        (rng.random((n, d)) / math.sqrt(d)).astype(np.float32)
        for n in (train.num_users, train.num_items)
    )
    return blocks, Rows.of(U, V, blocks)


def _mid(ratings: Interactions) -> float:
    return sum(ratings.value_range) / 2


def _our_errors(
    train: Interactions, test: Interactions, d: int, passes: tuple[int, ...]
) -> list[dict[str, float]]:
    """Passes, seconds since the ratings were handed over, and RMSE on test."""
    started, curve = time.perf_counter(), list[dict[str, float]]()
    blocks, rows = _prepared(train, d)
    away = 0.0
    for t in range(max(passes)):
        rate = RATE / (1 + DECAY * t)
        descend(rows, blocks, Pass(rate, keep=1 - rate * RIDGE))
        if t + 1 in passes:
            seconds, paused = time.perf_counter() - started - away, time.perf_counter()
            found = products(rows, blocks, test.users.astype(np.int32), test.items) + np.float32(
                _mid(train)
            )
            curve.append({"passes": t + 1, "seconds": seconds, "rmse": _rmse(found, test)})
            away += time.perf_counter() - paused
    return curve


def _libmf_errors(
    train: Interactions, test: Interactions, d: int, passes: tuple[int, ...]
) -> list[dict[str, float]]:
    curve = list[dict[str, float]]()
    for count in passes:
        started = time.perf_counter()
        engine = _libmf_fit(train, d, count)
        seconds = time.perf_counter() - started
        P, Q = engine.p_factors(), engine.q_factors()
        found = np.einsum("nd,nd->n", P[test.users], Q[test.items]) + np.float32(_mid(train))
        curve.append({"passes": count, "seconds": seconds, "rmse": _rmse(found, test)})
    return curve


def _libmf_fit(train: Interactions, d: int, passes: int) -> Any:
    module = libmf()
    assert module is not None
    table = np.column_stack([train.users, train.items, train.values - _mid(train)]).astype(
        np.float32
    )
    engine = module.MF(k=d, nr_threads=cores(), nr_iters=passes, nr_bins=20, quiet=True,
    eta=LIBMF_RATE,
                       lambda_p1=0.0, lambda_q1=0.0, lambda_p2=RIDGE, lambda_q2=RIDGE)  # fmt: skip
    engine.fit(table)
    return engine


def _rmse(found: Float32s, test: Interactions) -> float:
    low, high = test.value_range
    return float(
        np.sqrt(np.mean((np.clip(found.astype(np.float64), low, high) - test.values) ** 2))
    )


def _predictions(train: Interactions, d: int, pairs: int, turns: int) -> dict[str, Any]:
    """Of pairs as they come in the data, user after user; and of whole catalogues, which is a dense
    product."""
    blocks, rows = _prepared(train, d)
    users, items = train.users[:pairs].astype(np.int32), train.items[:pairs]
    batch = rows.U[: max(1, min(1024, 10 * pairs // train.num_items))]
    pair_clock, catalogue_clock = Clock(), Clock()
    with threadpool_limits(cores(), "blas"):
        for _ in range(turns + 1):
            pair_clock.run(lambda: products(rows, blocks, users, items))
            catalogue_clock.run(lambda: batch @ rows.V.T)
    return {
        "dimension": d,
        "pairs": pair_clock.rates(len(users)),
        "catalogues": catalogue_clock.rates(len(batch) * train.num_items),
    }
