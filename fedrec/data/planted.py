"""A data set with a known answer: events drawn from planted vectors, biases and noise, at any size,
in bounded memory.

Items have public features (`planted_items`) that explain a stated part of their vectors. Item
popularity falls off like a Zipf law, activity of users like a log-normal; each user's items are
distinct. A rating is clip(round(mean + user bias + item bias + u'v + noise)) to the scale; clicks
are drawn by popularity and affinity. Everything that happens to a user depends on the seed and the
user's number alone, so a data set does not depend on the chunks it is made in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import ndtr

from fedrec.arrays import Float32s, Int64s
from fedrec.data.alias_table import alias_table
from fedrec.data.interactions import Catalogue, Dataset, Interactions, Provenance, ReadReport
from fedrec.data.kinds import KINDS, Kind
from fedrec.data.planted_items import PlantedItems, fill_users, plant_items
from fedrec.numerics.threads import map_ranges
from fedrec.randomness import Streams

_MOST_OF_CATALOGUE = 0.3  # no user has seen more of the items than this
DEMO = "demo"
"""The preset where none is named."""


@dataclass(frozen=True)
class PlantedShape:
    """Sizes and strengths of a planted data set; standard deviations are in units of the rating
    scale.

    explained: share of the variance of item vectors, and of item biases, that the public features
    explain. least_events: of any user. selectivity: how strongly affinity decides what a user meets
    (0: popularity alone); None takes 0.5 for ratings and 6 for clicks. skew: power to which
    popularity is raised.
    """

    users: int
    items: int
    events: int
    kind: Kind = "ratings"
    dimension: int = 8
    explained: float = 0.5
    least_events: int = 10
    value_range: tuple[float, float] = (1.0, 5.0)
    step: float = 1.0
    mean: float = 3.6
    user_bias_std: float = 0.4
    item_bias_std: float = 0.45
    interaction_std: float = 0.45
    noise_std: float = 0.75
    selectivity: float | None = None
    skew: float = 1.0

    def __post_init__(self) -> None:
        if (
            min(self.users, self.items, self.dimension, self.least_events) < 1
            or not 0 <= self.explained <= 1
            or self.step <= 0
        ):
            raise ValueError(
                f"sizes and step must be positive and explained in [0, 1], found {self}"
            )
        most = self.users * self.most_events
        if not self.users * self.least_events <= self.events <= most:
            raise ValueError(
                f"events must be between {self.users * self.least_events} and {most}, found "
                f"{self.events}"
            )
        if self.least_events > self.items:
            raise ValueError(
                f"a user has distinct items: {self.least_events} events each need as many items, "
                f"found {self.items}"
            )

    @property
    def most_events(self) -> int:
        """The most events of any user."""
        return max(self.least_events, int(_MOST_OF_CATALOGUE * self.items))


SHAPES: dict[str, PlantedShape] = {
    "small": PlantedShape(users=300, items=120, events=7_500),
    DEMO: PlantedShape(
        users=6_000,
        items=1_000,
        events=400_000,
        least_events=20,
        explained=0.8,
        interaction_std=0.6,
    ),
    "ml10m": PlantedShape(
        users=69_878,
        items=10_677,
        events=10_000_000,
        least_events=20,
        value_range=(0.5, 5.0),
        step=0.5,
    ),
    "ml10m_x10": PlantedShape(
        users=698_780,
        items=10_677,
        events=100_000_000,
        least_events=20,
        value_range=(0.5, 5.0),
        step=0.5,
    ),
    # a tenth of the items has 86% of the events, as in data of AM-SSP's and Ada-DPALS's papers
    "skewed": PlantedShape(
        users=6_000,
        items=4_000,
        events=400_000,
        least_events=20,
        value_range=(0.5, 5.0),
        step=0.5,
        skew=1.65,
    ),
    "ml20m": PlantedShape(
        users=138_493,
        items=26_744,
        events=20_000_263,
        least_events=20,
        value_range=(0.5, 5.0),
        step=0.5,
        skew=1.36,
    ),
}


def shape_of_sizes(
    users: int, items: int, events: int, *, least_events: int = 0, value_range: tuple[float,
    float] = (0.5, 5.0), step: float = 0.5,
    dimension: int = 8, explained: float = 0.5, kind: Kind = "ratings",
) -> PlantedShape:  # fmt: skip
    """A shape of any size whose other strengths are the presets', in proportion to the length of
    the scale where that is not 4.5.

    least_events: 0 takes 20, or the events of an average user where these are fewer. Raises
    ValueError where no such data set exists.
    """
    least = least_events or min(20, events // users)
    shape = PlantedShape(
        users, items, events, kind, dimension, explained, max(least, 1), value_range, step
    )
    if value_range == (0.5, 5.0):
        return shape
    low = value_range[0]
    unit = (value_range[1] - value_range[0]) / 4.5
    stds = {
        name: unit * getattr(shape, name)
        for name in ("user_bias_std", "item_bias_std", "interaction_std", "noise_std")
    }
    return replace(shape, mean=low + (shape.mean - 0.5) * unit, **stds)


@dataclass(frozen=True)
class PlantedTruth:
    """What the events were drawn from. user_vectors (n, d), item_vectors (m, d), user_bias (n,),
    item_bias (m,), all float32."""

    shape: PlantedShape
    user_vectors: Float32s
    item_vectors: Float32s
    user_bias: Float32s
    item_bias: Float32s
    popularity: npt.NDArray[np.float64]
    user_events: Int64s

    def affinity(self, interactions: Interactions) -> Float32s:
        """(n,) float32: mean + biases + u'v of each event, before noise, rounding and clipping."""
        users = interactions.users
        items = interactions.items
        inner = np.einsum("nd,nd->n", self.user_vectors[users], self.item_vectors[items])
        return np.asarray(
            self.shape.mean + self.user_bias[users] + self.item_bias[items] + inner,
            dtype=np.float32,
        )

    def expected(self, interactions: Interactions) -> Float32s:
        """(n,) float32: the mean rating of each event given the truth, the best prediction there
        is."""
        (low, high), step = self.shape.value_range, self.shape.step
        affinity = self.affinity(interactions).astype(np.float64)
        expected = np.full(len(affinity), low)
        # E[rating] = low + step * sum over edges of P(above the edge)
        for edge in np.arange(low + step / 2, high, step):
            expected += step * ndtr((affinity - edge) / self.shape.noise_std)
        return expected.astype(np.float32)

    def noise_floor(self, interactions: Interactions) -> float:
        """RMSE of `expected` on these ratings: what no model can beat but by chance."""
        return float(
            np.sqrt(
                np.mean((self.expected(interactions).astype(np.float64) - interactions.values) ** 2)
            )
        )


