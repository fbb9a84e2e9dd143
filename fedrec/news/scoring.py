"""Inner products of user and item vectors for the pairs of an evaluation, in bounded memory, and
how often each item was shown, as a part of scores."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s

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


def shown_counts(candidates: Int64s, *, items: int) -> Int64s:
    """(items,) how many impressions showed each item. candidates: of any shape, -1 for none."""
    return np.bincount(candidates[candidates >= 0], minlength=items).astype(np.int64)


def log_exposure(shown: Int64s) -> Float64s:
    """(m,) log q up to a constant. An item that was never shown is taken for as likely as the
    others on average: nothing is known of how it would be chosen.

    A model of impressions learns which of the candidates shown is clicked: its scores tell p(click)
    over q(shown) up to a factor, whichever q chose the candidates. Over the candidates of an
    impression that is what counts. For a list from the whole catalogue log q belongs to the score
    again: the correction of sampled softmax (Bengio and Senecal 2008; Yi et al. 2019 for
    recommenders). q is counted from the candidates of training, which are public, so it costs
    nothing. A bundle tells it to everybody, exactly.
    """
    logs = np.log(np.maximum(shown, 1))
    return np.where(shown > 0, logs, logs[shown > 0].mean() if shown.any() else 0.0)
