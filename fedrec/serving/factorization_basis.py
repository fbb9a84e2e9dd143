"""Public rows for the items of a factorisation model, and what their sums say of a user: both from
the release alone.

    rows      s_j = (half of the B - 1 leading directions of item vectors under the released
              popularity, cut to length r; sqrt(3)/2)
    query     the posterior mean of what the user's list has beside what everybody's has, in C <= B
              numbers (`sizes`)
    scores    directions_j . query + prior_j, prior: how popular items are, which needs no report

r is the median length: few items are far out, and they would set everyone's noise. Two rows differ
by at most 1, since half of a direction is at most 1/2 long and the last coordinate is the same for
all; a row is at most 1 long. So the number of clicks is told at the price of the rest. Directions,
and not soft topics of items: at the same epsilon they lose less
(`research/results/serving-basis-ml1m.json`). One vector of attention (PrivateRec Alg. 2) is nearest
to the exact list without noise, but is noised by sqrt2 theta whatever the length of the history: at
epsilon 5 it is worse than no history at all.

Sizes follow what people hold, by synthetic users (`synthetic`): H is the 95th percentile of their
liked items, B what leaves most of lists' differences at the epsilons that queries usually have.

Each synthetic user appears a second time as a newcomer, with 1 to 10 of these items (log-uniform)
and the same taste. So the groups of `sizes` say what few clicks tell of a taste, and the posterior
mean shrinks what noise could have made of them towards 0, which is everybody's list. Without them
one click would be read with the covariance of the smallest synthetic histories. All of this is made
of the release alone, and reading is post-processing of a noised answer.

Users that never lived, drawn from a released model and public numbers: what a basis is fitted on
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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import BITS, Population, TopicTable, coefficients, noise_std
from fedrec.randomness import Streams
from fedrec.serving.user_map import Sizes, grouped

_BLOCK_NUMBERS = 1 << 20
"""Scores of items that a block of users has at most, so that one product serves many users."""
MOST_PLACES = 1_000
"""Of a history: more is what devices refuse (`fedrec_client.bundle_cache`)."""
_LEAST_PLACES = 10  # fewer would hold nobody's taste
_HELD = 0.95  # of invented people keep all their likes; the few largest histories are cut
_FEW = 10
"""Clicks of a newcomer at most. Larger histories keep the covariance of people who hold no more:
with newcomers of every size, 20 clicks on MovieLens 100K had recall .443 for .452."""
_DELTA = 1e-5  # as scenarios have by default
_TIED = 0.1
"""Of serving, where B is chosen; in logarithms, what a larger B must be worth more, since it fits
its synthetic users better."""


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
            # invented ratings are whole, as those that the model was trained on mostly are
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


@dataclass(frozen=True)
class BasisSettings:
    """B coefficients and H places, 0 for what suits the people; rows are cut at this quantile of
    their lengths.

    sizes: the B that are tried, for queries of these epsilons per click.
    """

    coefficients: int = 0
    history: int = 0
    cut: float = 0.5
    sizes: tuple[int, ...] = (5, 9, 17, 33)
    epsilons: tuple[float, ...] = (1.0, 5.0)


@dataclass(frozen=True)
class Basis:
    """rows; H; the synthetic population of all sizes together, and by size; directions (m, C) and
    prior (m,) of the scores."""

    table: TopicTable
    history: int
    population: Population
    sizes: Sizes
    directions: Float64s
    prior: Float64s


@dataclass(frozen=True)
class Synthetic:
    """Synthetic users: their H latest liked items (2 n, H), and what the ranker makes of all that
    they hold (2 n, D). The second half are the same people with a few of their items."""

    history: npt.NDArray[np.int32]
    users: Float64s

    @staticmethod
    def of(
        released: Released,
        settings: BasisSettings,
        synthetic: SyntheticSettings,
        *,
        liked: float,
        rng: np.random.Generator,
    ) -> Synthetic:
        """Deterministic given the release and rng."""
        events = synthetic_users(released, synthetic, rng=rng)
        likes = events.liked(liked)
        places = math.ceil(float(np.quantile(np.diff(likes.user_ptr), _HELD)))  # upwards: they hold
        places = settings.history or int(
            np.clip(places, _LEAST_PLACES, min(MOST_PLACES, max(events.num_items, _LEAST_PLACES)))
        )
        users = np.asarray(released.ranker.user_vectors(events), np.float64)
        history = latest_liked(events, places=places, liked=liked)
        held = np.clip((history >= 0).sum(1), 1, _FEW)
        # a whole number from 1 to all but one, small ones likelier
        few = np.floor(np.exp(rng.random(len(held)) * np.log(held)))
        newcomers = np.where(np.arange(places) < places - few[:, None], -1, history)
        return Synthetic(np.concatenate([history, newcomers]), np.concatenate([users, users]))


def factorization_basis(
    released: Released,
    settings: BasisSettings,
    synthetic: SyntheticSettings,
    *,
    liked: float,
    rng: np.random.Generator,
) -> Basis:
    """Deterministic given the release and rng."""
    people = Synthetic.of(released, settings, synthetic, liked=liked, rng=rng)
    tried = [settings.coefficients] if settings.coefficients else settings.sizes
    directions = leading(released, people)
    found = {
        B: fitted(released, counted_rows(directions, replace(settings, coefficients=B)), people)
        for B in tried
    }

    def kept(basis: Basis) -> float:
        noises = (
            noise_std(basis.table, basis.history, mu=mu_for(epsilon, _DELTA))
            for epsilon in settings.epsilons
        )
        return sum(math.log(max(basis.sizes.explained(noise_std=std), 1e-300)) for std in noises)

    scores = {B: kept(basis) for B, basis in found.items()}
    return found[min(B for B, score in scores.items() if score >= max(scores.values()) - _TIED)]


@dataclass(frozen=True)
class Leading:
    """items: (m, D') on coordinates in which people differ by 1. axes: (D', D'), columns by their
    moments (D',) under the popularity, the largest first."""

    items: Float64s
    axes: Float64s
    moments: Float64s


def leading(released: Released, people: Synthetic) -> Leading:
    """Directions in which scores of people differ most, so that the scale of a ranker's coordinates
    does not matter.

    Raises SettingsError where there are none."""
    centred = centred_tastes(released)
    if not centred.shape[1]:
        cause = (
            "a user without events differs from nobody in no coordinate of this model: a history "
            "cannot become coefficients of it"
        )
        raise SettingsError(cause, 'Serve a model of another recipe, for example "default".')
    values, axes = np.linalg.eigh(
        np.atleast_2d(np.cov(people.users[:, released.nobody == 0], rowvar=False))
    )
    centred = centred @ (axes * np.sqrt(np.maximum(values, 0.0)))
    moments, Q = np.linalg.eigh((centred * released.shares[:, None]).T @ centred)
    return Leading(centred, Q[:, ::-1], moments[::-1])


def counted_rows(directions: Leading, settings: BasisSettings) -> TopicTable:
    """Signed rows (m, B) of length at most 1, no two farther apart than 1; fewer than B where item
    vectors have fewer directions.

    Raises SettingsError where there are none."""
    most = max(settings.coefficients - 1, 1)
    moments = directions.moments
    # below: rounding of float64
    chosen = directions.axes[:, :most][:, moments[:most] > 1e-9 * max(float(moments[0]), 1e-15)]
    if not chosen.size:
        remedy = (
            "Train it with a larger epsilon or on more data. A list that is the same for "
            "everybody needs no private question."
        )
        raise SettingsError(
            "the item vectors of this model are all alike: there is nothing to rank by", remedy
        )
    rows = directions.items @ chosen
    lengths = np.linalg.norm(rows, axis=1)
    rows /= np.maximum(lengths, max(float(np.quantile(lengths, settings.cut)), 1e-12))[:, None]
    # towards zero: no row becomes longer than its bound
    grid = np.trunc(
        np.column_stack([rows / 2, np.full(len(rows), math.sqrt(3) / 2)]) * 2**BITS
    ).astype(np.int64)
    # of one row and 0, of two rows
    farthest = max(int((grid**2).sum(1).max()), 4 * int((grid[:, :-1] ** 2).sum(1).max()))
    return TopicTable(grid, math.nextafter(math.sqrt(farthest), math.inf) * 2.0**-BITS)


def fitted(released: Released, table: TopicTable, people: Synthetic) -> Basis:
    """The maps for any public rows: least squares of the ranker's user vectors, in each group of
    sizes, around the group's mean."""
    V = np.asarray(released.ranker.item_vectors, np.float64)
    shares = released.shares
    a = coefficients(people.history, table)
    clicks = (people.history >= 0).sum(1)
    groups = grouped(clicks)
    B = table.topics
    means = []
    covariances = []
    maps = []
    for group in groups:
        X = a[group] - a[group].mean(0)
        U = people.users[group] - people.users[group].mean(0)
        C = X.T @ X / len(group)
        scale = max(float(np.trace(C)) / B, 1e-30)
        # what a sample of this size cannot tell from nothing
        C += scale * (1e-6 + 0.1 * B / len(group)) * np.eye(B)
        means.append(a[group].mean(0))
        covariances.append(C)
        maps.append(np.linalg.solve(C, X.T @ U / len(group)))
    roots = [np.linalg.cholesky(C).T @ A for C, A in zip(covariances, maps, strict=True)]
    R = np.concatenate(
        [math.sqrt(len(group) / len(a)) * root for group, root in zip(groups, roots, strict=True)]
    )
    # (m, G B): what one standard deviation of each coordinate moves
    scores = (V - shares @ V) @ R.T
    values, F = np.linalg.eigh((scores * shares[:, None]).T @ scores)
    kept = values[::-1][:B] > 1e-9 * max(float(values[-1]), 1e-30)  # below: rounding
    # (C, D), of orthonormal scores
    basis = (F[:, ::-1][:, :B][:, kept] / np.sqrt(values[::-1][:B][kept])).T @ R
    basis = np.concatenate([basis, np.zeros((B - len(basis), V.shape[1]))])
    centred = V - shares @ V
    # (D, C): coordinates of a user vector's scores
    read = (centred * shares[:, None]).T @ (centred @ basis.T)
    sizes = Sizes(
        np.array([float(clicks[group].mean()) for group in groups]),
        np.array([len(group) / len(a) for group in groups]),
        np.array(means),
        np.array(covariances),
        np.array([A @ read for A in maps]),
    )
    population = Population(a.mean(0), np.cov(a, rowvar=False, ddof=0).reshape(B, B))
    return Basis(
        table, people.history.shape[1], population, sizes, V @ basis.T, prior(released, people)
    )


def prior(released: Released, people: Synthetic) -> Float64s:
    """(m,) what items score before anything is known of a user.

    A ranker that orders items for nobody knows it. One that does not, since it expects a click from
    nobody, is told what is clicked: an item's expected number of clicks of a typical person, at
    most 1, as such models score preferences in [0, 1]. Ratings that are no ranker's keep their mean
    over people. The mean of preferences over people would put items first that nobody has heard of.
    """
    V = np.asarray(released.ranker.item_vectors, np.float64)
    alone = V @ released.nobody
    mean = V @ people.users.mean(0)
    # a model without a score for nobody has zeros there, but for rounding in float32
    if float(alone.std()) > 1e-3 * float(mean.std()):
        return np.asarray(alone + released.ranker.offset, np.float64)
    if not released.like.rated:
        return np.minimum(released.events * released.shares, 1.0)
    return np.asarray(mean + released.ranker.offset, np.float64)


def latest_liked(events: Interactions, *, places: int, liked: float) -> npt.NDArray[np.int32]:
    """(num_users, places) item rows, oldest first, -1 in front where there are fewer: the history
    that a query is made from, chosen by a rule that anybody may know.

    It is the latest H items that were clicked, or rated at least `liked`; the place of a click
    follows from when it was made. Where there are no times, the H that come first in one public
    order of all items. In both cases exchanging one click for another exchanges at most one place:
    by time the others stay where they are; in the public order, the one that leaves makes room for
    one, and the one that joins pushes one out, which is the one that leaves or the one that took
    its place. So the bound of `asking` holds for the whole set of clicks.
    """
    likes = events.liked(liked)
    when = likes.times
    if when is None:
        when = Streams(0).numpy("history-order").permutation(events.num_items)[likes.items]
    users = likes.users
    order = np.lexsort((likes.items, when, users))
    # of the sorted rows: a user's rows stay together
    from_end = likes.user_ptr[1:][users] - 1 - np.arange(len(likes))
    kept = from_end < places
    table = np.full((events.num_users, places), -1, np.int32)
    table[users[kept], places - 1 - from_end[kept]] = likes.items[order][kept]
    return table
