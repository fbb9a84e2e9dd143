"""The second stage of fast DP matrix factorisation: V is released, and a device finds its own
vector (Liu, Wang, Smola 2015, eq. 5).

A rating is modelled as offset + m_k + b_j + u_k.v_j (eq. 2). The device takes its own mean m_k of
what offset and b_j leave, as if it had three more ratings without any, and then u_k = (lambda I +
sum v v')^-1 sum v r on the rest. Everything here is local: no cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Floats
from fedrec.data.interactions import Interactions
from fedrec.factorization.least_squares import solve_users
from fedrec.numerics import segments

PRIOR_RATINGS = 3.0
"""By how many more ratings of 0 a user's own mean is shrunk."""


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
    return means, U, left - np.einsum("ed,ed->e", U[mine.users], V[mine.items])


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
