"""Wherever ids of two tables meet: where none is known it is refused, and where a part is unknown a
warning has one id of each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fedrec
from fedrec.data.features import read_metadata
from fedrec.data.frames import read_frame
from fedrec.data.public_sources import with_public_users
from fedrec.errors import DataError, UnknownIdsWarning

OWN = [f"own{j}" for j in range(8)]
ROWS = {"user": [f"u{k}" for k in range(8) for _ in range(4)],
        "item": [OWN[(k + j) % 8] for k in range(8) for j in range(4)]}  # fmt: skip


@cache
def _model() -> Any:
    return fedrec.Popularity(epsilon=5, noise="seeded").fit(fedrec.Dataset.from_frame(ROWS))


def _read(**parts: Any) -> Any:
    return fedrec.Dataset.from_frame(ROWS, **parts)


def _held(items: Sequence[str]) -> dict[str, list[str]]:
    """Rows that training does not have."""
    return {"user": [f"u{(n + 3) % 8}" for n in range(len(items))], "item": [*items][::-1]}


def _file(folder: Path, items: Sequence[str]) -> Any:
    pl.DataFrame(ROWS).write_csv(folder / "log.csv")
    pl.DataFrame({"item": items, "genre": [f"g{n % 2}" for n, _ in enumerate(items)]}).write_csv(
        folder / "items.csv"
    )
    return fedrec.Dataset.from_file(folder / "log.csv", features_path=f"{folder}/items.csv")


def _public(folder: Path, items: Sequence[str]) -> Any:
    public = read_frame({"user": [f"p{n}" for n, _ in enumerate(items)], "item": items})
    return with_public_users(read_frame(ROWS), public, same_ids=True)


def _metadata(folder: Path, items: Sequence[str]) -> Any:
    lines = (f'{{"movieId": "{item}", "director": "d{n % 2}"}}\n' for n, item in enumerate(items))
    (folder / "metadata.jsonl").write_text("".join(lines))
    return read_metadata(folder / "metadata.jsonl", OWN, min_items=1)


def _vectors(items: Sequence[str]) -> dict[str, Sequence[object]]:
    return {"item": items, "x": [float(n * n % 5) for n, _ in enumerate(items)]}


DOORS: Mapping[str, Callable[[Path, Sequence[str]], Any]] = {
    "test": lambda _, items: _read(test=_held(items)),
    "validation": lambda _, items: _read(test=_held(OWN[:1]), validation=_held(items)),
    "items": lambda _, items: _read(items={"item": items, "g": [*"abcdefgh"][: len(items)]}),
    "items of a file": _file,
    "metadata": _metadata,
    "similar_items": lambda _, items: _read(
        similar_items={"item": items, "neighbour": [*items[1:], items[0]]}
    ),
    "item_vectors": lambda _, items: _read(item_vectors=_vectors(items)),
    "public users": _public,
    "history": lambda _, items: _model().recommend(history=items, k=1),
    "histories": lambda _, items: _model().recommend(histories={"ann": items}, k=1),
    "filter": lambda _, items: _model().recommend(history=[OWN[0]], filter=items, k=1),
    "exclude": lambda _, items: _model().recommend(history=[OWN[0]], exclude=items, k=1),
}


@pytest.mark.parametrize("door", DOORS)
def test_none_known_is_refused_and_a_part_unknown_is_warned_of_with_one_of_each_side(
    door: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as refused:
        DOORS[door](tmp_path, [f"other{j}" for j in range(8)])
    said = f"{refused.value.cause} {refused.value.remedy}"
    assert "other" in said
    assert "own" in said
    with pytest.warns(UnknownIdsWarning) as warned:
        DOORS[door](tmp_path, [*OWN[1:4], *(f"other{j}" for j in range(5))])
    said = str(warned[0].message)
    assert "other" in said
    assert "own" in said


@pytest.mark.parametrize("door", DOORS)
def test_where_all_is_known_nothing_is_said(door: str, tmp_path: Path) -> None:
    known = OWN[:3] if door in ("history", "histories", "filter", "exclude") else OWN
    DOORS[door](tmp_path, known)  # a warning would be an error
