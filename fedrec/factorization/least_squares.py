"""Closed-form sides of alternating minimisation: ridge solves for many users or items at once.

Every user's (or item's) system is summed and solved by one thread in a fixed order, eight systems
abreast, so its solution is the same bit for bit whatever the batch and whatever the number of
threads.

The second stage of fast DP matrix factorisation: V is released, and a device finds its own
vector (Liu, Wang, Smola 2015, eq. 5).

A rating is modelled as offset + m_k + b_j + u_k.v_j (eq. 2). The device takes its own mean m_k of
what offset and b_j leave, as if it had three more ratings without any, and then u_k = (lambda I +
sum v v')^-1 sum v r on the rest. Everything here is local: no cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s, Floats, Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.numerics import segments
from fedrec.numerics.kernels import pad_columns, solve_packed_range, solve_range
from fedrec.numerics.segments import FEW_ITEMS, order_by_item, padded_users
from fedrec.numerics.threads import map_ranges, map_rows

Ridge = float | npt.NDArray[np.floating]

_IN_ORDER = np.empty(0, np.int64)
PRIOR_RATINGS = 3.0
"""By how many more ratings of 0 a user's own mean is shrunk."""


def solve_packed(gram: Floats, moment: Floats, *, ridge: Ridge) -> Floats:
    """x_j of (A_j + ridge_j I) x_j = b_j, (m, d); gram is (m, d(d+1)/2) packed, the type of
    `moment` decides the arithmetic.

    Raises ValueError where a matrix is not positive definite (project it first).
    """
    m, d = moment.shape
    if gram.shape != (m, d * (d + 1) // 2):
        raise ValueError(f"gram must have shape {(m, d * (d + 1) // 2)}, found {gram.shape}")
    dtype = moment.dtype
    A = np.ascontiguousarray(gram, dtype)
    b = np.ascontiguousarray(moment)
    ridges = _ridges(ridge, m, dtype)
    solution = np.empty((m, d), dtype)
    map_ranges(lambda first, last: solve_packed_range(first, last, A, b, ridges, solution), m)
    return _checked(solution)


def solve_rows(
    ptr: Int64s,
    ids: Int32s,
    V: Floats,
    *,
    ridge: Ridge,
    targets: Floats | None = None,
    weights: Floats | None = None,
    positions: Int64s = _IN_ORDER,
    base: Floats | None = None,
) -> Floats:
    """x_r = (base + sum_e w_e v v' + ridge_r I)^-1 sum_e t_e v over the events e of each row r,
    (rows, d).

    ptr: (rows + 1,) and ids: (events,) rows of V (m, d), float32 or float64, whose type decides the
    arithmetic. targets and weights: (events,) values at `positions` (or in order), 1 where None; a
    weighted target is w y. base: (d, d). Raises ValueError where a system is not positive definite,
    e.g. a ridge of 0 with fewer events than d.
    """
    rows = len(ptr) - 1
    d = V.shape[1]
    dtype = V.dtype
    source = pad_columns(V, dtype)
    width = source.shape[1]
    flat = source.reshape(-1)
    t, w = (
        np.empty(0, dtype) if c is None else np.ascontiguousarray(c, dtype)
        for c in (targets, weights)
    )
    ridges = _ridges(ridge, rows, dtype)
    if dtype == np.float64 and len(V) <= FEW_ITEMS:
        few = _solve_few(ptr, ids, V, t, w, positions, ridges, 0.0 if base is None else base)
        return _checked(few)
    solution = np.empty((rows, d), dtype)
    start = np.zeros((width, width), dtype)
    if base is not None:
        start[:d, :d] = base
    C = start.reshape(-1)

    def solve(first: int, last: int) -> None:
        solve_range(first, last, ptr, ids, positions, flat, d, width, w, t, ridges, C, solution)

    map_rows(solve, ptr, row_cost=8 + d // 2)
    return _checked(solution)


def _solve_few(
    ptr: Int64s,
    ids: Int32s,
    V: Floats,
    targets: Floats,
    weights: Floats,
    positions: Int64s,
    ridges: Floats,
    base: Floats | float,
) -> Floats:
    """`solve_range` by NumPy alone: its definition, row by row; NaN where a system is not positive
    definite."""
    d = V.shape[1]
    solution = np.empty((len(ptr) - 1, d))
    for rows, events, real in padded_users(ptr):
        at = positions[events] if len(positions) else events
        X = np.where(real[:, :, None], V[ids[events]], 0.0)
        weighted = X * weights[at][:, :, None] if len(weights) else X
        A = weighted.transpose(0, 2, 1) @ X + base + ridges[rows][:, None, None] * np.eye(d)
        t = np.where(real, targets[at] if len(targets) else 1.0, 0.0)
        solution[rows] = _positive_definite(A, X.transpose(0, 2, 1) @ t[:, :, None])[:, :, 0]
    return solution


def _positive_definite(A: Float64s, b: Float64s) -> Float64s:
    """(g, d, 1) of A x = b; NaN for those of the g systems that are not positive definite."""
    try:
        np.linalg.cholesky(A)  # `solve` would take what is not positive definite
        return np.asarray(np.linalg.solve(A, b))
    except np.linalg.LinAlgError:  # of any: the others are solved as if it were not there
        if len(A) == 1:
            return np.full_like(b, np.nan)
        return np.concatenate(
            [_positive_definite(A[k : k + 1], b[k : k + 1]) for k in range(len(A))]
        )


def solve_users(
    interactions: Interactions,
    V: Floats,
    *,
    ridge: Ridge,
    targets: Floats | None = None,
    weights: Floats | None = None,
) -> Floats:
    """u_k = argmin sum_e w_e (y_e - u.v)^2 + ridge_k |u|^2 for every user, (n_users, d) (AM-SSP
    Alg. 1, l. 4).

    targets: (events,) y_e, the interactions' values where None.
    """
    y = interactions.values if targets is None else targets
    t = y if weights is None else y * weights
    return solve_rows(
        interactions.user_ptr, interactions.items, V, ridge=ridge, targets=t, weights=weights
    )


def solve_clicks(ptr: Int64s, ids: Int32s, V: Floats, *, ridge: Ridge, alpha: float) -> Floats:
    """Implicit feedback (Hu, Koren, Volinsky 2008, eq. 4): confidence 1 + alpha on clicks, 1 on
    everything else.

    x_r = (V'V + alpha sum v v' + ridge I)^-1 (1 + alpha) sum v. Solved divided by alpha, so that
    events need no weights.
    """
    scaled = np.asarray(ridge, np.float64) / alpha
    ratio = V.dtype.type((1 + alpha) / alpha)
    return np.asarray(
        ratio * solve_rows(ptr, ids, V, ridge=scaled, base=V.T @ V / V.dtype.type(alpha))
    )


def _ridges(ridge: Ridge, rows: int, dtype: npt.DTypeLike) -> Floats:
    return np.ascontiguousarray(
        np.broadcast_to(np.asarray(ridge, np.float64), (rows,)), dtype=dtype
    )


def _checked(solution: Floats) -> Floats:
    finite = np.isfinite(solution).all(axis=1)
    if not bool(finite.all()):
        bad = np.flatnonzero(~finite)
        raise ValueError(
            f"{len(bad)} of {len(solution)} systems are not positive definite, the first is "
            f"row {int(bad[0])}"
        )
    return solution


@dataclass(frozen=True)
class ClickModel:
    """U (n, d) and V (m, d) float32: a user's score of an item is u.v."""

    U: Float32s
    V: Float32s


@dataclass(frozen=True)
class ClickStep:
    """After one iteration: its number from 1 and the model."""

    iteration: int
    model: ClickModel


def alternate_clicks(
    interactions: Interactions,
    *,
    width: int,
    ridge: float,
    alpha: float,
    iterations: int,
    rng: np.random.Generator,
) -> Iterator[ClickStep]:
    """Hu et al. 2008 with confidence 1 + alpha on clicks. `implicit` counts the same with its alpha
    = 1 + ours.
    """
    order = order_by_item(interactions.user_ptr, interactions.items, interactions.num_items)
    V = (rng.standard_normal((interactions.num_items, width)) * 0.01).astype(np.float32)
    for iteration in range(1, iterations + 1):
        U = solve_clicks(
            interactions.user_ptr, interactions.items, V, ridge=ridge, alpha=alpha
        ).astype(np.float32, copy=False)
        V = solve_clicks(order.item_ptr, order.users, U, ridge=ridge, alpha=alpha).astype(
            np.float32, copy=False
        )
        yield ClickStep(iteration, ClickModel(U, V))


def own_means(mine: Interactions, targets: Float64s, *, prior: float = PRIOR_RATINGS) -> Float64s:
    """(num_users,) each user's mean of `targets` (n,), shrunk to 0 as by `prior` more ratings; 0
    for an infinite one."""
    return np.asarray(
        segments.sums(mine.user_ptr, targets) / (np.diff(mine.user_ptr) + prior), np.float64
    )


def solved(
    mine: Interactions,
    V: Float64s,
    bias: Float64s,
    offset: float,
    ridge: float,
    *,
    prior: float = PRIOR_RATINGS,
) -> tuple[Float64s, Float64s, Float64s]:
    """m (n_users,), U (n_users, d) of eq. 5, and the residuals (n,) that they leave; V (m, d), bias
    (m,)."""
    left = np.asarray(mine.values, np.float64) - offset - bias[mine.items]
    means = own_means(mine, left, prior=prior)
    left -= means[mine.users]
    U = np.asarray(solve_users(mine, V, ridge=ridge, targets=left), np.float64)
    return means, U, left - segments.pair_products(U, mine.users, V, mine.items)


@dataclass(frozen=True)
class LocalStageModel:
    """Released item vectors (m, d + 2), rows (v_j, 1, b_j); a user's vector is (u_k, m_k, 1)."""

    item_vectors: npt.NDArray[np.float32]
    offset: float
    user_ridge: float
    prior: float = PRIOR_RATINGS

    @staticmethod
    def of(
        V: Floats, bias: Floats, *, offset: float, user_ridge: float, prior: float = PRIOR_RATINGS
    ) -> LocalStageModel:
        """From V (m, d) and b (m,)."""
        table = np.column_stack([V, np.ones(len(V)), bias])
        return LocalStageModel(np.ascontiguousarray(table, np.float32), offset, user_ridge, prior)

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> LocalStageModel:
        """The model of a released file."""
        scalars = (float(arrays[name]) for name in ("offset", "user_ridge", "prior"))
        return LocalStageModel(np.asarray(arrays["item_vectors"], np.float32), *scalars)

    def user_vectors(self, history: Interactions) -> Floats:
        """(n_users, d + 2), each row from that user's ratings alone."""
        table = np.asarray(self.item_vectors, np.float64)
        means, U, _ = solved(
            history,
            np.ascontiguousarray(table[:, :-2]),
            table[:, -1],
            self.offset,
            self.user_ridge,
            prior=self.prior,
        )
        return np.column_stack([U, means, np.ones(len(U))])

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Arrays for the released file."""
        scalars = {"offset": self.offset, "user_ridge": self.user_ridge, "prior": self.prior}
        return {
            "item_vectors": self.item_vectors,
            **{name: np.array(value) for name, value in scalars.items()},
        }
