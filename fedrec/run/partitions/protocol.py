"""The protocol that every engine carries out: `map` a task over parts, `merge` what came of them;
`finish` is the caller's.

    map:    task.map(part)     on any machine that can read the part
    merge:  sums.merge(other)  anywhere, in any order and any tree: all sums are integers
    finish: of a round, `rounds.finish`: the ledger is charged and noise drawn once, by whoever
        drives

An engine is one function, `Engine.reduce`. Whoever writes one for Dask or Spark writes that
function: `delayed(task.map)` of each part and `delayed(merged)` of pairs, or
`rdd.map(task.map).treeReduce(merged)`. Parts lost with a worker are mapped again: a task changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from fedrec.run.partitions.parts import PartSplit


class Sums(Protocol):
    """What a task makes of a part, and of all parts."""

    def merge(self, other: Self) -> None:
        """Add the sums of other parts. Changes nothing but this value."""


class PartTask(Protocol):
    """What is asked of every part: a value that crosses to other machines."""

    def map(self, part: PartSplit) -> Any:
        """Sums of this part's users alone: the same whenever and wherever it is computed."""


Told = Callable[[int, int], None]
"""Called with how many parts are done, and of how many."""


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
