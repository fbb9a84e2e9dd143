"""Sealed test events: a split whose test fold opens once, for a finished model, and lets
nobody train afterwards.

Figures and quality tables load their data here. Before the opening there are train and validation;
the opening takes the model's arrays and keeps their SHA-256, which a row may record; after it,
train and validation are closed to whoever holds the seal. So no choice and no training of that seal
can have seen a test event. Data read from disk is kept and sealed anew for every training.

A scenario's split can be written as files, `train.parquet`, `validation.parquet` and
`test.parquet`, with the ids of the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from fedrec.arrays import Int32s
from fedrec.data.interactions import Catalogue, Dataset, Interactions
from fedrec.data.splits import Fold, Split
from fedrec.errors import LeakageError, RunError, SettingsError
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import Scenario
from fedrec.storage import write_json

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

    Of the data set only catalogue and features are for use: it holds all events."""
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


def write_split(scenario: Scenario, folder: Path, *, overwrite: bool = False) -> str:
    """Divide the scenario's data and write the parts; a line for each file, and one for what no
    guarantee covers.

    Columns: user, item, then `rating` (ratings only), `timestamp` (where there are times), and for
    held-out users `target`: whether the row is to be predicted or shown beforehand. `split.json`
    tells the settings, sizes and digests, and what is not covered. Raises SettingsError for news,
    RunError where the folder holds something and `overwrite` is false, and what reading raises.
    """
    if scenario.learns_news:
        raise SettingsError(
            "news are divided by whole users, and are no table of ratings",
            "Give ratings or clicks.",
        )
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file", "Name a folder.")
    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty", "Name another folder, or give --overwrite.")
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    frames = {"train": _frame(split.train, split.train_users, dataset.catalogue)}
    frames |= {
        name: _fold(fold, dataset.catalogue)
        for name, fold in (("validation", split.validation), ("test", split.test))
    }
    about = {"provenance": dataset.provenance.describe(), "split": split.describe()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            frame.write_parquet(folder / f"{name}.parquet")
        write_json(folder / "split.json", about)
    except OSError as failure:
        raise RunError(
            f"{folder} cannot be written: {failure.strerror or failure}", "Name another folder."
        ) from None
    lines = [
        f"{folder / f'{name}.parquet'}  {len(frame):,} rows of {frame['user'].n_unique():,} users"
        for name, frame in frames.items()
    ]
    return "\n".join(
        [
            *lines,
            *(f"not covered by a guarantee for training: {what}" for what in split.not_covered),
        ]
    )


def _fold(fold: Fold, catalogue: Catalogue) -> pl.DataFrame:
    """The targets; of users whom train does not have, their history too."""
    targets = _frame(fold.targets, fold.users, catalogue)
    if fold.users is None:
        return targets
    shown = _frame(fold.history, fold.users, catalogue)
    return pl.concat(
        [shown.with_columns(target=pl.lit(False)), targets.with_columns(target=pl.lit(True))]
    )


def _frame(events: Interactions, numbers: Int32s | None, catalogue: Catalogue) -> pl.DataFrame:
    """numbers: the data set's number of each user of the part, where the part numbers them anew."""
    users = events.users if numbers is None else numbers[events.users]
    columns = {
        "user": pl.Series(catalogue.user_ids, dtype=pl.String).gather(users.astype(np.uint32)),
        "item": pl.Series(catalogue.item_ids, dtype=pl.String).gather(
            events.items.astype(np.uint32)
        ),
    }
    if events.rated:
        columns["rating"] = pl.Series(events.values)
    if events.times is not None:
        columns["timestamp"] = pl.Series(events.times)
    return pl.DataFrame(columns)
