"""Clicks as the graph recommenders publish them, with their own train, validation and test sets.

`clicks-lists`: `train.txt` and `test.txt` (and `validation.txt` or `valid.txt`), one user a line,
the user and then its items, numbers from 0 separated by blanks (LightGCN, KGAT).
"""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import numpy as np

from fedrec.arrays import Int32s
from fedrec.data.assembling import RowRules
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import (
    CATALOGUE_OF_ROWS,
    Catalogue,
    Dataset,
    Interactions,
    Provenance,
    added,
    digest_file,
)
from fedrec.data.opening import lines_of, require_file
from fedrec.data.resolving import Duplicates, Policies, Rows
from fedrec.data.table_columns import TableColumns
from fedrec.errors import DataError, MalformedRowError

Pairs = tuple[Int32s, Int32s, tuple[int, int], Int32s]
"""Users, items, the shape that holds them, and lines."""


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
    parts = [_list_pairs(require_file(file)) for file in files.values()]
    num_users, num_items = (max(shape[side] for _, _, shape, _ in parts) for side in (0, 1))
    clicks = sum(len(users) for users, _, _, _ in parts)
    if max(num_users, num_items) > max(10_000, 50 * clicks):
        remedy = "Users and items must be numbered from 0 without large gaps."
        raise DataError(
            f"{files['train']} names {num_users} x {num_items} users and items in {clicks} clicks",
            remedy,
        )
    rules = RowRules(files["train"].name, TableColumns(rating=None), Policies(duplicates))
    events = dict[str, Interactions]()
    reports = []
    notes = list[str]()
    for (name, file), (users, items, _, lines) in zip(files.items(), parts, strict=True):
        rows = Rows(file, users, items, None, None, lines=lines)
        part, report = rules.read(rows, num_users=num_users, num_items=num_items)
        events[name] = rules.counted(part)
        notes += rules.left_out(part, events[name], file.name)
        reports.append(report)
    catalogue = Catalogue(
        tuple(map(str, range(num_items))), None, tuple(map(str, range(num_users)))
    )
    digests = tuple(digest_file(file) for file in files.values())
    report = added(reports, tuple(notes))
    return Dataset(
        events["train"],
        catalogue,
        PublicFeatures({}),
        Provenance("clicks-lists", digests, report, (CATALOGUE_OF_ROWS,)),
        events.get("test"),
        events.get("validation"),
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
