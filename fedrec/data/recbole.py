"""RecBole's atomic files: typed `.inter` of events and `.item` of items."""

from __future__ import annotations

from pathlib import Path

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
