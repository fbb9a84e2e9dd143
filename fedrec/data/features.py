"""Public item features: sparse bags per category (year, genre, person, word ...).

Features are public by type: they may go anywhere.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy

from fedrec.data.delimited import decoded, json_object
from fedrec.data.ids import require_named
from fedrec.data.opening import lines_of, open_bytes
from fedrec.errors import MalformedRowError
from fedrec.numerics.segments import leading_eigenvectors
from fedrec.randomness import Streams

_STOP_WORDS = """ the and his her with for who from she that their they are when has but after into
out him them this two one not was which where while new have must all its """
_STOPPED = frozenset(_STOP_WORDS.split())
_KEPT: dict[tuple[str, int, int], tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}
"""The last answer of `_leading`, by digest of the matrix, rank and seed."""
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
# years, closer together where films are many
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
_LENGTHS = (60, 80, 100, 120, 140, 160)  # minutes
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


@dataclass(frozen=True)
class FeatureBag:
    """One category: `counts` (m x p CSR float32) of how often each of the p named values occurs on
    each item."""

    vocabulary: tuple[str, ...]
    counts: scipy.sparse.csr_matrix

    @property
    def tells(self) -> bool:
        """Whether some items have a value that others have not."""
        having = np.asarray((self.counts > 0).sum(axis=0)).ravel()
        return bool(((having > 0) & (having < self.counts.shape[0])).any())


@dataclass(frozen=True)
class PublicFeatures:
    """What anybody may know of m items: named feature bags, each with m rows."""

    bags: dict[str, FeatureBag]

    def __post_init__(self) -> None:
        rows = {name: bag.counts.shape[0] for name, bag in self.bags.items()}
        if len(set(rows.values())) > 1:
            raise ValueError(f"all bags must have one row per item, found {rows}")

    def only(self, names: Iterable[str]) -> PublicFeatures:
        """The named bags, in the given order. Raises ValueError on a name there is no bag for."""
        wanted = list(names)
        if unknown := [name for name in wanted if name not in self.bags]:
            raise ValueError(f"no feature bag {unknown[0]!r}; there are {sorted(self.bags)}")
        return PublicFeatures({name: self.bags[name] for name in wanted})


def words(text: str) -> list[str]:
    """Lower-case words of three or more letters, without stop words, in order and with repeats."""
    return [word for word in re.findall(r"[^\W\d_]{3,}", text.lower()) if word not in _STOPPED]


def bag_of(values: Sequence[Sequence[str]], *, min_items: int = 1) -> FeatureBag:
    """A bag from each item's list of values; a value on fewer than `min_items` items is left out,
    the vocabulary is sorted."""
    occurs = Counter(value for item in values for value in set(item))
    vocabulary = tuple(sorted(value for value, items in occurs.items() if items >= min_items))
    column = {value: p for p, value in enumerate(vocabulary)}
    entries = [
        (j, column[value]) for j, item in enumerate(values) for value in item if value in column
    ]
    rows, columns = (
        np.array(part, dtype=np.int32)
        for part in (zip(*entries, strict=True) if entries else ((), ()))
    )
    counts = scipy.sparse.csr_matrix(
        (np.ones(len(rows), np.float32), (rows, columns)), shape=(len(values), len(vocabulary))
    )
    counts.sum_duplicates()
    return FeatureBag(vocabulary, counts)


def soft_bag(
    numbers: npt.NDArray[np.floating], knots: Sequence[float], *, unit: str = ""
) -> FeatureBag:
    """A number as weights on neighbouring knots, so that 1984 and 1986 share something: a Gaussian
    one knot wide, summing to 1.

    numbers: (m,), NaN where unknown (an empty row). knots: increasing.
    """
    place = np.interp(numbers, np.asarray(knots), np.arange(len(knots)))
    weights = np.exp(-0.5 * (place[:, None] - np.arange(len(knots))[None]) ** 2)
    weights = np.where(np.isfinite(numbers)[:, None] & (weights > 0.01), weights, 0.0)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    return FeatureBag(
        tuple(f"{knot:g}{unit}" for knot in knots),
        scipy.sparse.csr_matrix(weights.astype(np.float32)),
    )


def idf_weighted(features: PublicFeatures) -> PublicFeatures:
    """Every count times log(m / number of items that carry the value): what all items share says
    nothing."""
    return PublicFeatures(
        {
            name: FeatureBag(bag.vocabulary, _times_idf(bag.counts))
            for name, bag in features.bags.items()
        }
    )


def _times_idf(counts: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    items = np.maximum(np.asarray(counts.minimum(1.0).sum(axis=0), dtype=np.float64).ravel(), 1e-9)
    idf = np.maximum(np.log(max(counts.shape[0], 1) / items), 0.0)
    return scipy.sparse.csr_matrix(counts @ scipy.sparse.diags(idf), dtype=np.float32)


def joined(
    features: PublicFeatures, *, weights: Mapping[str, float] | None = None
) -> scipy.sparse.csr_matrix:
    """All bags side by side, (m, sum of p) CSR float64: TF-IDF, the row of each bag scaled to the
    bag's weight (1 where not given)."""
    blocks = []
    for name, bag in idf_weighted(features).bags.items():
        counts = bag.counts.astype(np.float64)
        norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
        weight = 1.0 if weights is None else weights.get(name, 1.0)
        blocks.append(scipy.sparse.diags(weight / np.maximum(norms, 1e-12)) @ counts)
    return scipy.sparse.csr_matrix(scipy.sparse.hstack(blocks))


