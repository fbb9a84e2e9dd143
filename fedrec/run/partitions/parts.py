"""Parts of a partitioned data set, read and divided as the scenario says, with a cache that holds
so many bytes at most. The protocol that every engine carries out: `map` a task over parts, `merge`
what came of them; `finish` is the caller's.

    map:    task.map(part)     on any machine that can read the part
    merge:  sums.merge(other)  anywhere, in any order and any tree: all sums are integers
    finish: of a round, `rounds.finish`: the ledger is charged and noise drawn once, by whoever
        drives

An engine is one function, `Engine.reduce`. Whoever writes one for Dask or Spark writes that
function: `delayed(task.map)` of each part and `delayed(merged)` of pairs, or
`rdd.map(task.map).treeReduce(merged)`. Parts lost with a worker are mapped again: a task changes
nothing.

The engine of one process takes one part after another, so that memory is bounded by a part, the
cache and the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Catalogue, Dataset, Interactions
from fedrec.data.partitions import PartitionedData, open_partitions
from fedrec.data.splits import Split
from fedrec.errors import SettingsError
from fedrec.run.data.datasets import DIVISIONS, Events, require_one_validation
from fedrec.run.data.describing import require_partitionable
from fedrec.run.data.keys import PARTITIONED, require_used
from fedrec.settings import Scenario

CACHE_BYTES = 512 << 20
"""Divided parts that one worker keeps."""
Told = Callable[[int, int], None]
"""Called with how many parts are done, and of how many."""


@dataclass(frozen=True)
class PartSplit:
    """The users of part `index`, divided; train and folds number them anew, in the part's order."""

    index: int
    split: Split

    @property
    def size_bytes(self) -> int:
        """Memory of its arrays; parts that train and folds share count once."""
        folds = (self.split.validation, self.split.test)
        arrays = {
            id(events): events
            for events in (
                self.split.train,
                *(f.history for f in folds),
                *(f.targets for f in folds),
            )
        }
        return sum(
            12 * len(events)
            + 8 * len(events.user_ptr)
            + (8 * len(events) if events.times is not None else 0)
            for events in arrays.values()
        )


@dataclass
class Parts:
    """The parts of the scenario's data; crosses to other machines without what it has read."""

    scenario: Scenario
    cache_bytes: int = CACHE_BYTES
    _kept: dict[int, PartSplit] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {"scenario": self.scenario, "cache_bytes": self.cache_bytes, "_kept": {}}

    @cached_property
    def data(self) -> PartitionedData:
        """What the manifest says."""
        return open_partitions(self.scenario.data.path)

    def read(self, index: int) -> PartSplit:
        """A part, divided, from memory where it is kept.

        Raises DataError where its file is missing or damaged."""
        if index in self._kept:
            return self._kept[index]
        part = self.data.read_part(index)
        kind = self.scenario.data.kind
        threshold = self.scenario.data.click_threshold
        events, test, validation = (
            None if e is None else e.as_chosen(kind, threshold=threshold)
            for e in (part.events, part.test, part.validation)
        )
        assert events is not None
        found = PartSplit(index, without_times(self._divided(events, test, validation)))
        # what is kept stays: every pass reads all parts in turn, and whoever drops the oldest for
        # the newest has dropped each part before it comes again
        if sum(kept.size_bytes for kept in self._kept.values()) + found.size_bytes <= (
            self.cache_bytes
        ):
            self._kept[index] = found
        return found

    def _divided(
        self, events: Interactions, test: Interactions | None, validation: Interactions | None
    ) -> Split:
        chosen = self.scenario.split
        return DIVISIONS[chosen.kind].divide(
            Events(events, test, validation, some_users=True), chosen
        )

    def require_usable(self) -> None:
        """Raises SettingsError where the scenario asks for what no part can decide, or for a split
        that the data does not have."""
        require_partitionable(self.scenario)
        require_used(
            self.scenario,
            PARTITIONED,
            "partitions",
            "Say it to fedrec data partition, or leave it out.",
        )
        if self.scenario.data.format not in ("auto", "partitions"):
            raise SettingsError(
                f"data.format = {self.scenario.data.format}, but data.path holds partitions",
                "Leave it out.",
            )
        chosen = self.scenario.split
        given_parts = self.data.given
        division = DIVISIONS[chosen.kind]
        if division.cut and chosen.cuts is None:
            raise SettingsError(
                "split.kind = temporal reads its cuts off all events, which no partition knows",
                "Give public times: split.cuts = [FIRST, SECOND].",
            )
        if chosen.own_test != bool(given_parts):
            came = "comes with its own test rows" if given_parts else "has no test rows of its own"
            raise SettingsError(
                f"this data {came}", f"{'Set' if given_parts else 'Change'} split.kind = given."
            )
        require_one_validation("validation" in given_parts, chosen)
        if division.timed and not self.data.timed:
            raise SettingsError(
                f"split.kind = {chosen.kind} needs times, and this data has none",
                "Choose the random or the held-out-users split.",
            )

    def public(self) -> Dataset:
        """The data set without its users: catalogue, features, provenance."""
        data = self.data
        empty = Interactions(
            np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), data.num_items,
            data.value_range, data.kind,
            user_words=np.zeros(0, np.uint64), item_words=data.item_words,
        )  # fmt: skip
        chosen = self.scenario.data
        events = empty.as_chosen(chosen.kind, threshold=chosen.click_threshold)
        features = data.features if self.scenario.data.features else PublicFeatures({})
        return Dataset(events, Catalogue(data.item_ids, data.titles, ()), features, data.provenance)


