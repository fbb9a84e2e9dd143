"""Tables that are divided already: the files of training, validation and test rows, and that no
part has what an earlier one has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from fedrec.data.dataset import Catalogue
from fedrec.data.interactions import Interactions
from fedrec.data.item_tables import PARQUET
from fedrec.data.resolving import Duplicates
from fedrec.errors import DataError, LeakageError, SettingsError

PARTS = ("train", "validation", "test")
"""Names, before the suffix, of the files of a folder that is divided already."""


def is_divided(folder: Path) -> bool:
    """Whether a folder holds tables of training and of test rows."""
    return _part(folder, "train") is not None and _part(folder, "test") is not None


def sources(path: Path, validation: str, test: str) -> dict[str, Path]:
    """The file, or folder of Parquet parts, of each of PARTS that there is."""
    if validation and not test:
        raise SettingsError("data.validation needs data.test beside it", "Name the test rows too.")
    if path.is_dir() and is_divided(path):
        if test:
            raise SettingsError(
                f"{path} has test rows of its own, and data.test names others",
                "Name the file of training rows as data.path.",
            )
        return {name: file for name in PARTS if (file := _part(path, name)) is not None}
    return {"train": path} | {
        name: Path(file) for name, file in (("validation", validation), ("test", test)) if file
    }


def _part(folder: Path, name: str) -> Path | None:
    """`train.csv`, `train.csv.gz`, `train.parquet`, ...: the only one there is.

    Raises DataError where there are two."""
    known = (".csv", ".tsv", ".tab", ".jsonl", *PARQUET)
    found = sorted(
        file
        for file in folder.glob(f"{name}.*")
        if file.name.lower().removesuffix(".gz") in {f"{name}{end}" for end in known}
    )
    if len(found) > 1:
        raise DataError(
            f"{folder} holds {found[0].name} and {found[1].name}",
            "Leave one of them there, or name the files you mean.",
        )
    return found[0] if found else None


def alike(frames: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Frames of one schema: ids that are numbers in one file and text in another are text."""
    for role in ("user", "item"):
        whole = all(frame[role].dtype.is_integer() for frame in frames)
        frames = [
            frame.with_columns(
                pl.col(role).cast(pl.Int64)
                if whole
                else pl.col(role).cast(pl.String).cast(pl.Categorical)
            )
            for frame in frames
        ]
    return list(frames)


def apart(
    parts: dict[str, Interactions],
    source: dict[str, Path],
    catalogue: Catalogue,
    duplicates: Duplicates,
) -> tuple[dict[str, Interactions], tuple[str, ...]]:
    """Parts that share no pair of user and item: what an earlier part has is left out of a later
    one, or refused as repeated rows are."""
    seen = np.zeros(0, np.int64)
    apart = dict[str, Interactions]()
    notes = list[str]()
    for name, events in parts.items():
        keys = events.users.astype(np.int64) * events.num_items + events.items
        again = np.isin(keys, seen)
        if again.any():
            k, j = divmod(int(keys[again][0]), events.num_items)
            found = (
                f"{int(again.sum())} rows of {source[name].name} repeat a user and item of an "
                "earlier part"
            )
            if duplicates == "refuse":
                first = f"the first: user {catalogue.user_ids[k]!r}, item {catalogue.item_ids[j]!r}"
                raise LeakageError(
                    f"{found}, {first}",
                    (
                        'Drop them from one file, or set data.duplicates = "last", which leaves '
                        "them out."
                    ),
                )
            notes.append(f"{found} and were left out of it")
        apart[name] = events.select(~again)
        seen = np.concatenate([seen, keys[~again]])
    return apart, tuple(notes)
