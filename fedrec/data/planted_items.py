"""Planted items: public features, vectors and qualities they partly explain, and a long-tailed
popularity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float32s
from fedrec.data.features import FeatureBag, PublicFeatures

_GENRES = (
    "Action", "Adventure", "Animation", "Comedy", "Crime", "Documentary", "Drama", "Family",
    "Fantasy", "History", "Horror", "Music",
    "Mystery", "Romance", "Science Fiction", "Thriller", "War", "Western",
)  # fmt: skip
_MOODS = (
    "Amber", "Broken", "Crimson", "Distant", "Electric", "Forgotten", "Golden", "Hidden",
    "Invisible", "Jade", "Last", "Midnight",
    "Northern", "Open", "Paper", "Quiet", "Restless", "Silver", "Tender", "Unwritten", "Velvet",
    "Wandering", "Winter", "Young",
)  # fmt: skip
_THINGS = (
    "Avenue", "Bridge", "Circus", "Dawn", "Empire", "Fields", "Garden", "Harbour", "Island",
    "Journey", "Kingdom", "Lantern", "Mirror",
    "Night", "Orchard", "Passenger", "Queen", "River", "Station", "Tide", "Valley", "Witness",
    "Year", "Zephyr",
)  # fmt: skip
_FIRST_YEAR = 1940
_LAST_YEAR = 2004


@dataclass(frozen=True)
class PlantedItems:
    """m items. vectors (m, d) float32 and quality (m,) float32 have mean 0 and variance 1 per
    column; popularity (m,) float64 sums to 1."""

    features: PublicFeatures
    titles: tuple[str, ...]
    vectors: Float32s
    quality: Float32s
    popularity: npt.NDArray[np.float64]


def plant_items(
    items: int, dimension: int, explained: float, *, rng: np.random.Generator
) -> PlantedItems:
    """Items whose features explain the share `explained` of the variance of their vectors and of
    their quality.

    Bags: `genre` (one to three), `director`, `actor` (four), `year`, `word` (ten, with words that
    belong to the genre).
    """
    genres = _draw_values(items, len(_GENRES), 1 + rng.integers(0, 3, items), tail=0.7, rng=rng)
    bags = {
        "genre": FeatureBag(_GENRES, genres),
        "director": _people("director", items, max(2, items // 5), 1, rng),
        "actor": _people("actor", items, max(4, items // 2), 4, rng),
        "year": _years(items, rng),
        "word": _plot_words(genres, rng),
    }
    strength = {"genre": 1.0, "director": 0.7, "actor": 0.7, "year": 0.4, "word": 0.5}
    public = sum(
        strength[name]
        * _standardised(_mean_of_values(bag.counts, dimension + 1, smooth=name == "year", rng=rng))
        for name, bag in bags.items()
    )
    own = rng.standard_normal((items, dimension + 1))
    mixed = _standardised(
        np.sqrt(explained) * _standardised(np.asarray(public)) + np.sqrt(1 - explained) * own
    )
    titles = _titles([int(bags["year"].vocabulary[p]) for p in bags["year"].counts.indices], rng)
    return PlantedItems(
        PublicFeatures(bags),
        titles,
        mixed[:, 1:].astype(np.float32),
        mixed[:, 0].astype(np.float32),
        _popularity(mixed[:, 0], rng),
    )


def _popularity(
    quality: npt.NDArray[np.float64], rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Zipf-Mandelbrot weights (rank + 8% of m)^-2.5, scattered, over ranks that follow quality
    loosely: good films are seen more."""
    m = len(quality)
    rank = np.empty(m)
    rank[np.argsort(-(0.4 * quality + rng.standard_normal(m)))] = np.arange(m)
    weights = (rank + 0.08 * m + 1) ** -2.5 * np.exp(0.5 * rng.standard_normal(m))
    return np.asarray(weights / weights.sum())


