"""Similar items, learned from public users alone (DP-CMF section 4, Curmei et al. 2023).

Implicit matrix factorisation of what they rated highly, then for each item the k others with the
largest inner product or cosine. The paper learns from a variant of ML-20M in which most of the
private users of ML-10M rate too, and calls the result public; ours sees the public users and nobody
else.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse

from fedrec.arrays import Float32s
from fedrec.data.features import FeatureBag
from fedrec.data.interactions import Interactions
from fedrec.evaluation.toplists import NO_ITEM, top_items
from fedrec.factorization.alternating import alternate_clicks

Similarity = Literal["inner-product", "cosine"]

WIDTH = 32
RIDGE = 10.0
ALPHA = 10.0
ITERATIONS = 8
"""Of the public factorisation: ordinary values, not fitted to any data set."""


def learned_vectors(
    public_users: FeatureBag, *, threshold: float, rng: np.random.Generator
) -> Float32s:
    """(m, WIDTH) item vectors from ratings of at least `threshold`; zero for an item that no public
    user rated so."""
    liked = public_users.counts.T.tocoo()
    users, items = (part[liked.data >= threshold] for part in (liked.row, liked.col))
    n, m = liked.shape
    clicks = Interactions.from_columns(
        users, items, None, num_users=n, num_items=m, value_range=(0.0, 1.0), kind="clicks"
    )
    *_, last = alternate_clicks(
        clicks, width=WIDTH, ridge=RIDGE, alpha=ALPHA, iterations=ITERATIONS, rng=rng
    )
    return np.asarray(last.model.V, np.float32)


def neighbours(V: Float32s, *, k: int, similarity: Similarity) -> sparse.csr_matrix:
    """(m, m) CSR float32: row i holds the scores of the k items most similar to i, itself left out,
    in any order of scores.

    An item of zero length has no neighbours and is nobody's. Fewer than k positive scores give
    fewer neighbours. Of equal ones the smaller key is first (`numerics.ties`).
    """
    lengths = np.linalg.norm(V, axis=1, keepdims=True)
    X = V / np.where(lengths > 0, lengths, 1) if similarity == "cosine" else V
    m = len(X)

    def scores(start: int, stop: int) -> Float32s:
        block = X[start:stop] @ X.T
        return np.where(block > 0, block, -np.inf).astype(np.float32)

    itself = Interactions(
        np.arange(m + 1),
        np.arange(m, dtype=np.int32),
        np.ones(m, np.float32),
        m,
        (0.0, 1.0),
        "clicks",
    )
    lists = top_items(scores, history=itself, k=min(k, m))
    rows, places = np.nonzero(lists != NO_ITEM)
    columns = lists[rows, places]
    found = np.einsum("ed,ed->e", X[rows], X[columns])
    return sparse.csr_matrix((found.astype(np.float32), (rows, columns)), shape=(m, m))
