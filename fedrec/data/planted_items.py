"""Planted items (public features, vectors and qualities they partly explain, and a long-tailed
popularity), and the compiled draws of planted events: one user after another, each from a stream of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float32s, Int32s, Int64s, UInt64s
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.numerics import compiled

# seconds since 1970
FIRST_TIME = 946_684_800
LAST_TIME = 1_104_537_600  # 2000 to 2004
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
"""Years in which invented films appeared: most are recent, and none is after the last event."""


@compiled(inner=True)
def _next(state: np.uint64) -> tuple[np.uint64, np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014): the next state and 64 bits.

    For data, not for noise that protects."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, z ^ (z >> np.uint64(31))


@compiled()
def fill_users(
    start: int, stop: int, first_user: int, user_ptr: Int64s, threshold: npt.NDArray[np.float64],
    alias: Int32s,
    U: Float32s, V: Float32s, user_bias: Float32s, item_bias: Float32s,
    settings: npt.NDArray[np.float64], rated: bool,
    key: np.uint64, seen: UInt64s, items: Int32s, values: Float32s, times: Int64s,
) -> None:  # fmt: skip
    """Draw items without replacement by popularity x sigmoid(affinity), then a rating and a time
    for each, in the order of the items. seen: a bit an item, all 0, before and after."""
    m = V.shape[0]
    d = V.shape[1]
    unit = 1.0 / 9007199254740992.0  # 2^-53
    mean, low, high, step, noise_std, selectivity = settings
    for local in range(start, stop):
        k = first_user + local
        state, bits = _next(key ^ (np.uint64(k) * np.uint64(0xD1342543DE82EF95)))
        state = state ^ bits
        count = user_ptr[local + 1] - user_ptr[local]
        found = 0
        while found < count:
            state, bits = _next(state)
            j = np.int64((bits >> np.uint64(32)) * np.uint64(m) >> np.uint64(32))
            state, more = _next(state)
            if np.float64(more >> np.uint64(11)) * unit >= threshold[j]:
                j = np.int64(alias[j])
            word = j >> 6
            bit = np.uint64(1) << np.uint64(j & 63)
            if seen[word] & bit:
                continue
            affinity = np.float64(item_bias[j])
            for c in range(d):
                affinity += U[k, c] * V[j, c]
            state, bits = _next(state)
            if np.float64(bits >> np.uint64(11)) * unit < 1.0 / (
                1.0 + np.exp(-selectivity * affinity)
            ):
                seen[word] |= bit
                found += 1
        state, bits = _next(state)
        joined = FIRST_TIME + np.float64(bits >> np.uint64(11)) * unit * 0.7 * (
            LAST_TIME - FIRST_TIME
        )
        e = np.int64(user_ptr[local])
        for block in range(len(seen)):
            while seen[block]:
                lowest = seen[block] & (~seen[block] + np.uint64(1))
                seen[block] ^= lowest
                place = np.int64(0)
                while lowest >> np.uint64(place) != np.uint64(1):
                    place += 1
                j = np.int64(block * 64 + place)
                items[e] = j
                state, bits = _next(state)
                state, more = _next(state)
                first = (np.float64(bits >> np.uint64(11)) + 1.0) * unit
                second = np.float64(more >> np.uint64(11)) * unit
                if rated:
                    rating = mean + user_bias[k] + item_bias[j]
                    for c in range(d):
                        rating += U[k, c] * V[j, c]
                    # Box, Muller 1958
                    rating += (
                        noise_std * np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
                    )
                    # the nearest step of the scale, ties upwards, on every machine alike
                    values[e] = min(
                        max(low + step * np.floor((rating - low) / step + 0.5), low), high
                    )
                state, bits = _next(state)
                wait = np.float64(bits >> np.uint64(11)) * unit
                times[e] = np.int64(joined + wait * wait * (LAST_TIME - joined))
                e += 1


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
    years = np.round(  # years are whole
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
