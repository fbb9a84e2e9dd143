"""References without privacy: alternating least squares as a `Model`, which is no upper bound, and
item-item similarities, the simple linear model that every ranking is set beside.

Ratings: variational ALS, whose ridges are posteriors' and hence need no tuning. Clicks, and lists
of what people rate: Hu, Koren and Volinsky 2008, the same iteration as the package `implicit`
(`python -m benchmarks als` compares them).

Variational ALS: both sides keep what they do not know of each other (Lim & Teh 2007,
"Variational Bayesian approach to movie rating prediction"). Not private: a reference for private
training.

    y_kj = mean + a_k + c_j + u_k' v_j + e,   (u_k, a_k) ~ N(0, user_prior),  (v_j, c_j) ~ N(0,
        item_prior),  e ~ N(0, noise)

One iteration finds the posterior of every user given the items' means and covariances, then of
every item; noise and both priors by EM. Nothing is left to choose but the width, and too large a
width costs time, not error. Where we leave the paper: a bias is one more coordinate of its side,
and to the other side it is known exactly, at its mean.
EASE (Steck 2019): B = argmin ||X - X B||^2 + ridge ||B||^2 with a zero diagonal, so B_ij = -P_ij /
P_jj for P = (X'X + ridge I)^-1, and a user's scores are x B. P costs the cube of the number of
items, or of users where they are fewer (`FewPeople`). Of many of both the most frequent items only,
and of very many users an even sample; that is said in `limits`. The ridge is the best of `RIDGES`
on validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import lapack

from fedrec.arrays import Float32s, Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.evaluation.ranking import metrics_of
from fedrec.evaluation.toplists import Scores, top_items
from fedrec.factorization.facts import predict
from fedrec.factorization.least_squares import alternate_clicks, solve_clicks
from fedrec.factorization.rankers import Model
from fedrec.numerics.segments import ItemOrder, order_by_item, pack, unpack
from fedrec.randomness import Streams

ITEM_ITEM = "non-private item-item"
MOST_ITEMS = 3_000
MOST_EVENTS = 3_000_000
"""What a few seconds on one core allow."""
RIDGES = (0.5, 1.5, 5.0)
"""Over the mean count of an item."""
_VALIDATED = 1_000  # users whose lists choose a ridge: all would take longer than the fit
_CUTOFF = 20  # of the metric, NDCG@20, by which a ridge is chosen
_COLUMNS = 256
"""Of the weights at a time, so that those of all items stay in the cache."""
_SAMPLE = 20_000
"""Events from which the noise's variance is estimated: its standard error is then 1%."""
ALS = "non-private ALS"
WIDTH = 16
ITERATIONS = 12
CLICK_WIDTH = 64
CLICK_RIDGE = 10.0
CLICK_ALPHA = 10.0
"""By judgement, not fitted: a reference that anybody could run. Alpha weighs clicks as in Hu, Koren
and Volinsky 2008; the iterations are for ratings and for clicks."""


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


@dataclass(frozen=True)
class Posterior:
    """mean (n, d + 1) and covariance (n, d + 1, d + 1) of the rows of one side; the last coordinate
    is the bias."""

    mean: Float64s
    covariance: Float64s

    @property
    def prior(self) -> Float64s:
        """(d + 1, d + 1): the EM update of the covariance these rows were drawn from."""
        return np.asarray(
            (self.mean.T @ self.mean + self.covariance.sum(axis=0)) / max(len(self.mean), 1)
        )

    @cached_property
    def seen(self) -> Float32s:
        """(n, d + 1) what ratings see of the means: the factors, and 1 in the place of the bias."""
        X = self.mean.astype(np.float32)
        X[:, -1] = 1
        return X

    @cached_property
    def moments(self) -> Float32s:
        """(n, (d + 1)(d + 2)/2) packed E[x x'] of x = (factors, 1): a one is known exactly."""
        X = self.seen
        rows, columns = np.triu_indices(X.shape[1])
        C = pack(self.covariance.astype(np.float32))
        C[:, columns == X.shape[1] - 1] = 0
        C += X[:, rows] * X[:, columns]
        return C

    def rows(self, chosen: npt.NDArray[np.generic]) -> Posterior:
        """Some rows."""
        return Posterior(self.mean[chosen], self.covariance[chosen])


@dataclass(frozen=True)
class VariationalModel:
    """A `Model`: item posteriors, and what a user's own solve needs. ranker: see
    `model.ranker_of`. trained: the training data, and the means of its users by this model."""

    items: Posterior
    offset: float
    noise: float
    user_prior: Float64s
    trained: tuple[Interactions, Float64s] | None = None
    ranker: Model | None = None

    @property
    def item_vectors(self) -> Float32s:
        """(m, d + 2): factors, bias, one."""
        return np.column_stack([self.items.mean, np.ones(len(self.items.mean))]).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float32s:
        """(n, d + 2): factors, one, bias: the posterior means given the history."""
        if self.trained is not None and history is self.trained[0]:
            mean = self.trained[1]
        else:
            targets = history.values - np.float32(self.offset)
            side = _Side(history.items, _by_user(history))
            mean = _posterior(
                side, self.items, targets, noise=self.noise, prior=self.user_prior
            ).mean
        return np.column_stack([mean[:, :-1], np.ones(len(mean)), mean[:, -1]]).astype(np.float32)

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Arrays for a file; never released: it is not private."""
        return {"item_vectors": self.item_vectors, "offset": np.array(self.offset)}


def alternate(
    train: Interactions, *, width: int, iterations: int, rng: np.random.Generator
) -> Iterator[VariationalModel]:
    """Yield the model after every iteration; the items' factors start at random, near zero."""
    offset = (
        float(train.values.mean(dtype=np.float64)) if len(train) else sum(train.value_range) / 2
    )
    y = train.values - np.float32(offset)
    m = train.num_items
    users = _Side(train.items, _by_user(train))
    items = _Side(train.users, order_by_item(train.user_ptr, train.items, m))
    V = Posterior(
        np.column_stack([rng.normal(0, 0.1, (m, width)), np.zeros(m)]),
        np.zeros((m, width + 1, width + 1)),
    )
    noise = 0.8 * float(np.var(y)) + 1e-6
    user_prior = np.diag([1.0] * width + [0.2])
    item_prior = np.diag([0.03] * width + [0.3])
    sample = rng.choice(len(train), min(_SAMPLE, len(train)), replace=False)
    U = _posterior(users, V, y, noise=noise, prior=user_prior)
    for _ in range(iterations):
        user_prior = U.prior
        V = _posterior(items, U, y, noise=noise, prior=item_prior)
        item_prior = V.rows(np.diff(items.order.item_ptr) > 0).prior
        if len(sample):
            noise = _noise(U, V, train.users[sample], train.items[sample], y[sample])
        # the next iteration's half, and what this model says of everybody in train
        U = _posterior(users, V, y, noise=noise, prior=user_prior)
        yield VariationalModel(V, offset, noise, user_prior, (train, U.mean))


