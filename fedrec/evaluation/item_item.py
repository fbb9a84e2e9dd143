"""Item-item similarities without privacy: the simple linear model that every ranking is set beside.

EASE (Steck 2019): B = argmin ||X - X B||^2 + ridge ||B||^2 with a zero diagonal, so B_ij = -P_ij /
P_jj for P = (X'X + ridge I)^-1, and a user's scores are x B. P costs the cube of the number of
items, or of users where they are fewer (`FewPeople`). Of many of both the most frequent items only,
and of very many users an even sample; that is said in `limits`. The ridge is the best of `RIDGES`
on validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import lapack

from fedrec.arrays import Float32s
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.evaluation.ranking import metrics_of
from fedrec.evaluation.toplists import Scores, top_items

ITEM_ITEM = "non-private item-item"
MOST_ITEMS = 3_000
MOST_EVENTS = 3_000_000
"""What a few seconds on one core allow."""
RIDGES = (0.5, 1.5, 5.0)
"""Over the mean count of an item."""
_VALIDATED = 1_000
_CUTOFF = 20
_COLUMNS = 256
"""Of the weights at a time, so that those of all items stay in the cache."""


@dataclass(frozen=True)
class ItemItem:
    """weights (K, K) among the items `head` (K,); counts (m,) order what is outside. limits: what
    was left out, in words."""

    weights: Float32s
    head: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    limits: str = ""

    def scores(self, history: Interactions) -> Scores:
        """(users, m) x B; below every positive score, items outside the head by their counts."""
        X = _clicks(history, self.head)
        m = history.num_items
        outside = (1e-6 * self.counts / max(int(self.counts.max(initial=1)), 1)).astype(np.float32)

        def block(start: int, stop: int) -> Float32s:
            found = np.broadcast_to(outside, (stop - start, m)).copy()
            mine = X[start:stop]
            for first in range(0, len(self.head), _COLUMNS):
                some = slice(first, first + _COLUMNS)
                found[:, self.head[some]] += mine @ np.ascontiguousarray(self.weights[:, some])
            return found

        return block


@dataclass(frozen=True)
class FewPeople:
    """EASE of the whole catalogue from fewer users than items. By Woodbury ridge P = I - X' K X for
    K = (X X' + ridge I)^-1, so that a user's scores are (x X' K X - x)_j / (1 - X_j' K X_j).

    clicks: X (n, m). inverse: K (n, n). divided: (m,) 1 - X_j' K X_j > 0."""

    clicks: sparse.csr_matrix
    inverse: npt.NDArray[np.float64]
    divided: npt.NDArray[np.float64]
    limits: str = ""

    def scores(self, history: Interactions) -> Scores:
        """(users, m) x B; what a user has already is not scored."""
        every = np.arange(history.num_items)
        x = _clicks(history, every)

        def block(start: int, stop: int) -> Float32s:
            mine = x[start:stop]
            users = np.asarray((mine @ self.clicks.T).todense(), np.float64) @ self.inverse
            found = np.asarray(self.clicks.T @ users.T).T - mine.toarray()
            return np.asarray(found / self.divided, np.float32)

        return block


def few_people(X: sparse.csr_matrix, *, ridge: float) -> FewPeople:
    """Fit clicks (n, m) with a ridge > 0 by the kernel of people."""
    X = sparse.csr_matrix(X, dtype=np.float64)
    kernel = np.asarray((X @ X.T).todense()) + ridge * np.eye(X.shape[0])
    K = np.asarray(np.linalg.inv(kernel), np.float64)
    explained = np.empty(X.shape[1])
    columns = sparse.csc_matrix(X)
    for start in range(0, len(explained), 1024):  # bounded memory
        some = columns[:, start : start + 1024]
        explained[start : start + 1024] = np.asarray(some.multiply(K @ some).sum(axis=0)).ravel()
    return FewPeople(X, K, np.maximum(1 - explained, 1e-9))


def item_item(train: Interactions, validation: Fold) -> ItemItem | FewPeople:
    """Fitted to train; a rating of any value is a click. Deterministic."""
    counts = np.bincount(train.items, minlength=train.num_items)
    some = evenly(train, most_events=MOST_EVENTS)
    if train.num_users <= MOST_ITEMS < train.num_items and some is train:
        X = _clicks(train, np.arange(train.num_items))
        mean = max(len(train) / train.num_items, 1e-9)
        whole = [few_people(X, ridge=ridge * mean) for ridge in RIDGES]
        return max(whole, key=_validated(validation))
    head = np.sort(np.argsort(-counts, kind="stable")[:MOST_ITEMS])
    X = _clicks(some, head)
    gram = np.asarray((X.T @ X).todense(), np.float32)
    left = [f"its {len(head):,} most frequent items only"] if len(head) < train.num_items else []
    left += [f"learned from {some.num_users:,} users"] if some.num_users < train.num_users else []
    mean = max(float(np.trace(gram, dtype=np.float64)) / len(head), 1e-9)
    limits = ", ".join(left)
    tried = [ItemItem(ease(gram, ridge=ridge * mean), head, counts, limits) for ridge in RIDGES]
    return max(tried, key=_validated(validation))


def ease(gram: npt.NDArray[np.floating], *, ridge: float) -> Float32s:
    """B (K, K), zero on the diagonal, for X'X (K, K) and ridge > 0, in float32: B is then off by
    some 1e-5 of its largest entry, which changes no list that noise would not."""
    lifted = gram.astype(np.float32)
    lifted[np.diag_indices(len(gram))] += ridge
    factor, failed = lapack.spotrf(lifted.T, lower=1, overwrite_a=1)
    P, singular = lapack.spotri(factor, lower=1, overwrite_c=1)
    assert not failed
    assert not singular
    # zeros above the diagonal, which the factorisation cleared
    B = np.asarray((P + P.T) / -np.diag(P), np.float32)
    np.fill_diagonal(B, 0.0)
    return B


def evenly(events: Interactions, *, most_events: int) -> Interactions:
    """All users, or every so many-th of them so that about `most_events` events are left."""
    kept = min(events.num_users, max(int(events.num_users * most_events / max(len(events), 1)), 1))
    if kept == events.num_users:
        return events
    return events.users_subset(np.linspace(0, events.num_users - 1, kept).astype(np.int64))


def _validated(fold: Fold) -> Callable[[ItemItem | FewPeople], float]:
    some = np.flatnonzero(np.diff(fold.targets.user_ptr) > 0)[:_VALIDATED]
    history = fold.history.users_subset(some)
    targets = fold.targets.users_subset(some)

    def ndcg(model: ItemItem | FewPeople) -> float:
        if not len(some):
            return 0.0
        lists = top_items(model.scores(history), history=history, k=_CUTOFF)
        return metrics_of(lists, targets, cutoffs=(_CUTOFF,))[_CUTOFF].ndcg

    return ndcg


def _clicks(events: Interactions, head: npt.NDArray[np.int64]) -> sparse.csr_matrix:
    ones = np.ones(len(events), np.float32)
    X = sparse.csr_matrix(
        (ones, events.items, events.user_ptr), shape=(events.num_users, events.num_items)
    )
    return X if len(head) == events.num_items else X[:, head]
