"""Sealed test events: a split whose test fold opens once, for a finished model, and lets
nobody train afterwards.

Figures and quality tables load their data here. Before the opening there are train and validation;
the opening takes the model's arrays and keeps their SHA-256, which a row may record; after it,
train and validation are closed to whoever holds the seal. So no choice and no training of that seal
can have seen a test event. Data read from disk is kept and sealed anew for every training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.splits import Fold, Split
from fedrec.errors import LeakageError
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import Scenario

_REMEDY = "Take a seal of its own for every training, finish the model, then open it."
PUBLIC_SOURCES = {"users_file", "users_format", "users_ids", "users_share", "similar_file"}
"""Keys of [collective] that decide which data is read."""


@dataclass(frozen=True)
class Opened:
    """What may be measured once a model is finished: the whole split, and the SHA-256 of the
    model's arrays at the opening."""

    split: Split
    model_sha256: str


class SealedSplit:
    """Train and validation until `open`; test after it."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._opened = False

    @property
    def follows(self) -> bool:
        """Whether lists are of what follows the history in time: nothing that the test holds."""
        return self._split.follows

    @property
    def train(self) -> Interactions:
        """Events to learn from. Raises LeakageError after the opening."""
        return self._before("train").train

    @property
    def validation(self) -> Fold:
        """What choices are made by. Raises LeakageError after the opening."""
        return self._before("validation").validation

    def open(self, model: Mapping[str, npt.NDArray[Any]]) -> Opened:
        """The split with its test events, for the finished model of these arrays.

        Raises LeakageError the second time."""
        split = self._before("test")
        self._opened = True
        return Opened(split, _digest(model))

    def again(self) -> SealedSplit:
        """Return the same split, sealed, for another training."""
        return SealedSplit(self._split)

    def _before(self, part: str) -> Split:
        if self._opened:
            raise LeakageError(f"{part} was asked for after the test events had been read", _REMEDY)
        return self._split


def load_sealed(scenario: Scenario) -> tuple[Dataset, SealedSplit]:
    """The scenario's data and its split under a new seal.

    Of the data set only catalogue and features are for use: it holds all events. A threshold is of
    the ratings of real data: clicks that are planted in their place have no values."""
    if not scenario.data.path:
        said = scenario.data.model_dump(exclude_unset=True, exclude={"click_threshold"})
        data = type(scenario.data).model_validate(said)
        scenario = scenario.model_copy(update={"data": data})
    content = scenario.model_dump_json(
        include={"data": True, "split": True, "collective": PUBLIC_SOURCES}
    )
    dataset, split = _read(
        _Asked(content if scenario.data.path else f"{scenario.seed} {content}", scenario)
    )
    return dataset, SealedSplit(split)


@dataclass(frozen=True)
class _Asked:
    """Equal where the same events are read and divided alike."""

    key: str
    scenario: Scenario = field(compare=False)


@lru_cache(maxsize=3)  # as many as a figure has seeds
def _read(asked: _Asked) -> tuple[Dataset, Split]:
    dataset = load_dataset(asked.scenario)
    return dataset, load_split(asked.scenario, dataset)


def _digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of names, shapes and bytes."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(
            f"{name} {array.shape} {array.dtype}".encode() + np.ascontiguousarray(array).tobytes()
        )
    return found.hexdigest()
