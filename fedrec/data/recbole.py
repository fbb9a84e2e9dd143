"""RecBole's atomic files: typed `.inter` of events and `.item` of items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fedrec.data.assembling import Frame, RowRules, dataset_of
from fedrec.data.delimited import decoded
from fedrec.data.interactions import Dataset
from fedrec.data.item_tables import read_item_table
from fedrec.data.opening import line_of, open_bytes
from fedrec.data.resolving import Duplicates, Missing, OutOfRange, Policies
from fedrec.data.table_columns import TableColumns, used_columns
from fedrec.data.table_files import Written, first_values, read_frame
from fedrec.data.text_tables import layout_of
from fedrec.errors import DataError, MalformedRowError
from fedrec.storage import writing


def read_recbole(
    path: Path,
    *,
    rating_range: tuple[float, float] | None = None,
    click_threshold: float | None = None,
    user: str = "user_id",
    item: str = "item_id",
    rating: str = "",
    timestamp: str = "timestamp",
    min_items: int = 1,
    duplicates: Duplicates = "auto",
    out_of_range: OutOfRange = "refuse",
    missing: Missing = "refuse",
) -> Dataset:
    """A RecBole atomic data set: `NAME.inter` (or the folder that holds it) with the `NAME.item`
    beside it, if there is one.

    Headers are typed (`user_id:token`, `rating:float`, `genre:token_seq`). Ratings where there is a
    column of them; click_threshold as in `tables.read_table`. Raises SettingsError when ratings
    come without `rating_range`, DataError and MalformedRowError as every reader.
    """
    inter = _only_inter(path)
    typed = recbole_header(inter)
    rated = rating_range is not None or click_threshold is not None
    named = rating or ("rating" if "rating" in typed and not rated else None)
    columns = TableColumns(user, item, named, timestamp if timestamp in typed else None)
    layout = layout_of(inter, separator="tab", header="yes", wanted=())
    columns, notes = used_columns(
        columns,
        list(typed),
        rated=rated,
        name=inter.name,
        first=lambda names: first_values(inter, layout, [typed[name] for name in names]),
    )
    items = inter.with_suffix(".item")
    table = (
        read_item_table(items, id_column=item, separator=" ", min_items=min_items)
        if items.exists()
        else None
    )
    names = {role: typed.get(column, column) for role, column in columns.names().items()}

    def frame_of(file: Path) -> Frame:
        return read_frame(file, names, layout, Written(missing))

    policies = Policies(duplicates, out_of_range, missing)
    rules = RowRules(inter.name, columns, policies, rating_range, click_threshold, table)
    return dataset_of({"train": inter}, "recbole", rules, frame_of, notes=notes)


def recbole_header(path: Path) -> dict[str, str]:
    """Field name to the header as written, `{"user_id": "user_id:token"}`.

    Raises MalformedRowError where a field has no type."""
    with open_bytes(path) as file:
        header = decoded(line_of(file), path, 1).rstrip("\r\n").split("\t")
    for field in header:
        if field.rpartition(":")[2] not in ("token", "token_seq", "float", "float_seq"):
            raise MalformedRowError(path, 1, "typed fields such as user_id:token", field)
    return {field.rpartition(":")[0]: field for field in header}


def _only_inter(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.inter"))
    if len(found) != 1:
        raise DataError(
            f"{path} holds {len(found)} .inter files", "Give the path of one .inter file."
        )
    return found[0]


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
