"""Quality of the recommended lists: over the full catalogue, history excluded, and by popularity of
what was to be found.

With T the targets of a user, h(r) = 1 where rank r is a hit, H(k) = h(1) + ... + h(k):

    recall_capped     H(k) / min(k, |T|)                            Liang et al. 2018, AM-SSP App. E
    recall            H(k) / |T|                                    He et al. 2020 (LightGCN)
    ndcg              sum_r h(r) / log2(r + 1), over its value for min(k, |T|) hits first
    mrr               1 / rank of the first hit, 0 without one in k
    hit_rate          1 where H(k) > 0
    precision         H(k) / k
    average_precision sum_r h(r) H(r) / r, over min(k, |T|)         its mean over users is MAP

Each is averaged over the users with targets; the others are skipped and counted. In a bucket, T is
cut to the bucket's items while the lists stay over the full catalogue. A target that is also in the
history cannot be listed and stays in |T|.

A package adds a metric by naming a `Metric` in its metadata; its mean and standard error stand
beside the others in every result:

    [project.entry-points."fedrec.metrics"]
    first_hit = "my_package.metrics:first_hit"
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int32s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.evaluation.ratings import popularity_buckets
from fedrec.evaluation.toplists import Scores, top_items

METRICS = ("recall_capped", "recall", "ndcg", "mrr", "hit_rate", "precision", "average_precision")
"""In the order of columns."""
_BLOCK_NUMBERS = 1 << 20
"""Numbers at a time, so that they stay in the cache."""
PAIRED = ("ndcg", "recall_capped")
"""Metrics whose deviations are kept, so that two models are compared user by user."""


GROUP = "fedrec.metrics"
Metric = Callable[[Int32s, Interactions, int], Float64s]
"""(users,) values from (users, K) lists, -1 behind short ones, the users' targets, and a cutoff; of
users without targets anything."""


def further_metrics() -> dict[str, Metric]:
    """Those that installed packages name."""
    return _named_in(tuple(sys.path))


@cache  # every installed package is opened to find them, once for each part of every evaluation
def _named_in(path: tuple[str, ...]) -> dict[str, Metric]:
    return {point.name: point.load() for point in metadata.entry_points(group=GROUP)}


@dataclass(frozen=True)
class RankingMetrics:
    """Means at cutoff k over `users` users, each in [0, 1]; not a number where there are none.
    `stderr` by metric name; `further`: of other packages.

    influence: for each of `PAIRED`, (users,) a user's value less the mean, over sqrt(n (n - 1)):
    its L2 norm is the standard error, and that of a difference of two models' influences the
    standard error of their difference, as the users are the same.
    """

    k: int
    users: int
    recall_capped: float
    recall: float
    ndcg: float
    mrr: float
    hit_rate: float
    precision: float
    average_precision: float
    further: dict[str, float] = field(default_factory=dict)
    stderr: dict[str, float] = field(default_factory=dict)
    influence: dict[str, npt.NDArray[np.float32]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def as_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON, None in the place of what is not a number."""
        means = {name: getattr(self, name) for name in METRICS} | self.further
        errors = {f"{name}_stderr": value for name, value in self.stderr.items()}
        return {"k": self.k, "users": self.users} | {
            name: None if math.isnan(x) else x for name, x in (means | errors).items()
        }


@dataclass(frozen=True)
class ListStatistics:
    """What the lists of all evaluated users have in common at cutoff k.

    coverage: share of the catalogue in at least one list. gini: of how often each item of the
    catalogue is listed, 0 all equally, towards 1 always the same few. mean_popularity: mean count
    in train of a listed item. train_popularity: of an item that an event of train is of. novelty:
    mean -log2 of a listed item's share of train, in bits, as if it had one event at least.
    diversity: 1 less the mean share of items that two people's lists have in common. Not a number
    without lists, and with one no diversity.
    """

    k: int
    coverage: float
    gini: float
    mean_popularity: float
    train_popularity: float
    novelty: float
    diversity: float

    def as_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON, None in the place of what is not a number."""
        return {name: None if math.isnan(value) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class RankingReport:
    """Metrics by cutoff, statistics by cutoff, metrics by bucket (rarest first) and cutoff; users
    without targets counted."""

    at: dict[int, RankingMetrics]
    lists: dict[int, ListStatistics]
    buckets: tuple[dict[int, RankingMetrics], ...]
    users: int
    skipped_users: int

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON: cutoffs become strings."""
        return {
            "users": self.users,
            "skipped_users": self.skipped_users,
            "at": {str(k): metrics.as_dict() for k, metrics in self.at.items()},
            "lists": {str(k): statistics.as_dict() for k, statistics in self.lists.items()},
            "buckets": [
                {str(k): metrics.as_dict() for k, metrics in bucket.items()}
                for bucket in self.buckets
            ],
        }


