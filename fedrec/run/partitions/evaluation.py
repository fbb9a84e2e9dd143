"""Test errors of any number of methods from sums over parts: means, standard errors, and errors of
differences.

Per user and method a few numbers are kept: squared and absolute errors summed over the user's test
events, metrics of its list. Their sums, and the sums of products of two methods', give every mean,
every standard error with users as the independent draws, and that of every difference, as
`evaluation.ratings` and `evaluation.ranking` define them. All are integers on a grid: the same in
any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import below
from fedrec.data.splits import Fold
from fedrec.evaluation.ranking import (
    METRICS,
    PAIRED,
    RankingMetrics,
    RankingReport,
    exposure_of,
    statistics_of,
    values_of,
)
from fedrec.evaluation.ratings import RatingMetrics, popularity_buckets
from fedrec.evaluation.toplists import top_items
from fedrec.randomness import Streams
from fedrec.run.outcomes import Outcome
from fedrec.run.partitions.methods import PartitionedMethod
from fedrec.run.partitions.parts import PartSplit, on_grid

BUCKETS = 5  # as many as the report shows: fifths by popularity
_BITS = 20  # of a person's numbers: on a grid, sums are the same in any order
_OF_ERRORS = 12
_OF_LISTS = 24
"""Bits of products: of errors summed over a user's events, which may be thousands, and of metrics
in [0, 1]."""
_SLICES = BUCKETS + 1
"""All items, then the popularity buckets, rarest first."""


@dataclass
class Moments:
    """Moments of (users, K) numbers: how many users, sums (K,) in units of 2^-20, sums of products
    (K, K) in units of 2^-bits; Python integers."""

    users: int
    first: npt.NDArray[np.object_]
    second: npt.NDArray[np.object_]
    bits: int

    @staticmethod
    def of(values: Float64s, bits: int) -> Moments:
        """Return the moments of these users' numbers."""
        # products of what is summed, so that both say the same
        values = on_grid(values, _BITS) / 2.0**_BITS
        k = values.shape[1]
        second = np.zeros((k, k), object)
        for a in range(k):
            for b in range(a + 1):
                second[a, b] = second[b, a] = int(on_grid(values[:, a] * values[:, b], bits).sum())
        first = np.array(
            [int(total) for total in on_grid(values, _BITS).sum(axis=0)] + [None], object
        )[:-1]
        return Moments(len(values), first, second, bits)

    def merge(self, other: Moments) -> None:
        """Add the sums of other parts."""
        self.users += other.users
        self.first = self.first + other.first
        self.second = self.second + other.second

    @property
    def sums(self) -> Float64s:
        """(K,)"""
        return self.first.astype(np.float64) / 2.0**_BITS

    @property
    def products(self) -> Float64s:
        """(K, K)"""
        return self.second.astype(np.float64) / 2.0**self.bits


@dataclass
class TestSums:
    """ratings: by slice, of each method's squared and absolute errors, and events. lists: by slice,
    cutoff and metric, of each method.

    exposure: by method and cutoff, how often each item is listed. ranked, skipped: users with
    targets and without.
    """

    __test__ = False  # no test of pytest's

    ratings: dict[int, Moments] = field(default_factory=dict)
    lists: dict[tuple[int, int, str], Moments] = field(default_factory=dict)
    exposure: dict[tuple[str, int], Int64s] = field(default_factory=dict)
    ranked: int = 0
    skipped: int = 0

    def merge(self, other: TestSums) -> None:
        """Add the sums of other parts."""
        for mine, theirs in ((self.ratings, other.ratings), (self.lists, other.lists)):
            for key, moments in theirs.items():
                if key in mine:
                    mine[key].merge(moments)  # type: ignore[index]
                else:
                    mine[key] = moments  # type: ignore[index]
        for name, counts in other.exposure.items():
            self.exposure[name] = self.exposure[name] + counts if name in self.exposure else counts
        self.ranked += other.ranked
        self.skipped += other.skipped


