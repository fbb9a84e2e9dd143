"""Rated things as news: films of MovieLens in its own files, or any data set with times, by
`clicklog`.

Each line of news is made from a films file and `metadata.jsonl`; from any other data set.

- title: the title without its year; the title, or the id
- abstract: the plot; words of the bag `plot`
- category: the first genre listed; the first value of the bag `genre`
- subcategory: all genres listed, `|` between; all values of the bag `genre`, `|` between
- entities: directors and actors; values of the bags `director` and `actor`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrec.data.clicklog import OrderedRatings, by_time
from fedrec.data.features import (
    FeatureBag,
    PublicFeatures,
    Record,
    read_records,
    split_names,
    without_year,
)
from fedrec.data.impressions import News
from fedrec.data.interactions import Catalogue, Dataset
from fedrec.data.keyed_hash import number_words
from fedrec.data.movielens import (
    ML_1M,
    ML_10M,
    Film,
    MovieLensFormat,
    film_features,
    read_films,
    read_numeric,
)
from fedrec.data.numbering import number_ids, positions_in
from fedrec.data.read import detect, read
from fedrec.errors import DataError, MalformedRowError

_IN_ROW_ORDER = {form.name: form for form in (ML_1M, ML_10M)}


@dataclass(frozen=True)
class RatedNews:
    """What a click log is made from: public texts and features of m items, and private ratings in
    their order.

    not_covered: as `Provenance.not_covered`.
    """

    news: News
    features: PublicFeatures
    ratings: OrderedRatings
    not_covered: tuple[str, ...] = ()


def read_rated_news(path: Path, format: str = "auto", **options: object) -> RatedNews:
    """The data set at `path` in one of the formats of `read`, whose options these are (none for
    MovieLens 1M and 10M).

    `ml-1m` and `ml-10m`: sorted by time when every row has one (a time of 0 is none), else in the
    order of the file. Every other format needs a time for every event. Raises DataError without it,
    and what the reader raises.
    """
    name = detect(path) if format == "auto" and path.exists() else format
    if name in _IN_ROW_ORDER and not options:
        return read_rated_films(path, _IN_ROW_ORDER[name])
    data = read(path, name, **options)
    return RatedNews(
        news_of(data), data.features, by_time(data.interactions), data.provenance.not_covered
    )


def read_rated_films(
    path: Path, form: MovieLensFormat = ML_1M, *, metadata: Path | None = None
) -> RatedNews:
    """A folder with a ratings and a films file, and the `metadata.jsonl` in it or the one given.

    Raises DataError on a missing or empty file, MalformedRowError at a bad line, an unknown film,
    or a film rated twice by one user.
    """
    folder = path if path.is_dir() else path.parent
    films = read_films(folder / form.films, form)
    catalogue = Catalogue(
        tuple(str(film.id) for film in films), tuple(film.title for film in films), ()
    )
    described = metadata or folder / "metadata.jsonl"
    records = read_records(described) if metadata or described.exists() else {}
    features, _, _ = film_features(
        folder, catalogue, films, str(metadata) if metadata else None, None
    )
    ratings = _in_order(folder / form.ratings if path.is_dir() else path, form, films)
    return RatedNews(
        film_news(films, [records.get(item, {}) for item in catalogue.item_ids]), features, ratings
    )


def film_news(films: Sequence[Film], records: Sequence[Record]) -> News:
    """One item a film, with what its record (empty where nothing is known) adds."""
    genres = [
        film.genres or tuple(split_names(record.get("genre")))
        for film, record in zip(films, records, strict=True)
    ]
    return News(
        ids=tuple(str(film.id) for film in films),
        titles=tuple(without_year(film.title) for film in films),
        abstracts=tuple(record.get("plot", "") for record in records),
        categories=tuple(names[0] if names else "" for names in genres),
        subcategories=tuple("|".join(names) for names in genres),
        entities=tuple(
            tuple(
                dict.fromkeys(p for key in ("director", "actors") for p in split_names(r.get(key)))
            )
            for r in records
        ),
    )


def news_of(data: Dataset) -> News:
    """The items of any data set, with what its catalogue and feature bags say."""
    ids = data.catalogue.item_ids
    bags = data.features.bags
    nothing = [()] * len(data.catalogue.item_ids)
    genres, plots, *people = (
        _values(bags[name]) if name in bags else nothing
        for name in ("genre", "plot", "director", "actor")
    )
    return News(
        ids=ids,
        titles=tuple(map(without_year, data.catalogue.titles or ids)),
        abstracts=tuple(map(" ".join, plots)),
        categories=tuple(names[0] if names else "" for names in genres),
        subcategories=tuple(map("|".join, genres)),
        entities=tuple(tuple(dict.fromkeys((*a, *b))) for a, b in zip(*people, strict=True)),
    )


def _values(bag: FeatureBag) -> Sequence[tuple[str, ...]]:
    """The values on each item, in the order of the vocabulary."""
    counts = bag.counts.tocsr().sorted_indices()
    names = [bag.vocabulary[p] for p in counts.indices]
    return [tuple(names[a:b]) for a, b in zip(counts.indptr[:-1], counts.indptr[1:], strict=True)]


def _in_order(path: Path, form: MovieLensFormat, films: Sequence[Film]) -> OrderedRatings:
    rows = read_numeric(path, form)
    users, user_ids = number_ids(rows.users)
    items = positions_in(rows.items, np.array([film.id for film in films]))
    if (unknown := np.flatnonzero(items < 0)).size:
        first = int(unknown[0])
        raise MalformedRowError(
            path, rows.first_line + first, "a film of the films file", str(rows.items[first])
        )
    pairs, where = np.unique(users.astype(np.int64) * len(films) + items, return_index=True)
    if len(pairs) < len(rows.users):
        second = int(np.setdiff1d(np.arange(len(rows.users)), where)[0])
        raise MalformedRowError(
            path,
            rows.first_line + second,
            "one row per user and film",
            f"{rows.users[second]}, {rows.items[second]}",
        )
    low, high = form.value_range
    if rows.ratings.min() < low or rows.ratings.max() > high:
        raise DataError(
            f"{path} holds ratings outside {low:g} to {high:g}",
            f"Check that the file is {form.name}.",
        )
    words = number_words(user_ids), number_words(np.array([film.id for film in films]))
    ratings = OrderedRatings(
        users, items, rows.ratings, rows.times, len(user_ids), len(films), *words
    )
    return ratings.take(np.argsort(rows.times, kind="stable")) if rows.times.min() > 0 else ratings