def evaluate_ranking(
    scores: Scores,
    *,
    history: Interactions,
    targets: Interactions,
    train_counts: npt.NDArray[np.integer],
    cutoffs: Sequence[int] = (10, 20, 50, 100),
    buckets: int = 5,
) -> RankingReport:
    """Everything above, for lists made from `scores` (see `toplists.dot_product`).

    history, targets: the same n users and m items. train_counts: (m,) events in train, which for
    held-out users is not `history`. Raises ValueError where shapes differ, a user has the same
    target twice, or cutoffs are not ascending and positive.
    """
    _check(history, targets, train_counts, cutoffs)
    wanted = np.diff(targets.user_ptr) > 0
    lists = top_items(scores, history=history, k=max(cutoffs), wanted=wanted)
    bucket = popularity_buckets(train_counts, buckets=buckets)[targets.items]
    return RankingReport(
        at=metrics_of(lists, targets, cutoffs=cutoffs),
        lists={k: list_statistics(lists[wanted], train_counts, k=k) for k in cutoffs},
        buckets=tuple(
            metrics_of(lists, targets.select(bucket == b), cutoffs=cutoffs) for b in range(buckets)
        ),
        users=int(wanted.sum()),
        skipped_users=int(len(wanted) - wanted.sum()),
    )


def metrics_of(
    lists: Int32s, targets: Interactions, *, cutoffs: Sequence[int]
) -> dict[int, RankingMetrics]:
    """Metrics by cutoff of (n, K) lists, K at least the largest cutoff."""
    values = values_of(lists, targets, cutoffs=cutoffs)
    found = {int(k): _average(int(k), values[:, c]) for c, k in enumerate(cutoffs)}
    told = np.diff(targets.user_ptr) > 0
    for name, metric in further_metrics().items():
        for k, metrics in found.items():
            mean, error = mean_and_error(np.asarray(metric(lists, targets, k), np.float64)[told])
            metrics.further[name] = mean
            metrics.stderr[name] = error
    return found


def mean_and_error(values: Float64s) -> tuple[float, float]:
    """Mean of (n,) values and its standard error; not a number where there are too few."""
    n = len(values)
    mean = float(values.mean()) if n else math.nan
    return mean, float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan


def values_of(lists: Int32s, targets: Interactions, *, cutoffs: Sequence[int]) -> Float64s:
    """(users with targets, cutoffs, `METRICS`) of every user's own list."""
    ks = np.asarray(cutoffs, np.int64)
    values = np.empty((len(lists), len(ks), len(METRICS)))
    rows = max(1, _BLOCK_NUMBERS // (targets.num_items + 8 * int(ks[-1])))
    for start in range(0, len(lists), rows):
        _measure(lists, targets, ks, values, start, min(start + rows, len(lists)))
    return np.asarray(values[np.diff(targets.user_ptr) > 0])


def list_statistics(
    lists: Int32s, train_counts: npt.NDArray[np.integer], *, k: int
) -> ListStatistics:
    """Coverage, Gini and mean popularity of the first k of each of (e, K) lists."""
    return statistics_of(exposure_of(lists, len(train_counts), k=k), train_counts, k=k)


def exposure_of(lists: Int32s, items: int, *, k: int) -> Int64s:
    """(items,) how often each is among the first k of (e, K) lists."""
    shown = lists[:, :k].ravel()
    return np.bincount(shown[shown >= 0], minlength=items)


def statistics_of(
    exposure: Int64s, train_counts: npt.NDArray[np.integer], *, k: int
) -> ListStatistics:
    """Statistics of lists, from how often each item is listed."""
    total = int(exposure.sum())
    if total == 0:
        return ListStatistics(k, *[math.nan] * 6)
    counts = train_counts.astype(np.float64)
    events = max(float(counts.sum()), 1.0)
    often = exposure.astype(np.float64)
    return ListStatistics(
        k,
        float(np.mean(exposure > 0)),
        gini(exposure),
        float(exposure @ counts) / total,
        float(counts @ counts) / events,
        float(exposure @ -np.log2(np.maximum(counts, 1) / events)) / total,
        1 - float(often @ (often - 1)) * k / (total * (total - k)) if total > k else math.nan,
    )


def gini(amounts: npt.NDArray[np.generic]) -> float:
    """Gini coefficient of m >= 1 non-negative amounts with a positive sum: mean absolute difference
    over twice the mean."""
    x = np.sort(amounts.astype(np.float64))
    m = len(x)
    return float((2 * np.arange(1, m + 1) - m - 1) @ x / (m * x.sum()))


def _average(k: int, values: Float64s) -> RankingMetrics:
    n = len(values)
    mean = values.mean(axis=0) if n else np.full(len(METRICS), np.nan)
    spread = values.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(METRICS), np.nan)
    means = {name: float(x) for name, x in zip(METRICS, mean, strict=True)}
    scaled = (values - mean) / math.sqrt(n * (n - 1)) if n > 1 else np.full_like(values, np.nan)
    influence = {name: scaled[:, METRICS.index(name)].astype(np.float32) for name in PAIRED}
    stderr = {name: float(x) for name, x in zip(METRICS, spread, strict=True)}
    return RankingMetrics(k=k, users=n, **means, further={}, stderr=stderr, influence=influence)


def _check(
    history: Interactions,
    targets: Interactions,
    train_counts: npt.NDArray[np.integer],
    cutoffs: Sequence[int],
) -> None:
    shapes = {(x.num_users, x.num_items) for x in (history, targets)}
    if len(shapes) > 1 or train_counts.shape != (history.num_items,):
        raise ValueError(
            f"history and targets must have the same users and items, found {shapes} and "
            f"{train_counts.shape} counts"
        )
    if not cutoffs or min(cutoffs) < 1 or list(cutoffs) != sorted(set(cutoffs)):
        raise ValueError(f"cutoffs must be ascending and at least 1, found {list(cutoffs)}")
    repeated = (np.diff(targets.items) == 0) & (np.diff(targets.users) == 0)
    if repeated.any():
        raise ValueError(f"{int(repeated.sum())} targets are named twice by the same user")


def _measure(
    lists: Int32s, targets: Interactions, ks: Int64s, values: Float64s, start: int, stop: int
) -> None:
    """Fill values[user, c] with METRICS at cutoff ks[c] for users [start, stop); of users without
    targets they are no numbers."""
    m = targets.num_items
    ptr = targets.user_ptr[start : stop + 1]
    total = np.diff(ptr)
    wanted = np.zeros((stop - start, m + 1), np.bool_)  # the last column is that of `NO_ITEM`
    of = np.repeat(np.arange(stop - start), total)
    wanted[of, targets.items[ptr[0] : ptr[-1]]] = True
    shown = lists[start:stop, : ks[-1]]
    hit = np.take_along_axis(wanted, np.where(shown < 0, m, shown), axis=1)
    ranks = np.arange(1, ks[-1] + 1)
    hits = np.cumsum(hit, axis=1)
    discounts = 1 / np.log2(ranks + 1.0)
    ideal = np.cumsum(discounts)
    gain = np.cumsum(hit * discounts, axis=1)
    precisions = np.cumsum(hit * (hits / ranks), axis=1)
    first = np.where(hits[:, -1] > 0, hit.argmax(axis=1) + 1, np.inf)
    for c, k in enumerate(ks):
        found = hits[:, k - 1]
        reachable = np.maximum(np.minimum(k, total), 1)
        of_k = values[start:stop, c]
        of_k[:, 0] = found / reachable
        of_k[:, 1] = found / np.maximum(total, 1)
        of_k[:, 2] = gain[:, k - 1] / ideal[reachable - 1]
        of_k[:, 3] = np.where(first <= k, 1 / first, 0.0)
        of_k[:, 4] = found > 0
        of_k[:, 5] = found / k
        of_k[:, 6] = precisions[:, k - 1] / reachable
        of_k[total == 0] = np.nan