@dataclass(frozen=True)
class TestTask:
    """rated, listed: what predicts, and what makes lists, by name. counts: (m,) train events.
    share: of users whose lists are made.

    validation: on the validation fold. most_users: of a part, its first so many; 0 for all.
    """

    __test__ = False  # no test of pytest's

    rated: Mapping[str, PartitionedMethod]
    listed: Mapping[str, PartitionedMethod]
    counts: Int64s
    cutoffs: tuple[int, ...]
    share: float
    validation: bool = False
    most_users: int = 0

    def map(self, part: PartSplit) -> TestSums:
        """See `protocol.Task`."""
        found = TestSums()
        fold = part.split.validation if self.validation else part.split.test
        if self.most_users:
            first = np.arange(min(self.most_users, fold.targets.num_users))
            fold = Fold(fold.history.users_subset(first), fold.targets.users_subset(first))
        if self.rated and len(fold.targets):
            self._rate(fold, found)
        if self.listed:
            self._list(self._sampled(fold), found)
        return found

    def _rate(self, fold: Fold, found: TestSums) -> None:
        targets = fold.targets
        columns = list[Float64s]()
        for method in self.rated.values():
            predicted = method.predictions(fold)
            errors = np.zeros(len(targets)) if predicted is None else predicted - targets.values
            if not bool(np.isfinite(errors).all()):
                raise ValueError(
                    f"{int((~np.isfinite(errors)).sum())} predictions are not finite numbers"
                )
            columns += [errors**2, np.abs(errors)]
        for number, inside in self._slices(targets):
            users = targets.users[inside]
            own = [
                np.bincount(users, weights=column[inside], minlength=targets.num_users)
                for column in columns
            ]
            own.append(np.asarray(np.bincount(users, minlength=targets.num_users), np.float64))
            kept = own[-1] > 0
            found.ratings[number] = Moments.of(
                np.asarray(np.column_stack(own)[kept], np.float64), _OF_ERRORS
            )

    def _list(self, fold: Fold, found: TestSums) -> None:
        wanted = np.diff(fold.targets.user_ptr) > 0
        targets = fold.targets
        found.ranked = int(wanted.sum())
        found.skipped = int((~wanted).sum())
        if not found.ranked:
            return
        made = dict[str, npt.NDArray[np.int32]]()
        for name, method in self.listed.items():
            scores = method.scores(fold.history)
            if scores is None:
                made[name] = np.full((targets.num_users, max(self.cutoffs)), -1, np.int32)
                continue
            made[name] = top_items(scores, history=fold.history, k=max(self.cutoffs), wanted=wanted)
            for k in self.cutoffs:
                found.exposure[name, k] = exposure_of(made[name][wanted], targets.num_items, k=k)
        for number, inside in self._slices(targets):
            some = targets.select(inside)
            values = np.stack(
                [values_of(lists, some, cutoffs=self.cutoffs) for lists in made.values()], axis=-1
            )
            for c, k in enumerate(self.cutoffs):
                for place, metric in enumerate(METRICS):
                    found.lists[number, k, metric] = Moments.of(values[:, c, place], _OF_LISTS)

    def _slices(self, targets: Interactions) -> list[tuple[int, npt.NDArray[np.bool_]]]:
        bucket = popularity_buckets(self.counts, buckets=BUCKETS)[targets.items]
        return [
            (0, np.ones(len(targets), np.bool_)),
            *((b + 1, bucket == b) for b in range(BUCKETS)),
        ]

    def _sampled(self, fold: Fold) -> Fold:
        """All users, or a sample by a hash of their ids: the same for every method."""
        if self.share >= 1:
            return fold
        kept = np.flatnonzero(
            below(fold.targets.user_draws(Streams(0).key("ranked-users")), self.share)
        )
        return Fold(fold.history.users_subset(kept), fold.targets.users_subset(kept))


