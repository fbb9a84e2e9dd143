"""Clicks as the graph recommenders publish them, with their own train, validation and test sets.

`clicks-lists`: `train.txt` and `test.txt` (and `validation.txt` or `valid.txt`), one user a line,
the user and then its items, numbers from 0 separated by blanks (LightGCN, KGAT). `clicks-npz`:
`*train*.npz` and `*test*.npz` (and `*valid*.npz`), SciPy sparse matrices of users x items, every
stored entry a click.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from scipy import sparse

from fedrec.arrays import Int32s
from fedrec.data.dataset import (
    CATALOGUE_OF_ROWS,
    Catalogue,
    Dataset,
    Provenance,
    added,
    digest_file,
)
from fedrec.data.delimited import require_file
from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.resolving import Duplicates, Policies, Rows, resolve
from fedrec.errors import DataError, MalformedRowError

Shape = tuple[int, int]


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
    return _dataset("clicks-lists", files, _list_pairs, duplicates)


def read_click_matrices(path: Path, *, duplicates: Duplicates = "auto") -> Dataset:
    """A folder with one `*train*.npz`, at most one `*test*.npz` (the `given_test`) and one
    `*valid*.npz`; or one such file.

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
    return _dataset("clicks-npz", files, _matrix_pairs, duplicates)


def _dataset(
    name: str,
    files: Mapping[str, Path],
    pairs: Callable[[Path], tuple[Int32s, Int32s, Shape, Int32s | None]],
    duplicates: Duplicates,
) -> Dataset:
    parts = [pairs(require_file(file)) for file in files.values()]
    num_users, num_items = (max(shape[side] for _, _, shape, _ in parts) for side in (0, 1))
    clicks = sum(len(users) for users, _, _, _ in parts)
    if max(num_users, num_items) > max(10_000, 50 * clicks):
        remedy = "Users and items must be numbered from 0 without large gaps."
        raise DataError(
            f"{files['train']} names {num_users} x {num_items} users and items in {clicks} clicks",
            remedy,
        )
    events, reports = dict[str, Interactions](), []
    for (part_name, file), (users, items, _, lines) in zip(files.items(), parts, strict=True):
        rows = Rows(file, users, items, None, None, lines=lines)
        part, report = resolve(
            rows,
            num_users=num_users,
            num_items=num_items,
            value_range=(0.0, 1.0),
            kind="clicks",
            policies=Policies(duplicates),
        )
        events[part_name] = part
        reports.append(report)
    catalogue = Catalogue(
        tuple(map(str, range(num_items))), None, tuple(map(str, range(num_users)))
    )
    digests = tuple(digest_file(file) for file in files.values())
    provenance = Provenance(name, digests, added(reports), (CATALOGUE_OF_ROWS,))
    return Dataset(
        events["train"],
        catalogue,
        PublicFeatures({}),
        provenance,
        events.get("test"),
        events.get("validation"),
    )


def _list_pairs(path: Path) -> tuple[Int32s, Int32s, Shape, Int32s | None]:
    """Users, items, the smallest shape that holds them, and the line of each pair."""
    users: list[int] = []
    items: list[Int32s] = []
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
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


def _matrix_pairs(path: Path) -> tuple[Int32s, Int32s, Shape, Int32s | None]:
    try:
        matrix = sparse.coo_matrix(sparse.load_npz(path))
    except Exception as error:
        # zipfile, zlib, NumPy and SciPy raise a dozen types on a damaged file
        raise DataError(
            f"{path} is not a SciPy sparse matrix", "Write it with scipy.sparse.save_npz."
        ) from error
    clicked = matrix.data != 0
    return (
        matrix.row[clicked].astype(np.int32),
        matrix.col[clicked].astype(np.int32),
        matrix.shape,
        None,
    )


def _single(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(
            f"{folder} holds {len(found)} files {pattern}, one is needed",
            "Leave one, or give the path of the train matrix alone.",
        )
    return found[0]