@dataclass(frozen=True)
class _Side:
    """Events grouped by the rows of one side; `others` (events,) is the other end of each, in the
    data's own order."""

    others: npt.NDArray[np.integer]
    order: ItemOrder


def _by_user(events: Interactions) -> ItemOrder:
    return ItemOrder(events.user_ptr, events.items, np.arange(len(events)))


def _posterior(
    side: _Side, other: Posterior, y: Float32s, *, noise: float, prior: Float64s
) -> Posterior:
    """Posterior of every row: precision prior^-1 + sum_e E[x x'] / noise, moment sum_e t x / noise,
    x the other end's (factors, 1)."""
    order = side.order
    targets = y - other.mean[:, -1].astype(np.float32)[side.others]
    shape = (len(order.item_ptr) - 1, len(other.mean))

    def summed(weights: Float32s, rows: Float32s) -> Float64s:
        events = sparse.csr_matrix((weights, order.users, order.item_ptr), shape=shape)
        return np.asarray(events @ rows, np.float64) / noise

    gram = summed(np.ones(len(order.users), np.float32), other.moments)
    moment = summed(targets[order.positions], other.seen)
    covariance = np.linalg.inv(unpack(gram, moment.shape[1]) + np.linalg.inv(prior))
    return Posterior(np.einsum("nij,nj->ni", covariance, moment), covariance)


def _noise(
    U: Posterior,
    V: Posterior,
    users: npt.NDArray[np.integer],
    items: npt.NDArray[np.integer],
    y: Float32s,
) -> float:
    """E (y - a - c - u'v)^2 over events y (n,) of rows of U and V: E (u'v)^2 is the product of the
    factors' second moments, entry by entry."""
    d = U.mean.shape[1] - 1
    rows, columns = np.triu_indices(d + 1)
    factors = np.flatnonzero(columns < d)
    twice = np.where(rows == columns, 1, 2)[factors]
    u = U.mean[users]
    v = V.mean[items]
    product = np.einsum("nd,nd->n", u[:, :-1], v[:, :-1])
    squares = np.einsum(
        "np,np,p->n", U.moments[:, factors][users], V.moments[:, factors][items], twice
    )
    residual = y - u[:, -1] - v[:, -1] - product
    biases = U.covariance[:, -1, -1][users] + V.covariance[:, -1, -1][items]
    return float(np.mean(residual**2 + squares - product**2 + biases))


@dataclass(frozen=True)
class ClickCeiling:
    """Implicit ALS (Hu, Koren, Volinsky 2008)."""

    item_vectors: Float32s
    offset: float = 0.0

    def user_vectors(self, history: Interactions) -> Float32s:
        """(n, d), each user folded in from its history."""
        solved = solve_clicks(
            history.user_ptr, history.items, self.item_vectors, ridge=CLICK_RIDGE, alpha=CLICK_ALPHA
        )
        return solved.astype(np.float32)

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Arrays as a file keeps them; never released, as they are not private."""
        return {"item_vectors": self.item_vectors}


def als_model(train: Interactions, validation: Fold, *, seed: int, ranking: bool = False) -> Model:
    """Train on train alone; ratings keep the iteration with the smallest validation RMSE, and where
    `ranking`, carry a ranker."""
    rng = Streams(seed).numpy("als-init")
    if not train.rated:
        return _of_clicks(train, rng)
    best = None
    error = np.inf
    for found in alternate(train, width=WIDTH, iterations=ITERATIONS, rng=rng):
        if not len(validation.targets):
            best = found  # nothing to choose by: the last
            continue
        predicted = predict(found, validation.history, validation.targets)
        rmse = float(np.sqrt(np.mean((predicted - validation.targets.values) ** 2)))
        if rmse < error:
            best = found
            error = rmse
    assert best is not None
    if not ranking:
        return best
    # lists are what ratings are measured by besides: a minute is enough for them
    some = evenly(train, most_events=MOST_EVENTS)
    return replace(best, ranker=_of_clicks(some, Streams(seed).numpy("als-lists")))


def _of_clicks(train: Interactions, rng: np.random.Generator) -> ClickCeiling:
    *_, last = alternate_clicks(
        train,
        width=CLICK_WIDTH,
        ridge=CLICK_RIDGE,
        alpha=CLICK_ALPHA,
        iterations=ITERATIONS,
        rng=rng,
    )
    return ClickCeiling(last.model.V)