@dataclass(frozen=True)
class PlantedChunk:
    """The events of users `first_user`, `first_user + 1`, ...

    (numbered from 0 in `interactions`)."""

    first_user: int
    interactions: Interactions


def planted(shape: PlantedShape, *, seed: int) -> Dataset:
    """The whole planted data set in memory (16 bytes an event)."""
    truth, items = _plant(shape, seed)
    events = _draw(truth, _event_key(seed), 0, shape.users)
    catalogue = Catalogue(
        tuple(str(j + 1) for j in range(shape.items)),
        items.titles,
        tuple(str(k + 1) for k in range(shape.users)),
    )
    report = ReadReport(len(events), len(events), notes=(f"planted with seed {seed}: {shape}",))
    return Dataset(events, catalogue, items.features, Provenance("planted", (), report))


def planted_truth(shape: PlantedShape, *, seed: int) -> PlantedTruth:
    """What `planted` with the same arguments draws from."""
    return _plant(shape, seed)[0]


def planted_items(shape: PlantedShape, *, seed: int) -> PlantedItems:
    """The items of `planted` with the same arguments."""
    return _plant(shape, seed)[1]


def generate_chunks(
    shape: PlantedShape, *, seed: int, events_per_chunk: int = 5_000_000
) -> Iterator[PlantedChunk]:
    """The events of `planted` with the same arguments, by consecutive users, about
    `events_per_chunk` at a time."""
    truth, _ = _plant(shape, seed)
    ends = np.cumsum(truth.user_events)
    start = 0
    while start < shape.users:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + events_per_chunk, side="right")))
        yield PlantedChunk(start, _draw(truth, _event_key(seed), start, stop))
        start = stop


def planted_part(shape: PlantedShape, items: PlantedItems, *, seed: int, part: int) -> Interactions:
    """The events of users whom no other part knows, numbered from 0: drawn from streams of this
    part. shape: of the part. items: of all parts."""
    streams = Streams(seed)
    truth = _users(shape, items, streams.numpy("planted-users-of-part", round=part))
    return _draw(truth, streams.key("planted-events-of-part", round=part), 0, shape.users)


