"""Sizes, counted once, and baselines without privacy, from sums over parts: item counts, means,
item and user biases.

Sums are integers on a grid of 2^-20 of a rating, so that they are the same in any order; biases are
then off by less than one millionth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int64s
from fedrec.data.interactions import Interactions
from fedrec.run.partitions.methods import BiasMethod
from fedrec.run.partitions.parts import PartSplit
from fedrec.run.partitions.protocol import Engine, Told, on_grid

_BITS = 20
RIDGE = 5.0
DAMPING = 5.0
SWEEPS = 10
"""As in `evaluation.baselines`."""


@dataclass
class Sizes:
    """users: of train. events: of train, validation and test. able: users with test events. counts
    (m,): train events of each item.

    totals (m,): sums of values by item, in units of 2^-20.
    """

    users: int
    train: int
    validation: int
    test: int
    able: int
    counts: Int64s
    totals: Int64s

    def merge(self, other: Sizes) -> None:
        """See `protocol.Sums`."""
        for name in ("users", "train", "validation", "test", "able"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts = self.counts + other.counts
        self.totals = self.totals + other.totals

    @property
    def mean(self) -> float:
        """Mean of the values of train."""
        return float(int(self.totals.sum()) / 2**_BITS / max(self.train, 1))


@dataclass(frozen=True)
class CountTask:
    """Counts everything that is counted once."""

    def map(self, part: PartSplit) -> Sizes:
        """See `protocol.Task`."""
        split = part.split
        train = part.split.train
        able = int(np.count_nonzero(np.diff(split.test.targets.user_ptr)))
        validation = len(split.validation.targets)
        test = len(split.test.targets)
        counts = np.bincount(train.items, minlength=train.num_items)
        totals = _by_item(train, train.values.astype(np.float64))
        return Sizes(train.num_users, len(train), validation, test, able, counts, totals)


@dataclass
class ItemTotals:
    """(m,) sums by item, in units of 2^-20."""

    totals: Int64s

    def merge(self, other: ItemTotals) -> None:
        """See `protocol.Sums`."""
        self.totals = self.totals + other.totals


@dataclass(frozen=True)
class SweepTask:
    """What the mean and users' biases, solved from the items' biases, leave of each item."""

    method: BiasMethod

    def map(self, part: PartSplit) -> ItemTotals:
        """See `protocol.Task`."""
        train = part.split.train
        own = self.method.user_biases(train)
        return ItemTotals(
            _by_item(train, train.values.astype(np.float64) - self.method.mean - own[train.users])
        )


def bias_methods(
    engine: Engine, sizes: Sizes, value_range: tuple[float, float], told: Told
) -> Iterator[tuple[str, BiasMethod]]:
    """Global mean, item mean and item + user bias, as `evaluation.baselines` defines them; the last
    takes nine passes over all parts."""
    mean = sizes.mean
    nothing = np.zeros(len(sizes.counts))
    flat = BiasMethod(mean, nothing, None, value_range)
    yield "global mean", flat
    residuals = sizes.totals / 2**_BITS - mean * sizes.counts
    yield "item mean", replace(flat, item_bias=residuals / (sizes.counts + DAMPING))
    full = replace(flat, item_bias=residuals / (sizes.counts + RIDGE), user_ridge=RIDGE)
    for _ in range(SWEEPS - 1):
        swept: ItemTotals = engine.reduce(SweepTask(full), told)
        full = replace(full, item_bias=swept.totals / 2**_BITS / (sizes.counts + RIDGE))
    yield "item + user bias", full


def _by_item(events: Interactions, values: npt.NDArray[np.float64]) -> Int64s:
    totals = np.zeros(events.num_items, np.int64)
    np.add.at(totals, events.items, on_grid(values, _BITS))
    return totals
