"""Alternating least squares.

A whole iteration of exact ALS, both sides, d = 64, beside `implicit`, at MovieLens-10M's shape as
clicks, generated. Both minimise the loss of Hu, Koren and Volinsky with the same confidence and
ridge, from the same vectors: after one iteration `implicit` with its Cholesky solver holds ours up
to float32 rounding. It runs with as many threads as there are cores and its BLAS on one, as its
authors advise, and its time is the one that it reports; of each form the least of turns counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import implicit.cpu.als
import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.generated import ML10M, QUICK, generate
from benchmarks.results import Row, Tables
from fedrec.factorization.least_squares import solve_clicks
from fedrec.numerics.segments import order_by_item
from fedrec.numerics.threads import cores

RIDGE = 1.0
ALPHA = 1.0


def run(*, quick: bool) -> Tables:
    """Seconds of each form."""
    shape, d, turns = (QUICK, 8, 1) if quick else (ML10M, 64, 3)
    rng = np.random.default_rng(0)
    clicks = generate(shape, rng=rng)
    V = (0.1 * rng.standard_normal((shape.items, d))).astype(np.float32)
    order = order_by_item(clicks.user_ptr, clicks.items, clicks.num_items)
    confidence = np.full(len(clicks), 1 + ALPHA, np.float32)
    matrix = sparse.csr_matrix(
        (confidence, clicks.items, clicks.user_ptr.astype(np.int32)),
        shape=(shape.users, shape.items),
    )

    def ours() -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        U = solve_clicks(clicks.user_ptr, clicks.items, V, ridge=RIDGE, alpha=ALPHA)
        found = solve_clicks(order.item_ptr, order.users, U, ridge=RIDGE, alpha=ALPHA)
        return time.perf_counter() - start, found

    forms: dict[str, Callable[[], tuple[float, np.ndarray]]] = {
        "ours": ours,
        "implicit, Cholesky": partial(_implicit, matrix, V, use_cg=False),
        "implicit, three CG steps": partial(_implicit, matrix, V, use_cg=True),
    }
    _, expected = ours()  # compiles
    seconds = dict.fromkeys(forms, float("inf"))
    wrong = dict[str, float]()
    for _ in range(turns):
        for name, form in forms.items():
            took, found = form()
            seconds[name] = min(seconds[name], took)
            wrong[name] = float(np.abs(found - expected).max() / np.abs(expected).max())
    rows: list[Row] = [
        {
            "form": name,
            "d": d,
            "seconds": seconds[name],
            "over_ours": seconds[name] / seconds["ours"],
            "largest_difference": wrong[name],
        }
        for name in forms
    ]
    return {"One iteration, both sides": rows}


def _implicit(
    clicks: sparse.csr_matrix, V: np.ndarray, *, use_cg: bool
) -> tuple[float, np.ndarray]:
    """Seconds of one iteration of `implicit` from V, as it reports them itself, and its item
    vectors."""
    took: list[float] = []
    with threadpool_limits(1, "blas"):
        model = implicit.cpu.als.AlternatingLeastSquares(
            factors=V.shape[1],
            regularization=RIDGE,
            alpha=1.0,
            iterations=1,
            use_cg=use_cg,
            num_threads=cores(),
            random_state=0,
        )
        model.user_factors = np.zeros((clicks.shape[0], V.shape[1]), np.float32)
        model.item_factors = V.copy()
        model.fit(
            clicks,
            show_progress=False,
            callback=lambda _iteration, elapsed, _loss: took.append(elapsed),
        )
    return took[0], np.asarray(model.item_factors)
