"""Export of a data set as RecBole's atomic files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fedrec.data.interactions import Dataset
from fedrec.errors import DataError
from fedrec.storage import writing


def write_recbole(dataset: Dataset, folder: Path, name: str) -> Path:
    """Write `NAME.inter` and `NAME.item` into `folder / NAME`.

    Blanks in a value become underscores, since RecBole separates the values of a field by blanks.
    Raises DataError on an id with a tab or a line break, and where a folder of that name holds
    something; RunError where it cannot be written.
    """
    target = folder / name
    catalogue = dataset.catalogue
    for kind, ids in (("user", catalogue.user_ids), ("item", catalogue.item_ids)):
        if bad := next((one for one in ids if any(mark in one for mark in "\t\r\n")), None):
            raise DataError(
                f"the {kind} id {bad!r} holds a tab or a line break",
                "Rename it: the files are separated by tabs.",
            )
    if Path(name).name != name:
        raise DataError(f"the name {name!r} is none of a file", "Give a name without folders.")
    with writing(target, "Name another folder."):
        if target.exists() and any(target.iterdir()):
            raise DataError(f"{target} is not empty", "Name another folder.")
        target.mkdir(parents=True, exist_ok=True, mode=0o700)  # raw rows
        _write(dataset, target, name)
    return target


def _write(dataset: Dataset, target: Path, name: str) -> None:
    events = dataset.interactions
    catalogue = dataset.catalogue
    users = np.array(catalogue.user_ids, object)
    items = np.array(catalogue.item_ids, object)
    columns: dict[str, object] = {
        "user_id:token": users[events.users].tolist(),
        "item_id:token": items[events.items].tolist(),
    }
    if events.rated:
        columns["rating:float"] = events.values
    if events.times is not None:
        columns["timestamp:float"] = events.times
    pl.DataFrame(columns).write_csv(target / f"{name}.inter", separator="\t", quote_style="never")
    described: dict[str, object] = {"item_id:token": list(catalogue.item_ids)}
    if catalogue.titles is not None:
        described["title:token_seq"] = [" ".join(title.split()) for title in catalogue.titles]
    for bag_name, bag in dataset.features.bags.items():
        if bag_name != "title":
            described[f"{bag_name}:token_seq"] = [
                _values(bag.vocabulary, bag.counts[j].indices) for j in range(len(items))
            ]
    pl.DataFrame(described).write_csv(target / f"{name}.item", separator="\t", quote_style="never")


def _values(vocabulary: tuple[str, ...], columns: np.ndarray) -> str:
    return " ".join("_".join(vocabulary[column].split()) for column in sorted(columns.tolist()))
