"""MovieLens in GroupLens's own files, as their READMEs describe them: 100K, 1M, 10M and 20M.

Each line: ratings; films; the scale of ratings.

- `ml-100k`: `u.data`, tabs (or `u1.base`, `u1.test`); `u.item`, `|`, 19
  genre flags; 1 to 5, whole
- `ml-1m`: `ratings.dat`, `::`; `movies.dat`, `::`; 1 to 5, whole
- `ml-10m`: `ratings.dat`, `::`; `movies.dat`, `::`; 0.5 to 5, by 0.5
- `ml-20m`: `ratings.csv`, header; `movies.csv`, header, quotes; 0.5 to
  5, by 0.5

The catalogue is the films file where there is one, films nobody rated included; without it, the
films of the ratings. The later 25M, 32M and "latest" sets have the files of `ml-20m`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import polars as pl

from fedrec.arrays import Float32s, Int32s, Int64s
from fedrec.data.delimited import decoded, is_integer, is_number, title_lines
from fedrec.data.features import PublicFeatures, bag_of, read_metadata, title_bags, title_year
from fedrec.data.interactions import (
    CATALOGUE_OF_ROWS,
    Catalogue,
    Dataset,
    Interactions,
    Provenance,
    ReadReport,
    added,
    digest_file,
)
from fedrec.data.numbering import Ids, number_ids, positions_in
from fedrec.data.opening import line_of, open_bytes, require_file
from fedrec.data.resolving import Duplicates, OutOfRange, Policies, Rows, resolve
from fedrec.data.text_tables import (
    Layout,
    read_columns,
    require_width,
    rows_of,
    stray_quote,
    unreadable,
)
from fedrec.errors import DataError, MalformedRowError

# The order of the flags in `u.item`.
_GENRES_100K = """
unknown|Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|Fantasy|Film-Noir|Horror|Musical|Mystery|Romance|Sci-Fi|Thriller|War|Western
"""
_TYPES: dict[str, type[pl.DataType]] = {
    "user": pl.Int32,
    "item": pl.Int32,
    "rating": pl.Float32,
    "time": pl.Int64,
}


@dataclass(frozen=True)
class MovieLensFormat:
    """One of the official formats; `step` is the public granularity of a rating."""

    name: str
    ratings: str
    films: str
    separator: str
    header: tuple[str, ...] | None
    value_range: tuple[float, float]
    step: float


ML_100K = MovieLensFormat("ml-100k", "u.data", "u.item", "\t", None, (1.0, 5.0), 1.0)
ML_1M = MovieLensFormat("ml-1m", "ratings.dat", "movies.dat", "::", None, (1.0, 5.0), 1.0)
ML_10M = MovieLensFormat("ml-10m", "ratings.dat", "movies.dat", "::", None, (0.5, 5.0), 0.5)
ML_20M = MovieLensFormat(
    "ml-20m",
    "ratings.csv",
    "movies.csv",
    ",",
    ("userId", "movieId", "rating", "timestamp"),
    (0.5, 5.0),
    0.5,
)


@dataclass(frozen=True)
class Film:
    """One row of a films file: the file's id, the title, the genres and the year (NaN where
    unknown)."""

    id: int
    title: str
    genres: tuple[str, ...]
    year: float


def read_movielens(
    form: MovieLensFormat,
    path: Path,
    *,
    item_features: str | None = None,
    min_items: int | None = None,
    given: str | None = None,
    duplicates: Duplicates = "auto",
    out_of_range: OutOfRange = "refuse",
) -> Dataset:
    """The data set in a folder (or beside a ratings file) in one of the official formats.

    item_features: a `metadata.jsonl`; None takes the one in the folder, if any, and "none" takes
    none. min_items: how many films must share a feature's value (None: each category's own number).
    given: "u1" reads `u1.base` as the train and `u1.test` as the test events (100K). Raises
    DataError on a missing or empty file or a rating of a film that the films file does not have,
    MalformedRowError at bad lines.
    """
    folder = path if path.is_dir() else path.parent
    names = (
        [f"{given}.base", f"{given}.test"]
        if given
        else [form.ratings if path.is_dir() else path.name]
    )
    parts = [_read_ratings(folder / name, form) for name in names]
    films = read_films(folder / form.films, form) if (folder / form.films).exists() else None
    users = number_ids(np.concatenate([part.users for part in parts]))[1]
    items = (
        np.array([film.id for film in films])
        if films
        else number_ids(np.concatenate([part.items for part in parts]))[1]
    )
    policies = Policies(duplicates, out_of_range)
    events, reports = zip(
        *(
            _events(_rows(part, users, items), form, len(users), len(items), policies)
            for part in parts
        ),
        strict=True,
    )
    titles = tuple(film.title for film in films) if films else None
    catalogue = Catalogue(tuple(map(str, items.tolist())), titles, tuple(map(str, users.tolist())))
    features, described, notes = film_features(folder, catalogue, films, item_features, min_items)
    public = [*([folder / form.films] if films else []), *described]
    files = (
        *(digest_file(folder / name) for name in names),
        *(digest_file(file, public=True) for file in public),
    )
    report = added(reports, notes)
    untold = () if films else (CATALOGUE_OF_ROWS,)
    provenance = Provenance(form.name, files, report, untold)
    return Dataset(events[0], catalogue, features, provenance, events[1] if given else None)


def _events(
    rows: Rows, form: MovieLensFormat, num_users: int, num_items: int, policies: Policies
) -> tuple[Interactions, ReadReport]:
    return resolve(
        rows,
        num_users=num_users,
        num_items=num_items,
        value_range=form.value_range,
        kind="ratings",
        policies=policies,
    )


@dataclass(frozen=True)
class NumericColumns:
    """Columns in the file's order; the numbers are the file's own ids. users, items: (n,) int32,
    times: (n,) int64 seconds."""

    path: Path
    users: Int32s
    items: Int32s
    ratings: Float32s
    times: Int64s
    first_line: int


def read_numeric(path: Path, form: MovieLensFormat) -> NumericColumns:
    """All rows of a ratings file, four numbers a row.

    Raises DataError when the file is missing or empty, MalformedRowError at the first row that is
    not four valid numbers.
    """
    names = form.header or tuple(_TYPES)
    layout = Layout(require_file(path), form.separator, form.header is not None, names)
    if form.header is not None:
        with open_bytes(path) as file:
            found = decoded(line_of(file), path, 1).rstrip("\r\n")
        if found != form.separator.join(names):
            expected = f"the header {form.separator.join(names)!r}"
            raise MalformedRowError(path, 1, expected, found[:80])
    columns = dict(zip(_TYPES, names, strict=True))
    frame = read_columns(layout, columns, _TYPES, _refuse)
    if not len(frame):
        raise DataError(f"{path} holds no ratings", "Download or unpack it again.")
    if any(frame[name].null_count() for name in _TYPES):
        _refuse(layout, columns, "a row is incomplete")
    users, items, ratings, times = (frame[name].to_numpy() for name in _TYPES)
    if min(users.min(), items.min()) < 0 or not np.isfinite(ratings).all():
        _refuse(layout, columns, "an id is negative or a rating is not finite")
    return NumericColumns(path, users, items, ratings, times, layout.first_line)


def _refuse(layout: Layout, columns: Mapping[str, str], reason: str) -> NoReturn:
    """See `text_tables.refuse_first_malformed`: here every field is a number."""
    for line, fields in rows_of(layout):
        require_width(layout, line, fields)
        for field, (expected, valid) in zip(fields, _FIELDS, strict=True):
            if not valid(field):
                raise MalformedRowError(layout.path, line, expected, field[:80])
    raise unreadable(layout, reason)


def _is_id(text: str) -> bool:
    return is_integer(text, low=0, high=2**31 - 1)


_FIELDS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("a user id, an integer from 0", _is_id),
    ("an item id, an integer from 0", _is_id),
    ("a rating, a finite number", is_number),
    ("a time in whole seconds", lambda text: is_integer(text, low=-(2**63), high=2**63 - 1)),
)


def _read_ratings(path: Path, form: MovieLensFormat) -> NumericColumns:
    columns = read_numeric(path, form)
    steps = columns.ratings / np.float32(form.step)
    # exact: a scale's steps are powers of two, so dividing by one rounds nothing
    if (off := np.flatnonzero(steps != np.round(steps))).size:
        expected = f"a rating in steps of {form.step:g}"
        raise MalformedRowError(
            path,
            columns.first_line + int(off[0]),
            expected,
            f"{columns.ratings[off[0]]:g}",
            f"Check that the file is {form.name}.",
        )
    return columns


def _rows(part: NumericColumns, users: Ids, items: Ids) -> Rows:
    """The part's rows numbered by the known ids.

    Raises MalformedRowError at the first film that is not among them."""
    numbers = positions_in(part.items, items)
    if (missing := np.flatnonzero(numbers < 0)).size:
        row = int(missing[0])
        remedy = "Use the films file of the same release."
        raise MalformedRowError(
            part.path,
            part.first_line + row,
            "a film of the films file",
            str(part.items[row]),
            remedy,
        )
    return Rows(
        part.path,
        positions_in(part.users, users),
        numbers,
        part.ratings,
        part.times,
        part.first_line,
    )


def read_films(path: Path, form: MovieLensFormat) -> list[Film]:
    """The films file of a format, in its order; blank lines are passed over.

    Raises DataError when it is missing or empty, MalformedRowError at a line that is not a film or
    names a film twice.
    """
    parse = {"ml-100k": _film_100k, "ml-20m": _film_csv}.get(form.name, _film_dat)
    films: list[Film] = []
    seen: set[int] = set()
    for line, fields, text in _film_fields(require_file(path), form):
        film = parse(fields)
        if film is None:
            raise MalformedRowError(path, line, f"a film in the format {form.name}", text[:80])
        if film.id in seen:
            raise MalformedRowError(path, line, "every film once", str(film.id))
        seen.add(film.id)
        films.append(film)
    if not films:
        raise DataError(f"{path} holds no films", "Download or unpack it again.")
    return films


def _film_fields(path: Path, form: MovieLensFormat) -> Iterator[tuple[int, list[str], str]]:
    """Line number, fields and text of every film."""
    lines = title_lines(path)
    if form.header is None:
        separator = "|" if form.name == "ml-100k" else form.separator
        for line, text in lines:
            if text.strip():
                yield line, text.rstrip("\r\n").split(separator), text.strip()
        return
    reader = csv.reader((text for _, text in lines), strict=True)
    begun = 0
    try:
        if (header := next(reader)) != ["movieId", "title", "genres"]:
            raise MalformedRowError(path, 1, "the header 'movieId,title,genres'", ",".join(header))
        for fields in reader:
            begun = reader.line_num
            if fields:
                yield begun, fields, ",".join(fields)
    except csv.Error as error:
        raise stray_quote(path, begun + 1, error) from error


def _film_100k(fields: list[str]) -> Film | None:
    """Id, title, release date, video release date, URL, 19 flags."""
    if len(fields) != 24 or not _is_id(fields[0]) or not set(fields[5:]) <= {"0", "1"}:
        return None
    genres = tuple(
        genre
        for genre, flag in zip(_GENRES_100K.strip().split("|"), fields[5:], strict=True)
        if flag == "1" and genre != "unknown"
    )
    year = fields[2][-4:]
    return Film(
        int(fields[0]),
        fields[1],
        genres,
        float(year) if year.isdecimal() else title_year(fields[1]),
    )


def _film_dat(fields: list[str]) -> Film | None:
    """Id, title (which may itself hold the separator), genres."""
    if len(fields) < 3 or not _is_id(fields[0]):
        return None
    title = "::".join(fields[1:-1])
    return Film(int(fields[0]), title, _genres(fields[-1]), title_year(title))


def _film_csv(fields: list[str]) -> Film | None:
    if len(fields) != 3 or not _is_id(fields[0]):
        return None
    return Film(int(fields[0]), fields[1], _genres(fields[2]), title_year(fields[1]))


def _genres(text: str) -> tuple[str, ...]:
    return tuple(genre for genre in text.split("|") if genre and genre != "(no genres listed)")


def film_features(
    folder: Path,
    catalogue: Catalogue,
    films: list[Film] | None,
    metadata: str | None,
    min_items: int | None,
) -> tuple[PublicFeatures, list[Path], tuple[str, ...]]:
    """Bags of the films file and of the metadata where there are any, the metadata files read, and
    notes on them. Public data only."""
    bags = {}
    if films is not None:
        bags = {"listed_genre": bag_of([film.genres for film in films])}
        bags |= title_bags(
            [film.title for film in films], [film.year for film in films], min_items=min_items
        )
    path = folder / "metadata.jsonl" if metadata is None else Path(metadata)
    if metadata == "none" or (metadata is None and not path.exists()):
        return PublicFeatures(bags), [], ()
    described, known = read_metadata(path, catalogue.item_ids, min_items=min_items)
    return (
        PublicFeatures(described | bags),
        [path],
        (f"metadata of {known} of {len(catalogue.item_ids)} items",),
    )
