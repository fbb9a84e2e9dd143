"""News and clicks on them from files: MIND, and films as news.

MIND (Wu et al. 2020) in its official files: `news.tsv`, `behaviors.tsv`, in folders for train,
dev and test; demo, small and large.

    news.tsv       id, category, subcategory, title, abstract, URL, title entities, abstract
                   entities (JSON); 8 columns
    behaviors.tsv  impression id, user, time, history, candidates; 5 columns; `N12-1` was clicked,
                   `N12-0` was not, `N12` is not told

Embeddings of entities, relations and words are read by `encoders.word_vectors.read_vectors`;
candidates and histories by `behaviors.read_behaviors`.

Films: MovieLens in its own files, or any data set with times, by `clicklog`. Each line: from a
films file and `metadata.jsonl`; from any other data set.

- title: the title without its year; the title, or the id
- abstract: the plot; words of the bag `plot`
- category: the first genre listed; the first value of the bag `genre`
- subcategory: all genres listed, `|` between; all values of the bag `genre`, `|` between
- entities: directors and actors; values of the bags `director` and `actor`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedrec.data.behaviors import Unknown, read_behaviors, read_growing
from fedrec.data.clicklog import ClickLog, OrderedRatings, by_time
from fedrec.data.delimited import decoded, number_ids, positions_in
from fedrec.data.features import (
    FeatureBag,
    PublicFeatures,
    Record,
    read_records,
    split_names,
    without_year,
)
from fedrec.data.impressions import Impressions, News
from fedrec.data.interactions import Catalogue, Dataset
from fedrec.data.item_tables import untitled
from fedrec.data.keyed_hash import below, number_words
from fedrec.data.movielens import (
    ML_1M,
    ML_10M,
    Film,
    MovieLensFormat,
    film_features,
    read_films,
    read_numeric,
)
from fedrec.data.opening import lines_of, open_bytes, require_file
from fedrec.data.read import detect, read
from fedrec.errors import DataError, DataWarning, MalformedRowError, warn
from fedrec.randomness import Streams
from fedrec.storage import parsed_json

__all__ = ["Mind", "merge_news", "read_behaviors", "read_mind", "read_news", "splits_of"]

_SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "test": "test"}
"""How a word of a folder's name ends, and the split that the folder holds."""
_COLUMNS = 8  # of news.tsv, as MIND describes it
_IN_ROW_ORDER = {form.name: form for form in (ML_1M, ML_10M)}


@dataclass(frozen=True)
class Mind:
    """One catalogue for all splits, and the impressions of each split by its name.

    Users are numbered in each split by itself."""

    news: News
    splits: dict[str, Impressions]

    def click_log(self, *, streams: Streams, held_out_users: bool = False) -> ClickLog:
        """Train and dev as train, validation (about a tenth of the users of train) and test; or
        train alone, a tenth its test.

        MIND's dev holds later impressions of the same users: unlike with `held_out_users`, a test
        user may have been in train. Raises DataError where a split is missing.
        """
        if missing := [
            name for name in ("train", "dev")[: 2 - held_out_users] if name not in self.splits
        ]:
            remedy = (
                "Give the folder that holds the folders of train and of dev, or test on users of "
                'train: split.kind = "held-out-users".'
            )
            raise DataError(f"there is no split {missing[0]}", remedy)
        others = self.splits["train"]
        test = self.splits.get("dev")
        if held_out_users or test is None:
            others, test = _a_tenth(others, streams.key("click-log-test"))
        return ClickLog(*_a_tenth(others, streams.key("click-log-validation")), test)


def read_mind(path: Path, *, unknown: Unknown = "refuse") -> Mind:
    """All splits below a folder (`MINDsmall_train` and `MINDsmall_dev`, or `train` and `dev` or
    `valid`), or the one split it is.

    The catalogue is the union of the splits' news. unknown: what to do with news that no `news.tsv`
    has, see `behaviors`. Raises DataError where no split is found or a file is missing,
    MalformedRowError at a bad line.
    """
    folders = _split_folders(path)
    known = [
        read_news(folder / "news.tsv")
        for folder in folders.values()
        if unknown != "add" or (folder / "news.tsv").exists()
    ]
    news = merge_news(known)
    require_titles(news.ids, news.titles, path)
    splits: dict[str, Impressions] = {}
    for name, folder in folders.items():
        news, splits[name] = read_growing(folder / "behaviors.tsv", news, unknown=unknown)
    return Mind(news, {name: replace(split, num_news=len(news)) for name, split in splits.items()})