def outcomes(task: TestTask, sums: TestSums) -> dict[str, Outcome]:
    """Every method's outcome.

    Influences have as many numbers as there are methods, and the norms and distances of the users'
    own."""
    rated = {
        name: [_rating(task, sums, number, k) for number in range(_SLICES)]
        for k, name in enumerate(task.rated)
    }
    listed = {name: _report(task, sums, name, k) for k, name in enumerate(task.listed)}
    found = dict[str, Outcome]()
    for name in dict.fromkeys((*task.rated, *task.listed)):
        whole, *buckets = rated.get(name, [None] * _SLICES)
        found[name] = Outcome(
            whole,
            tuple(b for b in buckets if b is not None),
            listed.get(name) if sums.ranked else None,
        )
    return found


def _rating(task: TestTask, sums: TestSums, number: int, k: int) -> RatingMetrics:
    moments = sums.ratings.get(number)
    methods = len(task.rated)
    if moments is None or moments.users == 0:
        return RatingMetrics(math.nan, math.nan, math.nan, 0, 0)
    total = moments.sums
    products = moments.products
    n = total[-1]
    mse = total[0:-1:2] / total[-1]
    rows = np.arange(0, 2 * methods, 2)
    rmse = np.sqrt(mse)
    per = np.where(rmse > 0, rmse, 1.0)
    with_n = products[rows, -1]
    gram = (
        products[np.ix_(rows, rows)]
        - np.outer(mse, with_n)
        - np.outer(with_n, mse)
        + np.outer(mse, mse) * products[-1, -1]
    )
    users = moments.users
    freedom = users / (users - 1) if users > 1 else math.nan
    influence = np.full(methods, math.nan)
    if users > 1:
        influence = _vectors(freedom * gram / (4 * n * n * np.outer(per, per)))[k]
        if rmse[k] == 0:
            influence = np.zeros(methods)
    events = round(float(n))  # a sum of ones, which is whole
    return RatingMetrics(
        float(rmse[k]),
        float(total[2 * k + 1] / n),
        float(np.linalg.norm(influence)),
        events,
        moments.users,
        influence,
    )


def _report(task: TestTask, sums: TestSums, name: str, k: int) -> RankingReport:
    each = [
        {cutoff: _ranking(sums, number, cutoff, k) for cutoff in task.cutoffs}
        for number in range(_SLICES)
    ]
    nothing = np.zeros(len(task.counts), np.int64)
    lists = {
        cutoff: statistics_of(sums.exposure.get((name, cutoff), nothing), task.counts, k=cutoff)
        for cutoff in task.cutoffs
    }
    return RankingReport(each[0], lists, tuple(each[1:]), sums.ranked, sums.skipped)


def _ranking(sums: TestSums, number: int, cutoff: int, k: int) -> RankingMetrics:
    means = dict[str, float]()
    errors = dict[str, float]()
    influences = dict[str, npt.NDArray[np.float32]]()
    users = 0
    for metric in METRICS:
        moments = sums.lists.get((number, cutoff, metric))
        n = users = 0 if moments is None else moments.users
        if moments is None or n == 0:
            means[metric] = errors[metric] = math.nan
            influences[metric] = np.zeros(0, np.float32)
            continue
        mean = moments.sums / n
        gram = (
            (moments.products - n * np.outer(mean, mean)) / (n * (n - 1))
            if n > 1
            else np.full_like(moments.products, np.nan)
        )
        means[metric] = float(mean[k])
        errors[metric] = math.sqrt(max(float(gram[k, k]), 0.0)) if n > 1 else math.nan
        influences[metric] = (_vectors(gram)[k] if n > 1 else np.full(len(mean), np.nan)).astype(
            np.float32
        )
    kept = {metric: influences[metric] for metric in PAIRED}
    return RankingMetrics(k=cutoff, users=users, **means, further={}, stderr=errors, influence=kept)


def _vectors(gram: Float64s) -> Float64s:
    """(K, K) rows whose products are `gram`, positive semidefinite up to rounding."""
    values, axes = np.linalg.eigh((gram + gram.T) / 2)
    return np.asarray(axes * np.sqrt(np.maximum(values, 0)))