def svd_embedding(
    features: PublicFeatures,
    *,
    dimension: int,
    seed: int,
    weights: Mapping[str, float] | None = None,
) -> npt.NDArray[np.float32]:
    """Items in `dimension` public coordinates: leading left singular vectors, times singular
    values, of the centred `joined` matrix.

    (m, dimension) float32, columns in falling order of singular value, zero where the features have
    a lower rank. Randomised subspace iteration (Halko, Martinsson, Tropp 2011, Alg. 4.4) from a
    start that belongs to `seed`; in each column the entry of the largest magnitude is positive, so
    the result is a function of the arguments.
    """
    items = next(iter(features.bags.values())).counts.shape[0] if features.bags else 0
    embedding = np.zeros((items, dimension), dtype=np.float32)
    rank = min(dimension, items, sum(bag.counts.shape[1] for bag in features.bags.values()))
    if rank == 0:
        return embedding
    X = joined(features, weights=weights)
    digest = hashlib.blake2b(repr(X.shape).encode())
    for part in (X.data, X.indices, X.indptr):
        digest.update(np.ascontiguousarray(part).data)
    key = digest.hexdigest(), rank, seed
    found = _KEPT.get(key)  # trainings at several epsilons ask for the same directions
    if found is None:
        found = _leading(X, rank, Streams(seed).numpy("svd"))
        _KEPT.clear()
        _KEPT[key] = found
    left, values = found
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(rank)])
    # float32 does not tell smaller singular values from zero, nor their directions from noise
    embedding[:, :rank] = left * (signs * np.where(values > 1e-6 * values[0], values, 0.0))
    return embedding


def _leading(
    X: scipy.sparse.csr_matrix, rank: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Leading left singular vectors and values of X with its column means taken off, without making
    it dense."""
    means = np.asarray(X.mean(axis=0)).ravel()
    Xt = scipy.sparse.csr_matrix(X.T)

    def squared(block: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """X X' times an (m, .) block, a few columns at a time: they stay in the cache."""
        product = np.empty_like(block)
        for start in range(0, block.shape[1], 32):
            some = np.ascontiguousarray(block[:, start : start + 32])
            inner = np.asarray(Xt @ some)
            inner -= np.outer(means, some.sum(axis=0))
            product[:, start : start + 32] = X @ inner - means @ inner
        return product

    vectors, squares = leading_eigenvectors(squared, size=X.shape[0], rank=rank, rng=rng)
    return vectors, np.sqrt(np.maximum(squares, 0.0))


def read_metadata(
    path: Path, item_ids: Sequence[str], *, min_items: int | None = None
) -> tuple[dict[str, FeatureBag], int]:
    """Feature bags with one row per id of `item_ids`, and how many of these the file knows.

    A value on fewer than `min_items` items is left out (None: each category's own number, 1 to 5:
    what a single item carries is no feature but a name). Films that are not in `item_ids` are
    passed over. Raises DataError on a missing file or one that knows no item, MalformedRowError on
    a line that is not such an object or names a film twice.

    The file is `metadata.jsonl`: one JSON object a film with what a film database prints about it,
    as one feature bag per category.

    Keys: `movieId` (required) and any of `title`, `year`, `genre`, `director`, `writer`, `actors`,
    `plot`, `language`, `country`, `runtime`, `rated` (the certificate) and `production` (the
    studio); values are strings, lists inside them are separated by commas, roles stand in
    parentheses ("Pete Docter (original story by)"). Missing keys are missing values. Nothing here
    tells how popular a film is.
    """
    records = read_records(path)
    found = [records.get(item, {}) for item in item_ids]
    require_named(item_ids, records, path)
    return metadata_bags(found, min_items=min_items), sum(map(bool, found))


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
    with open_bytes(path) as file:
        for line, raw in enumerate(lines_of(file), start=1):
            text = decoded(raw, path, line)
            if not text.strip():
                continue
            record = _record(path, line, text)
            if record["movieId"] in records:
                raise MalformedRowError(path, line, "every movieId once", record["movieId"])
            records[record["movieId"]] = record
    return records


def _record(path: Path, line: int, text: str) -> Record:
    found = json_object(path, line, text)
    if not isinstance(found.get("movieId"), int | str):
        raise MalformedRowError(path, line, "a JSON object with a movieId", text.strip()[:80])
    return {str(key): str(value) for key, value in found.items() if value is not None}