def _draw_values(
    items: int,
    values: int,
    sizes: npt.NDArray[np.integer],
    *,
    tail: float,
    rng: np.random.Generator,
) -> sparse.csr_matrix:
    """Each item gets about `sizes[j]` distinct values, drawn with weight rank^-tail."""
    weights = np.arange(1, values + 1) ** -tail
    drawn = rng.choice(values, size=int(sizes.sum()), p=weights / weights.sum())
    counts = sparse.csr_matrix(
        (np.ones(len(drawn), np.float32), (np.repeat(np.arange(items), sizes), drawn)),
        shape=(items, values),
    )
    counts.sum_duplicates()
    counts.data[:] = 1.0
    return counts


def _people(role: str, items: int, people: int, each: int, rng: np.random.Generator) -> FeatureBag:
    counts = _draw_values(items, people, np.full(items, each), tail=0.6, rng=rng)
    return FeatureBag(tuple(f"{role} {p + 1}" for p in range(people)), counts)


def _years(items: int, rng: np.random.Generator) -> FeatureBag:
    years = np.round(
        _LAST_YEAR - np.minimum(rng.exponential(12.0, items), _LAST_YEAR - _FIRST_YEAR)
    ).astype(np.int64)
    span = _LAST_YEAR - _FIRST_YEAR + 1
    counts = sparse.csr_matrix(
        (np.ones(items, np.float32), (np.arange(items), years - _FIRST_YEAR)), shape=(items, span)
    )
    return FeatureBag(tuple(str(_FIRST_YEAR + p) for p in range(span)), counts)


def _plot_words(
    genres: sparse.csr_matrix,
    rng: np.random.Generator,
    *,
    each: int = 10,
    common: int = 400,
    own: int = 20,
) -> FeatureBag:
    """Half of an item's words are anybody's, half belong to its first genre."""
    items, kinds = genres.shape
    first = np.asarray(genres.argmax(axis=1)).ravel()
    anybody = _draw_values(items, common, np.full(items, each // 2), tail=0.8, rng=rng)
    drawn = np.repeat(first, each // 2) * own + rng.integers(0, own, items * (each // 2))
    genre_words = sparse.csr_matrix(
        (np.ones(len(drawn), np.float32), (np.repeat(np.arange(items), each // 2), drawn)),
        shape=(items, kinds * own),
    )
    vocabulary = tuple(f"word{p + 1}" for p in range(common)) + tuple(
        f"{genre.lower()}{p + 1}" for genre in _GENRES for p in range(own)
    )
    counts = sparse.csr_matrix(sparse.hstack([anybody, genre_words]))
    counts.sum_duplicates()
    return FeatureBag(vocabulary, counts)


def _mean_of_values(
    counts: sparse.csr_matrix, columns: int, *, smooth: bool, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Each value has a vector; an item has the mean of its values'.

    Smooth vectors walk slowly from value to value, as years do."""
    vectors = rng.standard_normal((counts.shape[1], columns))
    if smooth:
        vectors = np.cumsum(vectors, axis=0) / np.sqrt(np.arange(1, len(vectors) + 1))[:, None]
    sizes = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1.0)
    return np.asarray(counts @ vectors / sizes[:, None])


def _standardised(columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    centred = columns - columns.mean(axis=0)
    return np.asarray(centred / np.maximum(centred.std(axis=0), 1e-9))


def _titles(years: list[int], rng: np.random.Generator) -> tuple[str, ...]:
    """Made-up titles with the year, numbered where a name comes again."""
    pairs = rng.permutation(len(_MOODS) * len(_THINGS))
    titles = []
    for j, year in enumerate(years):
        again, pair = divmod(j, len(pairs))
        mood, thing = divmod(int(pairs[pair]), len(_THINGS))
        titles.append(f"{_MOODS[mood]} {_THINGS[thing]}{f' {again + 1}' if again else ''} ({year})")
    return tuple(titles)
