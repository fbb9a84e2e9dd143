"""Inner products of user and item vectors for the pairs of an evaluation, in bounded memory."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Real = TypeVar("Real", np.float32, np.float64)

_PIECE = 1 << 17


def products(
    U: npt.NDArray[Real],
    users: npt.NDArray[np.integer],
    V: npt.NDArray[Real],
    items: npt.NDArray[np.integer],
) -> npt.NDArray[Real]:
    """(e,) u_k' v_j of pairs (k, j): a piece at a time, since all rows at once would need e x d
    numbers."""
    out = np.empty(len(items), U.dtype)
    for start in range(0, len(items), _PIECE):
        part = slice(start, start + _PIECE)
        out[part] = np.einsum("ed,ed->e", U[users[part]], V[items[part]])
    return out