def write_parquet(
    folder: Path, shape: PlantedShape, *, seed: int, events_per_chunk: int = 5_000_000
) -> list[Path]:
    """Write the events as Parquet parts and the items as `items.csv`; the files written, the items
    last.

    Parts have the columns user, item, rating (for ratings) and timestamp, numbers from 1. To read
    them again: `read(folder, format="table", rating="rating", timestamp="timestamp",
    rating_range=shape.value_range, item_features=folder / "items.csv")`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, chunk in enumerate(
        generate_chunks(shape, seed=seed, events_per_chunk=events_per_chunk)
    ):
        events = chunk.interactions
        columns = {
            "user": events.users + np.int32(chunk.first_user + 1),
            "item": events.items + np.int32(1),
        }
        ratings = {"rating": events.values} if events.rated else {}
        written.append(folder / f"part-{number:05d}.parquet")
        pl.DataFrame(columns | ratings | {"timestamp": events.times}).write_parquet(written[-1])
    return [*written, _write_items(folder / "items.csv", _plant(shape, seed)[1])]


def _write_items(path: Path, items: PlantedItems) -> Path:
    """One row an item: number from 1, title, and each bag's values with `|` between."""
    columns: dict[str, list[str]] = {
        "item": [str(j + 1) for j in range(len(items.titles))],
        "title": list(items.titles),
    }
    for name, bag in items.features.bags.items():
        ends = np.cumsum(np.asarray(bag.counts.sum(axis=1)).ravel()).astype(np.int64)
        rows = np.split(np.repeat(bag.counts.indices, bag.counts.data.astype(np.int64)), ends[:-1])
        columns[name] = ["|".join(bag.vocabulary[p] for p in row) for row in rows]
    pl.DataFrame(columns).write_csv(path)
    return path


def _plant(shape: PlantedShape, seed: int) -> tuple[PlantedTruth, PlantedItems]:
    """Everything but the events: memory grows with users and items only."""
    streams = Streams(seed)
    rng = streams.numpy("planted-items")
    items = plant_items(shape.items, shape.dimension, shape.explained, rng=rng)
    return _users(shape, items, streams.numpy("planted-users")), items


def _users(shape: PlantedShape, items: PlantedItems, rng: np.random.Generator) -> PlantedTruth:
    d = shape.dimension
    spread = np.arange(1, d + 1) ** -0.5  # tastes differ more in some directions than in others
    spread *= shape.interaction_std / np.sqrt(np.sum(spread**2))
    popularity = items.popularity
    if shape.skew != 1:
        popularity = popularity**shape.skew
        popularity /= popularity.sum()
    return PlantedTruth(
        shape=shape,
        user_vectors=(rng.standard_normal((shape.users, d)) * spread).astype(np.float32),
        item_vectors=items.vectors,
        user_bias=(shape.user_bias_std * rng.standard_normal(shape.users)).astype(np.float32),
        item_bias=(shape.item_bias_std * items.quality).astype(np.float32),
        popularity=popularity,
        user_events=_activity(shape, rng),
    )


def _activity(shape: PlantedShape, rng: np.random.Generator) -> Int64s:
    """Events of each user: log-normal, between the least and the most, summing to
    `shape.events`."""
    raw = np.exp(1.1 * rng.standard_normal(shape.users))
    low = 0.0
    high = 1e3 * shape.events
    for _ in range(200):  # bisection on the factor that makes the clipped counts add up
        factor = (low + high) / 2
        total = np.clip(factor * raw, shape.least_events, shape.most_events).sum()
        low, high = (factor, high) if total < shape.events else (low, factor)
    # downwards: the total is at most what was asked for, and what is missing is dealt out below
    counts = np.floor(np.clip(low * raw, shape.least_events, shape.most_events)).astype(np.int64)
    while missing := shape.events - int(counts.sum()):
        room = np.flatnonzero(counts < shape.most_events)
        counts[rng.permutation(room)[: abs(missing)]] += 1
    return counts


def _event_key(seed: int) -> bytes:
    return Streams(seed).key("planted-events")


def _draw(truth: PlantedTruth, key_bytes: bytes, start: int, stop: int) -> Interactions:
    """The events of users start..stop-1, numbered from 0."""
    shape = truth.shape
    user_ptr = np.concatenate([[0], np.cumsum(truth.user_events[start:stop])]).astype(np.int64)
    n = int(user_ptr[-1])
    items = np.empty(n, np.int32)
    values = np.ones(n, np.float32)
    times = np.empty(n, np.int64)
    threshold, alias = alias_table(truth.popularity)
    selectivity = (
        (0.5 if KINDS[shape.kind].rated else 6.0)
        if shape.selectivity is None
        else shape.selectivity
    )
    key = np.frombuffer(key_bytes[:8], dtype="<u8")[0]
    settings = np.array([shape.mean, *shape.value_range, shape.step, shape.noise_std, selectivity])

    def fill(a: int, b: int) -> None:
        seen = np.zeros(-(-shape.items // 64), np.uint64)
        fill_users(
            a, b, start, user_ptr, threshold, alias, truth.user_vectors, truth.item_vectors,
            truth.user_bias, truth.item_bias,
            settings, KINDS[shape.kind].rated, key, seen, items, values, times,
        )  # fmt: skip

    map_ranges(fill, stop - start)
    scale = KINDS[shape.kind].scale(shape.value_range)
    return Interactions(user_ptr, items, values, shape.items, scale, shape.kind, times)