def splits_of(path: Path) -> tuple[str, ...]:
    """Splits that a folder of MIND holds: "train", "dev", "test"; none where it does not look like
    MIND's."""
    try:
        return tuple(_split_folders(path))
    except DataError:
        return ()


def read_news(path: Path) -> News:
    """A `news.tsv`, in its order; abstracts and entities may be empty, entities are Wikidata ids.

    Raises DataError on a missing or empty file, MalformedRowError at a line without 8 columns,
    without an id, with an id that came before, or with entities that are not MIND's JSON.
    """
    rows: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {}
    for line, fields in _news_lines(require_file(path)):
        if len(fields) != _COLUMNS:
            raise MalformedRowError(
                path, line, f"{_COLUMNS} fields separated by tabs", "\t".join(fields)[:80]
            )
        item, category, subcategory, title, abstract, _, *entities = fields
        if not item or " " in item or item in rows:
            raise MalformedRowError(path, line, "a news id that did not come before", item)
        rows[item] = (title, abstract, category, subcategory, _entities(path, line, entities))
    if not rows:
        raise DataError(f"{path} holds no news", "Download or unpack it again.")
    return News(tuple(rows), *zip(*rows.values(), strict=True))


def merge_news(parts: Sequence[News]) -> News:
    """Every news of any part once, as its first part has it."""
    rows: dict[str, tuple[object, ...]] = {}
    for part in parts:
        for row in zip(*vars(part).values(), strict=True):
            rows.setdefault(row[0], row)
    columns: Iterable[tuple[object, ...]] = zip(*rows.values(), strict=True) if rows else [()] * 6
    return News(*columns)  # type: ignore[arg-type]  # the columns of News again


def require_titles(ids: Sequence[str], titles: Sequence[str], where: Path | str) -> None:
    """Warns of blank titles, whose articles are known by their other columns alone; raises
    DataError where all are."""
    if note := untitled(ids, titles, where):
        if not any(map(str.strip, titles)):
            raise DataError(
                f"every title of {where} is blank",
                "Give the column of titles, for example title='headline' of frames.",
            )
        warn(DataWarning(note))


def _split_folders(path: Path) -> dict[str, Path]:
    """Split name to folder. A single folder whose name says nothing is train."""
    if (path / "behaviors.tsv").exists():
        return {_split_of(path) or "train": path}
    found: dict[str, Path] = {}
    for folder in sorted(path.iterdir()) if path.is_dir() else []:
        name = _split_of(folder)
        if name and (folder / "behaviors.tsv").exists():
            if name in found:
                raise DataError(
                    f"{path} holds two folders for {name}", "Give the folder of one size of MIND."
                )
            found[name] = folder
    if not found:
        raise DataError(
            f"{path} holds no behaviors.tsv",
            "Give a folder of MIND, or the folder that holds its train and dev.",
        )
    return {name: found[name] for name in dict.fromkeys(_SPLITS.values()) if name in found}


def _split_of(folder: Path) -> str | None:
    """By the end of a word of its name: MINDsmall_train, and MINDsmall_train-5000 too."""
    words = re.split(r"[^a-z]+", folder.name.lower())
    return next(
        (name for end, name in _SPLITS.items() if any(word.endswith(end) for word in words)), None
    )


def _a_tenth(part: Impressions, key: bytes) -> tuple[Impressions, Impressions]:
    """All but about a tenth of the users, and that tenth: each user by a hash of the key and its
    id, whoever else is there."""
    tenth = below(part.user_draws(key), 0.1)
    return part.users_subset(np.flatnonzero(~tenth)), part.users_subset(np.flatnonzero(tenth))


def _news_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    with open_bytes(path) as file:
        for line, raw in enumerate(lines_of(file), start=1):
            if (text := decoded(raw, path, line)).strip():
                yield line, text.rstrip("\r\n").split("\t")


def _entities(path: Path, line: int, columns: list[str]) -> tuple[str, ...]:
    """Distinct Wikidata ids of the title's and the abstract's entities."""
    ids: dict[str, None] = {}
    for text in columns:
        try:
            ids |= {
                str(entity["WikidataId"]): None for entity in (parsed_json(text) if text else [])
            }
        except (ValueError, TypeError, KeyError):
            raise MalformedRowError(
                path, line, "a JSON list of entities with a WikidataId", text[:80]
            ) from None
    return tuple(ids)


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
