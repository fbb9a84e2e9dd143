"""Prior of public rows alone, before anyone has sent anything: it ranks items by how well they fit
the mean row of a history.

    score(a, j) = a' C x_j / ||x_j||,   C (B x p) what best rebuilds the items from their rows:
                                        sum_i ||C' s_i - x_i / ||x_i|| ||^2 is least

For topics, C is nearly the mean vector of each topic's items; for directions, nearly the identity.
A function of public items and of the asking user's own coefficients: epsilon of training is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.impressions import Impressions
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.guarantee import Guarantee


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
