"""Clicks as the graph recommenders publish them, with their own train, validation and test sets.

`clicks-lists`: `train.txt` and `test.txt` (and `validation.txt` or `valid.txt`), one user a line,
the user and then its items, numbers from 0 separated by blanks (LightGCN, KGAT). `clicks-npz`:
`*train*.npz` and `*test*.npz` (and `*valid*.npz`), SciPy sparse matrices of users x items, every
stored entry a click.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from fedrec.arrays import Float32s, Int32s
from fedrec.data.assembling import RowRules
from fedrec.data.features import PublicFeatures
from fedrec.data.frame_files import npz_matrix
from fedrec.data.interactions import (
    CATALOGUE_OF_ROWS,
    Catalogue,
    Dataset,
    Interactions,
    Provenance,
    added,
    digest_file,
)
from fedrec.data.opening import lines_of, require_file, understood
from fedrec.data.resolving import Duplicates, Policies, Rows
from fedrec.data.table_columns import TableColumns
from fedrec.errors import DataError, MalformedRowError

Shape = tuple[int, int]
Pairs = tuple[Int32s, Int32s, Shape, Float32s | None, Int32s | None]
"""Users, items, the shape that holds them, and, where there are any, values and lines."""


def read_click_lists(path: Path, *, duplicates: Duplicates = "auto") -> Dataset:
    """A folder with `train.txt` and, if there are any, `test.txt` (the `given_test`) and
    `validation.txt`; or one such file.

    Users and items are the numbers up to the largest in any file. Raises DataError on a missing or
    empty file, MalformedRowError at a line that is not whole numbers from 0.
    """
    files = {"train": path / "train.txt" if path.is_dir() else path}
    if path.is_dir():
        names = {"test": ("test.txt",), "validation": ("validation.txt", "valid.txt")}
        files |= {
            part: path / name
            for part, known in names.items()
            for name in known
            if (path / name).exists()
        }
    return _dataset("clicks-lists", files, _list_pairs, Policies(duplicates), None)


def read_click_matrices(
    path: Path, *, duplicates: Duplicates = "auto", click_threshold: float | None = None
) -> Dataset:
    """A folder with one `*train*.npz`, at most one `*test*.npz` (the `given_test`) and one
    `*valid*.npz`; or one such file.

    Every stored entry but zeros is a click; with a click_threshold, those of so much or more, of
    several entries of one user and item their sum. Without one, entries below zero are refused.

    Raises DataError on missing files or what is not a SciPy sparse matrix. A "line" in a message is
    the number of a stored entry.
    """
    files = {"train": _single(path, "*train*.npz") if path.is_dir() else path}
    if path.is_dir():
        files |= {
            part: _single(path, name)
            for part, name in (("test", "*test*.npz"), ("validation", "*valid*.npz"))
            if any(path.glob(name))
        }
    return _dataset(
        "clicks-npz",
        files,
        partial(_matrix_pairs, least=click_threshold),
        Policies(duplicates),
        click_threshold,
    )


def _dataset(
    name: str,
    files: Mapping[str, Path],
    pairs: Callable[[Path], Pairs],
    policies: Policies,
    click_threshold: float | None,
) -> Dataset:
    parts = [pairs(require_file(file)) for file in files.values()]
    num_users, num_items = (max(shape[side] for _, _, shape, _, _ in parts) for side in (0, 1))
    clicks = sum(len(users) for users, _, _, _, _ in parts)
    if max(num_users, num_items) > max(10_000, 50 * clicks):
        remedy = "Users and items must be numbered from 0 without large gaps."
        raise DataError(
            f"{files['train']} names {num_users} x {num_items} users and items in {clicks} clicks",
            remedy,
        )
    valued = click_threshold is not None
    columns = TableColumns(rating="value" if valued else None)
    rules = RowRules(files["train"].name, columns, policies, click_threshold=click_threshold)
    events = dict[str, Interactions]()
    reports = []
    notes = list[str]()
    for (part_name, file), (users, items, _, values, lines) in zip(
        files.items(), parts, strict=True
    ):
        rows = Rows(file, users, items, values if valued else None, None, lines=lines)
        part, report = rules.read(rows, num_users=num_users, num_items=num_items)
        events[part_name] = rules.counted(part)
        notes += rules.left_out(part, events[part_name], file.name)
        if values is not None and not valued and (values != 1).any():
            notes.append(f"{file.name}: every entry is a click, whatever its value")
        reports.append(report)
    catalogue = Catalogue(
        tuple(map(str, range(num_items))), None, tuple(map(str, range(num_users)))
    )
    digests = tuple(digest_file(file) for file in files.values())
    provenance = Provenance(name, digests, added(reports, tuple(notes)), (CATALOGUE_OF_ROWS,))
    return Dataset(
        events["train"],
        catalogue,
        PublicFeatures({}),
        provenance,
        events.get("test"),
        events.get("validation"),
        {"rating": "value"} if valued else {},
    )


def _list_pairs(path: Path) -> Pairs:
    """Users, items, the smallest shape that holds them, and the line of each pair."""
    users: list[int] = []
    items: list[Int32s] = []
    with path.open("rb") as file:
        for line, text in enumerate(lines_of(file), start=1):
            numbers = _whole_numbers(path, line, text)
            users.append(int(numbers[0]))
            items.append(numbers[1:])
    lengths = [len(part) for part in items]
    clicked = np.concatenate(items)
    if not len(clicked):
        raise DataError(f"{path} holds no clicks", "Check that the file is whole.")
    lines = np.repeat(np.arange(1, len(users) + 1, dtype=np.int32), lengths)
    return (
        np.repeat(np.array(users, np.int32), lengths),
        clicked,
        (max(users) + 1, int(clicked.max()) + 1),
        None,
        lines,
    )


def _whole_numbers(path: Path, line: int, text: bytes) -> Int32s:
    fields = text.removeprefix(BOM_UTF8 if line == 1 else b"").split()
    if not fields or not all(field.isdigit() and len(field) < 10 for field in fields):
        bad = next((field for field in fields if not field.isdigit() or len(field) >= 10), b"")
        raise MalformedRowError(
            path,
            line,
            "a user and its items as whole numbers from 0",
            bad.decode("utf-8", "replace"),
        )
    return np.array(fields, dtype=np.int32)


def _matrix_pairs(path: Path, *, least: float | None) -> Pairs:
    matrix = npz_matrix(path)
    with understood(path, "Store numbers, 1 for a click."):
        values = np.asarray(matrix.data, np.float32)
        bad = ~np.isfinite(values) if least is not None else ~(values >= 0)
    if len(found := np.flatnonzero(bad)):
        raise MalformedRowError(
            path,
            int(found[0]) + 1,
            "1 for a click, or a count",
            f"{values[found[0]]:g}",
            "Drop such entries, or say from which value on one is a click: click_threshold.",
        )
    some = values != 0
    users, items = (side[some].astype(np.int32) for side in (matrix.row, matrix.col))
    lines = (np.flatnonzero(some) + 1).astype(np.int32)
    return users, items, matrix.shape, values[some], lines


def _single(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(
            f"{folder} holds {len(found)} files {pattern}, one is needed",
            "Leave one, or give the path of the train matrix alone.",
        )
    return found[0]