def without_times(split: Split) -> Split:
    """Return the split without times: nothing asks for them once events are divided."""
    seen = dict[int, Interactions]()

    def bare(events: Interactions) -> Interactions:
        return seen.setdefault(id(events), replace(events, times=None))

    folds = (
        replace(fold, history=bare(fold.history), targets=bare(fold.targets))
        for fold in (split.validation, split.test)
    )
    train = bare(split.train)
    validation, test = folds
    return replace(split, train=train, validation=validation, test=test, cuts=None)


class PartTask(Protocol):
    """What is asked of every part: a value that crosses to other machines."""

    def map(self, part: PartSplit) -> Any:
        """Sums of this part's users alone: the same whenever and wherever it is computed."""


class Engine(Protocol):
    """Where tasks are carried out. One engine belongs to one data set and one split."""

    @property
    def parts(self) -> int:
        """How many parts there are."""

    def reduce(self, task: PartTask, told: Told, *, only: int | None = None) -> Any:
        """The merged sums of all parts, each counted exactly once, or of the part `only`.

        Raises FedRecError as the parts' reader does."""

    def close(self) -> None:
        """End what the engine started."""


def merged(one: Any, other: Any) -> Any:
    """The sums of both, in the place of the first; None stands for nothing yet."""
    if one is None or other is None:
        return one if other is None else other
    one.merge(other)
    return one


def on_grid(values: npt.NDArray[np.floating], bits: int) -> npt.NDArray[np.int64]:
    """Multiples of 2^-bits nearest to the values: what is added up in integers is the same in any
    order."""
    return np.rint(np.asarray(values, np.float64) * 2.0**bits).astype(np.int64)


@dataclass
class InThisProcess:
    """See `protocol.Engine`."""

    source: Parts

    @property
    def parts(self) -> int:
        """See `protocol.Engine`."""
        return len(self.source.data.parts)

    def reduce(self, task: PartTask, told: Told, *, only: int | None = None) -> Any:
        """See `protocol.Engine`."""
        asked = range(self.parts) if only is None else [only]
        total = None
        for done, index in enumerate(asked, start=1):
            total = merged(total, task.map(self.source.read(index)))
            told(done, len(asked))
        return total

    def close(self) -> None:
        """See `protocol.Engine`."""
