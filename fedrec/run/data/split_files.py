"""Files of a scenario's split: `train.parquet`, `validation.parquet` and `test.parquet`, with the
ids of the source.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fedrec.arrays import Int32s
from fedrec.data.interactions import Catalogue, Interactions
from fedrec.data.splits import Fold
from fedrec.errors import RunError, SettingsError
from fedrec.output_folders import clear, finish, require_ours
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import Scenario
from fedrec.storage import write_json


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
    if require_ours(folder, "split") and not overwrite:
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
        clear(folder, "split", private=True)  # raw rows
        for name, frame in frames.items():
            frame.write_parquet(folder / f"{name}.parquet")
        write_json(folder / "split.json", about)
        finish(folder, "split")
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
