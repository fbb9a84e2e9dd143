"""What public topics alone can do, before anyone has sent anything: rank items by how well they fit the topics of a history.

    score(a, j) = (a / ||a||)' C x_j / (||x_j||),   C (B x p) the mean vector of each topic's items

A function of public items and of the asking user's own coefficients: epsilon of training is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrec.data.impressions import Impressions
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privaterec import additive
from fedrec.privaterec.additive import TopicTable

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PublicPrior:
    """matrix: (B, m), the fit of each topic and item."""

    topics: TopicTable
    matrix: Floats
    history: int

    def scores(self, asked: Impressions, *, guarantee: Guarantee | None = None, key: bytes = b"") -> npt.NDArray[np.float32]:
        """Scores aligned with the candidates; without a guarantee, no noise."""
        mu = mu_for(guarantee.epsilon, guarantee.delta) if guarantee else float("inf")
        a = additive.report(asked.last_clicks(self.history), self.topics, mu=mu, name="serving", key=key).values
        owner = np.repeat(asked.users, np.diff(asked.candidate_ptr))
        out, piece = np.empty(len(owner), np.float32), 1 << 18
        for start in range(0, len(owner), piece):
            part = slice(start, start + piece)
            out[part] = np.einsum("eb,be->e", a[owner[part]], self.matrix[:, asked.candidates[part]])
        return out


def public_prior(topics: TopicTable, vectors: npt.NDArray[np.floating], *, history: int) -> PublicPrior:
    """The prior of a catalogue with vectors (m, p)."""
    X = np.asarray(vectors, np.float64)
    X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
    weights = topics.weights
    centres = weights.T @ X / np.maximum(weights.sum(0)[:, None], 1e-12)
    return PublicPrior(topics, np.asarray(centres @ X.T), history)
