"""Prior of public rows alone, before anyone has sent anything: it ranks items by how well they fit
the mean row of a history.

    score(a, j) = a' C x_j / ||x_j||,   C (B x p) what best rebuilds the items from their rows:
                                        sum_i ||C' s_i - x_i / ||x_i|| ||^2 is least

For topics, C is nearly the mean vector of each topic's items; for directions, nearly the identity.
A function of public items and of the asking user's own coefficients: epsilon of training is 0.

Inner products of user and item vectors for the pairs of an evaluation, in bounded memory, and
how often each item was shown, as a part of scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.data.impressions import Impressions
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.guarantee import Guarantee

Real = TypeVar("Real", np.float32, np.float64)

_PIECE = 1 << 17
"""Clicks whose matrices are held at a time: memory does not grow with the log."""


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


@dataclass(frozen=True)
class PublicPrior:
    """matrix: (B, m), the fit of each coordinate of a row and each item."""

    topics: TopicTable
    matrix: Float64s
    history: int

    def scores(
        self, asked: Impressions, *, guarantee: Guarantee | None = None, key: bytes = b""
    ) -> npt.NDArray[np.float32]:
        """Scores aligned with the candidates; without a guarantee, no noise."""
        mu = mu_for(guarantee.epsilon, guarantee.delta) if guarantee else float("inf")
        sent = bounded_mean.report(
            asked.last_clicks(self.history), self.topics, mu=mu, name="serving", key=key
        )
        a = bounded_mean.folded(sent.values, sent.told)
        owner = np.repeat(asked.users, np.diff(asked.candidate_ptr))
        out = np.empty(len(owner), np.float32)
        piece = 1 << 18
        for start in range(0, len(owner), piece):
            part = slice(start, start + piece)
            out[part] = np.einsum(
                "eb,be->e", a[owner[part]], self.matrix[:, asked.candidates[part]]
            )
        return out


def public_prior(
    topics: TopicTable, vectors: npt.NDArray[np.floating], *, history: int
) -> PublicPrior:
    """The prior of a catalogue with vectors (m, p)."""
    X = np.asarray(vectors, np.float64)
    X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
    return PublicPrior(topics, np.asarray(rebuilding(topics, X) @ X.T), history)


def rebuilding(topics: TopicTable, X: Float64s) -> Float64s:
    """C (B, p), by least squares; the shortest of several. X: (m, p) what to rebuild."""
    S = topics.weights
    return np.asarray(np.linalg.pinv(S.T @ S, hermitian=True) @ (S.T @ X))
