"""Blocked SGD and SGLD.

Ratings a second, error against time and predictions a second at MovieLens-10M's shape, planted, a
tenth of it held out; the planted truth gives the error that no model can beat. Beside it LIBMF
(Chin et al. 2015) where it is installed: `pip install libmf`, with
`CFLAGS="-O3 -march=native -DUSEAVX -DUSEOMP -fopenmp"` as its authors build it. Its time of a pass
is the difference of two trainings, so that its own preparation does not count; in error against
time the preparation of both counts. SGLD is the same pass with fresh Langevin noise on every row
that is met. On a busy machine only processor time says what a core does. The paper's abstract says
8.5 million predictions a second on 32 virtual cores, d = 1024, in 2015.
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
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measuring import Took, fastest
from benchmarks.results import Row, Tables
from fedrec.arrays import Float32s
from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted, planted_truth
from fedrec.numerics.threads import cores
from fedrec_research.fast_dpmf.blocked_sgd import (
    Blocks,
    Diffusion,
    Pass,
    Rows,
    blocks_of,
    descend,
    products,
)

RIDGE = 0.03
RATE = 0.06
DECAY = 0.3
"""Of both; the rate of a pass is RATE / (1 + DECAY t).

LIBMF adapts its own from LIBMF_RATE, its authors' choice."""
LIBMF_RATE = 0.1
_NOISE = Diffusion(ridge=1.0, temperature=1e-3, key=7)


def run(*, quick: bool) -> Tables:
    """Speeds, errors and predictions."""
    shape = SHAPES["small" if quick else "ml10m"]
    widths, turns = ((8, 24), 1) if quick else ((16, 128, 1024), 3)
    passes = (1, 2) if quick else (1, 2, 4, 8, 16)
    everything = planted(shape, seed=1).interactions
    held_out = np.random.default_rng(1).random(len(everything)) < 0.1
    train = everything.select(~held_out)
    test = everything.select(held_out)
    floor = planted_truth(shape, seed=1).noise_floor(test)
    d = widths[0]
    # first: it compiles
    speeds = [row for width in widths for row in _speeds(train, width, turns)]
    curves = [*_our_errors(train, test, d, passes)]
    if libmf():
        curves += _libmf_errors(train, test, d, passes)
    return {
        "Ratings a second": speeds,
        "Error against seconds": [{"d": d, **row, "rmse_of_the_truth": floor} for row in curves],
        "Predictions a second": _predictions(train, widths[-1], turns),
    }


def libmf() -> Any | None:
    """LIBMF's binding, or None. It prints where it found itself and compares with `is`."""
    if importlib.util.find_spec("libmf") is None:
        return None
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("libmf.mf")


def _speeds(train: Interactions, d: int, turns: int) -> list[Row]:
    blocks, rows = _prepared(train, d)
    sgd = Pass(RATE, keep=1 - RATE * RIDGE)
    sgld = Pass(RATE, time=RATE)
    forms: dict[str, Callable[[], object]] = {
        "SGD": lambda: descend(rows, blocks, sgd),
        "SGLD": lambda: descend(rows, blocks, sgld, _NOISE),
    }
    if libmf():
        forms["one pass"] = partial(_libmf_fit, train, d, 1)
        forms["LIBMF"] = partial(_libmf_fit, train, d, 3)
    took = fastest(forms, turns=turns)
    if "LIBMF" in took:
        one = took.pop("one pass")
        three = took["LIBMF"]
        took["LIBMF"] = Took((three.wall_s - one.wall_s) / 2, (three.cpu_s - one.cpu_s) / 2)
    ours = took["SGD"]
    return [{"d": d, **_rates(name, each, ours, len(train))} for name, each in took.items()]


def _rates(name: str, took: Took, ours: Took, count: int) -> Row:
    """Millions a second of wall time and of one core; nan where turns were too disturbed to
    subtract."""
    return {
        "form": name,
        "million_a_second": count / took.wall_s / 1e6 if took.wall_s > 0 else math.nan,
        "million_a_second_and_core": count / took.cpu_s / 1e6 if took.cpu_s > 0 else math.nan,
        "wall_time_over_ours": took.wall_s / ours.wall_s,
        "processor_time_over_ours": took.cpu_s / ours.cpu_s if ours.cpu_s else math.nan,
    }


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
) -> list[Row]:
    """Passes, seconds since the ratings were handed over, and RMSE on test."""
    started = time.perf_counter()
    curve = list[Row]()
    blocks, rows = _prepared(train, d)
    away = 0.0
    for t in range(max(passes)):
        rate = RATE / (1 + DECAY * t)
        descend(rows, blocks, Pass(rate, keep=1 - rate * RIDGE))
        if t + 1 in passes:
            paused = time.perf_counter()
            found = products(rows, blocks, test.users.astype(np.int32), test.items)
            curve.append(_point("ours", t + 1, paused - started - away, found, test))
            away += time.perf_counter() - paused
    return curve


def _libmf_errors(
    train: Interactions, test: Interactions, d: int, passes: tuple[int, ...]
) -> list[Row]:
    curve = list[Row]()
    for count in passes:
        started = time.perf_counter()
        engine = _libmf_fit(train, d, count)
        seconds = time.perf_counter() - started
        found = np.einsum(
            "nd,nd->n", engine.p_factors()[test.users], engine.q_factors()[test.items]
        )
        curve.append(_point("LIBMF", count, seconds, found, test))
    return curve


def _libmf_fit(train: Interactions, d: int, passes: int) -> Any:
    module = libmf()
    assert module is not None
    table = np.column_stack([train.users, train.items, train.values - _mid(train)])
    ridges = dict.fromkeys(("lambda_p2", "lambda_q2"), RIDGE)
    lassos = dict.fromkeys(("lambda_p1", "lambda_q1"), 0.0)
    settings = {"k": d, "nr_threads": cores(), "nr_iters": passes, "nr_bins": 20, "quiet": True}
    engine = module.MF(eta=LIBMF_RATE, **settings, **ridges, **lassos)
    engine.fit(table.astype(np.float32))
    return engine


def _point(form: str, passes: int, seconds: float, found: Float32s, test: Interactions) -> Row:
    low, high = test.value_range
    off = np.clip(found.astype(np.float64) + _mid(test), low, high) - test.values
    rmse = float(np.sqrt(np.mean(off**2)))
    return {"form": form, "passes": passes, "seconds": seconds, "rmse": rmse}


def _predictions(train: Interactions, d: int, turns: int) -> list[Row]:
    """Measure predictions for pairs as they come in the data, user after user, and for whole
    catalogues, which is a dense product."""
    blocks, rows = _prepared(train, d)
    users = train.users[:4_000_000].astype(np.int32)
    items = train.items[:4_000_000]
    batch = rows.U[: max(1, min(1024, 10 * len(users) // train.num_items))]
    with threadpool_limits(cores(), "blas"):
        took = fastest(
            {
                "pair by pair": lambda: products(rows, blocks, users, items),
                "by catalogue": lambda: batch @ rows.V.T,
            },
            turns=turns,
        )
    counts = {"pair by pair": len(users), "by catalogue": len(batch) * train.num_items}
    return [
        {
            "form": name,
            "d": d,
            "million_a_second": counts[name] / each.wall_s / 1e6,
            "million_a_second_and_core": counts[name] / each.cpu_s / 1e6
            if each.cpu_s
            else math.nan,
        }
        for name, each in took.items()
    ]
