"""`metadata.jsonl`: one JSON object a film with what a film database prints about it, as one
feature bag per category.

Keys: `movieId` (required) and any of `title`, `year`, `genre`, `director`, `writer`, `actors`,
`plot`, `language`, `country`, `runtime`, `rated` (the certificate) and `production` (the studio);
values are strings, lists inside them are separated by commas, roles stand in parentheses ("Pete
Docter (original story by)"). Missing keys are missing values. Nothing here tells how popular a film
is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedrec.data.delimited import decoded, require_file
from fedrec.data.features import FeatureBag, bag_of, soft_bag, words
from fedrec.errors import DataError, MalformedRowError

# Category: (key in the file, least number of films that must share a value).
_LISTS = {
    "genre": ("genre", 1),
    "director": ("director", 2),
    "writer": ("writer", 2),
    "actor": ("actors", 2),
    "language": ("language", 3),
    "country": ("country", 3),
    "certificate": ("rated", 3),
    "studio": ("production", 3),
}
_PERSONS = ("director", "writer", "actors")
_PERIODS = (
    1925,
    1940,
    1950,
    1960,
    1970,
    1978,
    1984,
    1989,
    1992,
    1994,
    1996,
    1998,
    2000,
    2003,
    2006,
    2010,
    2015,
    2020,
)
_LENGTHS = (60, 80, 100, 120, 140, 160)

# How much each category says of tastes: weights for `svd_embedding`, chosen by judgement, not
# fitted to any data set.
METADATA_WEIGHTS = {
    "genre": 1.0,
    "listed_genre": 1.0,
    "year": 0.3,
    "period": 1.0,
    "director": 0.7,
    "writer": 0.5,
    "actor": 0.6,
    "person": 0.3,
    "language": 0.4,
    "country": 0.5,
    "certificate": 0.6,
    "studio": 0.5,
    "length": 0.6,
    "plot": 0.6,
    "title": 0.4,
}

Record = dict[str, str]


def read_metadata(
    path: Path, item_ids: Sequence[str], *, min_items: int | None = None
) -> tuple[dict[str, FeatureBag], int]:
    """Feature bags with one row per id of `item_ids`, and how many of these the file knows.

    A value on fewer than `min_items` items is left out (None: each category's own number, 1 to 5:
    what a single item carries is no feature but a name). Films that are not in `item_ids` are
    passed over. Raises DataError on a missing file or one that knows no item, MalformedRowError on
    a line that is not such an object or names a film twice.
    """
    records = read_records(path)
    found = [records.get(item, {}) for item in item_ids]
    known = sum(bool(record) for record in found)
    if not known:
        raise DataError(
            f"{path} describes none of the {len(item_ids)} items",
            "Check that its movieId are the ids of the ratings file.",
        )
    return metadata_bags(found, min_items=min_items), known


def metadata_bags(
    records: Sequence[Record], *, min_items: int | None = None
) -> dict[str, FeatureBag]:
    """The bags of one record per item (an empty one where nothing is known)."""

    def bag(values: Sequence[Sequence[str]], own: int) -> FeatureBag:
        return bag_of(values, min_items=own if min_items is None else min_items)

    bags = {
        name: bag([split_names(r.get(key)) for r in records], own)
        for name, (key, own) in _LISTS.items()
    }
    bags["person"] = bag(
        [_distinct(p for key in _PERSONS for p in split_names(r.get(key))) for r in records], 2
    )
    bags["plot"] = bag([words(r.get("plot", "")) for r in records], 5)
    bags |= title_bags(
        [r.get("title", "") for r in records], [_year(r) for r in records], min_items=min_items
    )
    bags["length"] = soft_bag(
        np.array([_first_number(r.get("runtime", "")) for r in records]), _LENGTHS, unit=" min"
    )
    return bags


def title_bags(
    titles: Sequence[str], years: Sequence[float], *, min_items: int | None = None
) -> dict[str, FeatureBag]:
    """What a title and its year say: `title` words, the exact `year`, and the `period` as soft
    weights; NaN is an unknown year."""
    exact = [[f"{year:.0f}"] if np.isfinite(year) else [] for year in years]
    return {
        "title": bag_of(
            [words(without_year(title)) for title in titles],
            min_items=2 if min_items is None else min_items,
        ),
        "year": bag_of(exact),
        "period": soft_bag(np.array(years, dtype=np.float64), _PERIODS),
    }


def title_year(title: str) -> float:
    """The year a title ends in, as in "Toy Story (1995)", or NaN."""
    found = re.search(r"\((\d{4})\)\s*$", title)
    return float(found.group(1)) if found else float("nan")


def without_year(title: str) -> str:
    """The title without the year it ends in."""
    return re.sub(r"\s*\(\d{4}\)\s*$", "", title)


def split_names(text: str | None) -> list[str]:
    """Distinct names of a comma-separated list in order, roles in parentheses taken off."""
    return _distinct(
        part.strip() for part in re.sub(r"\([^)]*\)", "", text or "").split(",") if part.strip()
    )


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _year(record: Record) -> float:
    year = _first_number(record.get("year", ""))
    return title_year(record.get("title", "")) if np.isnan(year) else year


def _first_number(text: str) -> float:
    found = re.search(r"\d+", text)
    return float(found.group()) if found else float("nan")


def read_records(path: Path) -> dict[str, Record]:
    """Every film's object by its `movieId`.

    Raises DataError on a missing file, MalformedRowError as above."""
    records: dict[str, Record] = {}
    with require_file(path).open("rb") as file:
        for line, raw in enumerate(file, start=1):
            text = decoded(raw, path, line)
            if not text.strip():
                continue
            record = _record(path, line, text)
            if record["movieId"] in records:
                raise MalformedRowError(path, line, "every movieId once", record["movieId"])
            records[record["movieId"]] = record
    return records


def _record(path: Path, line: int, text: str) -> Record:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("movieId"), int | str):
        raise MalformedRowError(path, line, "a JSON object with a movieId", text.strip()[:80])
    return {str(key): str(value) for key, value in found.items() if value is not None}
