"""Users that never lived, drawn from a released model and public numbers: what a basis is fitted on
instead of real ones.

    tastes     e ~ N(0, s^2 I) on the coordinates of item vectors that users differ in, s so that
               e . v_j spreads over items by `spread`
    which      n items, n log-normal; item j with weight
               popularity_j exp(attraction (rho e + sqrt(1 - rho^2) e') . v_j / spread)
    ratings    the model's own prediction for the taste, plus noise, rounded into the scale; clicks
               have none

e' is drawn like e: what people pick is only partly what they will like. popularity comes from
noised counts. Nothing here has seen a user but through the release, so whatever is fitted on these
users costs nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.facts import Model, ranker_of

_BLOCK_NUMBERS = 1 << 20
"""Scores of items that a block of users has at most, so that one product serves many users."""


@dataclass(frozen=True)
class Released:
    """All an export may read of a training: the model, the counts (m,) it released, and the public
    facts of its data.

    events: how many a typical user has, from the same counts.
    """

    model: Model
    popularity: Float64s
    events: float
    like: Interactions

    @staticmethod
    def of(
        model: Model, popularity: npt.NDArray[np.floating], *, events: float, empty: Interactions
    ) -> Released:
        """`empty` tells kind, value range and items.

        Raises ValueError where it holds an event: these are private."""
        if len(empty):
            raise ValueError(f"an export reads no events, found {len(empty)}")
        return Released(model, np.maximum(np.asarray(popularity, np.float64), 1e-9), events, empty)

    @property
    def ranker(self) -> Model:
        """What the model's lists are made by."""
        return ranker_of(self.model)

    @cached_property
    def shares(self) -> Float64s:
        """(m,) the popularity, summing to 1."""
        shares: Float64s = self.popularity / self.popularity.sum()
        return shares

    @cached_property
    def nobody(self) -> Float64s:
        """(D,) the ranker's vector of a user without events: 0 where users differ by their
        tastes."""
        nobody: Float64s = np.asarray(self.ranker.user_vectors(self.like), np.float64)[0]
        return nobody


@dataclass(frozen=True)
class SyntheticSettings:
    """How many users, and of what kind; chosen on validation users of MovieLens 1M, the sizes of
    spread and noise by judgement.

    spread and noise are in widths of the value scale. attraction: by how much one spread of taste
    raises the log-odds of an item. shared: rho. size_spread: of the logarithm of n.
    """

    users: int = 2000
    most_numbers: int = 20_000_000
    spread: float = 0.15
    noise: float = 0.225
    attraction: float = 1.5
    shared: float = 0.25
    size_spread: float = 0.9


def synthetic_users(
    released: Released, settings: SyntheticSettings, *, rng: np.random.Generator
) -> Interactions:
    """Events of `settings.users` users (fewer for a large catalogue), with times in random
    order."""
    like = released.like
    m = released.like.num_items
    n = max(200, min(settings.users, settings.most_numbers // m))
    low, high = like.value_range
    spread = settings.spread * (high - low)
    noise = settings.noise * (high - low)
    centred = centred_tastes(released)
    predicted = _prediction_without_events(released)
    log_weight = np.log(released.popularity)
    rho = settings.shared
    # of a product with e ~ N(0, I)
    energy = math.sqrt(float(released.shares @ (centred**2).sum(1)))
    most = max(1, _BLOCK_NUMBERS // m)
    parts = []
    for start in range(0, n, most):
        drawn = [_drawn(released, settings, centred.shape[1], rng) for _ in range(start, n)[:most]]
        tastes = np.concatenate([one.tastes for one in drawn]) / max(energy, 1e-12)
        pairs = (tastes @ centred.T).reshape(len(drawn), 2, m)
        for k, (one, (liked, other)) in enumerate(zip(drawn, pairs, strict=True), start=start):
            pull = settings.attraction * (rho * liked + math.sqrt(1 - rho**2) * other)
            size = len(one.noise)
            # Gumbel: weighted, without repetition
            items = np.argpartition(-(log_weight + pull + one.gumbel), size - 1)[:size]
            values = np.clip(
                np.rint(predicted[items] + spread * liked[items] + noise * one.noise), low, high
            )
            parts.append((np.full(size, k), items, values, one.order))
    users, items, values, times = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Interactions.from_columns(
        users,
        items,
        values if like.rated else None,
        num_users=n,
        num_items=m,
        value_range=like.value_range,
        kind=like.kind,
        times=times,
    )


@dataclass(frozen=True)
class _Drawn:
    """What one user's n events are made from: tastes e, e' (2, D'), a Gumbel number for each item
    (m,), standard normal noise and the order of the events (n,)."""

    tastes: Float64s
    gumbel: Float64s
    noise: Float64s
    order: npt.NDArray[np.int64]


def _drawn(
    released: Released, settings: SyntheticSettings, width: int, rng: np.random.Generator
) -> _Drawn:
    m = released.like.num_items
    size = int(np.clip(released.events * math.exp(rng.normal(0, settings.size_spread)), 1, m / 2))
    tastes = rng.standard_normal((2, width))
    gumbel = rng.gumbel(size=m)
    return _Drawn(tastes, gumbel, rng.standard_normal(size), rng.permutation(size))


def centred_tastes(released: Released) -> Float64s:
    """(m, D') item vectors on the coordinates that users differ in, less their mean under the
    popularity: 0 for a user without events."""
    V = np.asarray(released.ranker.item_vectors, np.float64)[:, released.nobody == 0]
    return V - released.shares @ V


def _prediction_without_events(released: Released) -> Float64s:
    nobody = np.asarray(released.model.user_vectors(released.like), np.float64)[0]
    return np.asarray(
        np.asarray(released.model.item_vectors, np.float64) @ nobody + released.model.offset,
        np.float64,
    )
