"""How fast is a whole iteration of exact alternating least squares? Both sides, d = 64, against
`implicit`.

Shape: MovieLens-10M's as clicks, generated. Both minimise the loss of Hu, Koren and Volinsky with
the same confidence and ridge, from the same vectors: after one iteration `implicit` with its
Cholesky solver must hold ours up to float32 rounding, and the benchmark says how far apart they
are. `implicit` runs with as many threads as there are cores and its BLAS on one, as its authors
advise; the fastest of its iterations and of ours count, in turns.
"""

from __future__ import annotations

import math
import time
from typing import Any

import implicit.cpu.als
import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from fedrec.data.interactions import Interactions, order_by_item
from fedrec.factorization.least_squares import solve_clicks
from fedrec.numerics.threads import cores
from fedrec_simulations.bench.longtail import ML10M, QUICK, generate

RIDGE, ALPHA = 1.0, 1.0


def run(*, quick: bool = False) -> dict[str, Any]:
    """Ratios and seconds as a JSON-able dict.

    `quick` shrinks everything to a second, for tests of the wiring."""
    shape, d, turns = (QUICK, 8, 1) if quick else (ML10M, 64, 3)
    rng = np.random.default_rng(0)
    interactions = generate(shape, rng=rng)
    V = (0.1 * rng.standard_normal((shape.items, d))).astype(np.float32)
    ours = _Ours(interactions)
    ours.iteration(V)  # compiles
    seconds = {"ours": math.inf, "implicit_cholesky": math.inf, "implicit_three_cg_steps": math.inf}
    difference = math.inf
    for _ in range(turns):
        start = time.perf_counter()
        _, solved = ours.iteration(V)
        seconds["ours"] = min(seconds["ours"], time.perf_counter() - start)
        for name, use_cg in (("implicit_cholesky", False), ("implicit_three_cg_steps", True)):
            took, theirs = _implicit_iteration(interactions, V, use_cg=use_cg)
            seconds[name] = min(seconds[name], took)
            if not use_cg:
                difference = float(np.abs(theirs - solved).max() / np.abs(solved).max())
    return {
        "shape": {
            "users": shape.users,
            "items": shape.items,
            "events": len(interactions),
            "dimension": d,
            "cores": cores(),
        },
        "seconds_per_iteration": seconds,
        "implicit_cholesky_over_ours": seconds["implicit_cholesky"] / seconds["ours"],
        "implicit_three_cg_steps_over_ours": seconds["implicit_three_cg_steps"] / seconds["ours"],
        "largest_difference_to_implicit_cholesky": difference,
    }


class _Ours:
    """Both sides from V, with the item order made once."""

    def __init__(self, interactions: Interactions) -> None:
        self.interactions = interactions
        self.order = order_by_item(
            interactions.user_ptr, interactions.items, interactions.num_items
        )

    def iteration(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The users solved from V, then the items from the users."""
        U = solve_clicks(
            self.interactions.user_ptr, self.interactions.items, V, ridge=RIDGE, alpha=ALPHA
        )
        return U, solve_clicks(self.order.item_ptr, self.order.users, U, ridge=RIDGE, alpha=ALPHA)


def _implicit_iteration(
    interactions: Interactions, V: np.ndarray, *, use_cg: bool
) -> tuple[float, np.ndarray]:
    """Seconds of one iteration of `implicit` from V, as it reports them itself, and its item
    vectors."""
    n, m, d = interactions.num_users, interactions.num_items, V.shape[1]
    confidence = np.full(len(interactions), 1 + ALPHA, np.float32)
    clicks = sparse.csr_matrix(
        (confidence, interactions.items, interactions.user_ptr.astype(np.int32)), shape=(n, m)
    )
    took: list[float] = []
    with threadpool_limits(1, "blas"):
        model = implicit.cpu.als.AlternatingLeastSquares(
            factors=d,
            regularization=RIDGE,
            alpha=1.0,
            iterations=1,
            use_cg=use_cg,
            num_threads=cores(),
            random_state=0,
        )
        model.user_factors, model.item_factors = np.zeros((n, d), np.float32), V.copy()
        model.fit(
            clicks,
            show_progress=False,
            callback=lambda _iteration, elapsed, _loss: took.append(elapsed),
        )
    return took[0], np.asarray(model.item_factors)
