"""Impressions from a log of ratings or clicks: a benchmark for news models wherever there are
times, or an order, and item texts.

The protocol, user by user, on the items it liked in their order (`ClickLogProtocol` has the
numbers):

1. The first half of the likes, at most 50, is the history. Up to 15 of the others, drawn at random,
   are the labels: one impression each. No like is both, so that a guarantee for one click has one
   role of it to protect. Users with fewer than 20 likes are left out.
2. About a tenth of the users is the test: whole users, whom training never meets, drawn or the
   latest ones (`Division`). "Latest" is by the first known time of each user where every user has
   one, else by first row. A tenth of the others, drawn, is for validation.
3. An impression shows its label among 36 others, drawn without repetition in proportion to how
   often an item is a label *of train*. Popularity alone then says little (AUC about 50); with
   uniform others it would look like personal taste. The order of the candidates is random. What is
   shown is public to a server of news, so in train the others are drawn without a look at what the
   user likes: if they left it out, an item that is often shown and never to this user would be one
   that the user likes. In validation and test, which no guarantee covers, an item that the user
   likes is never among the others: it would count as an error.

Every draw is a function of the streams, the user's id and the item's id, so that one person's rows
in or out of the log divide nobody else anew and change no other person's history or labels. Two
things hang on everybody's rows all the same, as `not_covered` says: the label counts by which
others are drawn, and who the latest users are. They are a benchmark's choice, no part of a
mechanism, and whoever knows the seed can tell labels from candidates. A site cannot make
impressions in this way (its own counts would tell its clicks), so clients read no click log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s, Int32s, Int64s
from fedrec.data.impressions import Impressions
from fedrec.data.interactions import Interactions
from fedrec.data.keyed_hash import Words, below, first_words, hashed, hashed_events
from fedrec.errors import DataError
from fedrec.numerics import compiled
from fedrec.randomness import Streams

Division = Literal["drawn", "latest"]
"""Who is tested. "latest" ignores the streams: every seed tests the same users, and what is chosen
on some seed has met them."""


def draw_others(
    weights: npt.NDArray[np.generic],
    *,
    own_ptr: Int64s,
    own: Int32s,
    users: Int32s,
    size: int,
    seeds: Words,
) -> Int32s:
    """(n, size) int32: row i holds distinct items drawn one after another by weight, none of weight
    0, none that user `users[i]` owns.

    seeds: (n,) uint64, uniform: row i depends on its own, on the weights and on what its user owns,
    and on no other row. weights: (m,) not negative. User k owns the distinct items
    `own[own_ptr[k]:own_ptr[k + 1]]`.
    Raises DataError where too few items are left for a user, ValueError on a negative weight.
    """
    weight = weights.astype(np.float64)
    if not (weight >= 0).all():
        raise ValueError(f"weights must not be negative, found {weight.min()}")
    owned = np.concatenate([[0], np.cumsum(weight[own] > 0)])[own_ptr]
    left = int((weight > 0).sum()) - np.diff(owned)[users]
    if len(users) and left.min() < size:
        raise DataError(
            f"a user has {int(left.min())} items left to draw {size} others from",
            "Ask for fewer candidates, or take a log with more items.",
        )
    drawn = np.empty((len(users), size), np.int32)
    _draw_rows(np.cumsum(weight), own_ptr, own, users, drawn, seeds)
    return drawn


@compiled(inner=True)
def draw_one(cumulated: Float64s, rng: np.random.Generator) -> int:
    """An item in proportion to its weight, from the cumulated weights: never one of weight 0, since
    those add no step."""
    return int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"))


@compiled()
def _draw_rows(
    cumulated: Float64s, own_ptr: Int64s, own: Int32s, users: Int32s, drawn: Int32s, seeds: Words
) -> None:
    """SplitMix64 (Steele, Lea, Flood 2014) from each row's seed.

    Rejection is drawing one after another without replacement; no item is rarer than its weight, so
    it ends.
    """
    taken = np.full(len(cumulated), -1, np.int64)
    for i in range(len(users)):
        for e in range(own_ptr[users[i]], own_ptr[users[i] + 1]):
            taken[own[e]] = i
        found = 0
        state = seeds[i]
        while found < drawn.shape[1]:
            state = state + np.uint64(0x9E3779B97F4A7C15)
            z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            uniform = np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0
            j = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
            if taken[j] != i:
                taken[j] = i
                drawn[i, found] = j
                found += 1


@dataclass(frozen=True)
class OrderedRatings:
    """n ratings (or clicks) in an order in which every user's own rows go from old to new.

    users, items: (n,) int32 in [0, num_users) and [0, num_items). values: (n,) float32. times: (n,)
    int64 seconds, 0 unknown, or None. user_words, item_words: uint64 hashes of the external ids
    (`keyed_hash`), by which is drawn; None where the ids are the numbers.
    """

    users: Int32s
    items: Int32s
    values: Float32s
    times: Int64s | None
    num_users: int
    num_items: int
    user_words: Words | None = None
    item_words: Words | None = None

    def __post_init__(self) -> None:
        sizes = [
            len(self.users),
            len(self.items),
            len(self.values),
            *([] if self.times is None else [len(self.times)]),
        ]
        if len(set(sizes)) > 1:
            raise ValueError(f"columns must have one entry a rating, found {sizes}")

    def __len__(self) -> int:
        return len(self.items)

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> OrderedRatings:
        """The given rows."""
        times = None if self.times is None else self.times[rows]
        return replace(
            self,
            users=self.users[rows],
            items=self.items[rows],
            values=self.values[rows],
            times=times,
        )


@dataclass(frozen=True)
class ClickLogProtocol:
    """The numbers of the protocol.

    `liked`: least value of a like. candidates: of an impression, its label among them."""

    liked: float = 4.0
    least_likes: int = 20
    history: int = 50
    labels: int = 15
    candidates: int = 37
    test_share: float = 0.1
    validation_share: float = 0.1
    division: Division = "drawn"

    def __post_init__(self) -> None:
        if self.least_likes < 2 or min(self.history, self.labels) < 1 or self.candidates < 2:
            raise ValueError(
                f"sizes must be positive, with at least 2 likes and 2 candidates, found {self}"
            )
        if not (0 < self.test_share < 1 and 0 <= self.validation_share < 1):
            raise ValueError(
                f"shares must be in (0, 1), found test {self.test_share}, validation "
                f"{self.validation_share}"
            )


@dataclass(frozen=True)
class ClickLog:
    """Impressions for training, for choosing and for the final number; a user is in one of the
    three only, numbered there from 0."""

    train: Impressions
    validation: Impressions
    test: Impressions


def by_time(interactions: Interactions) -> OrderedRatings:
    """The events of a data set from old to new, equal times by item.

    Raises DataError without a time for every event."""
    times = interactions.times
    if times is None or (len(times) and times.min() <= 0):
        raise DataError(
            "the data set has no time for every event",
            "Name its timestamp column, or take a log in a known order.",
        )
    order = np.argsort(times, kind="stable")
    ratings = OrderedRatings(
        interactions.users, interactions.items, interactions.values, times, interactions.num_users,
        interactions.num_items,
        interactions.user_words, interactions.item_words,
    )  # fmt: skip
    return ratings.take(order)


def click_log(
    ratings: OrderedRatings, protocol: ClickLogProtocol | None = None, *, streams: Streams
) -> ClickLog:
    """The impressions of the protocol above; the same ratings and streams give the same bytes.

    A like of an item already liked is passed over. Raises DataError where a part would have no
    user, or an impression too few candidates.
    """
    protocol = protocol or ClickLogProtocol()
    likes = _likes(ratings, protocol.liked)
    order = np.argsort(likes.users, kind="stable")
    ptr = np.concatenate(
        [[0], np.cumsum(np.bincount(likes.users, minlength=likes.num_users))]
    ).astype(np.int64)
    user_words = first_words(likes.num_users) if likes.user_words is None else likes.user_words
    item_words = first_words(likes.num_items) if likes.item_words is None else likes.item_words
    mine = _Likes(ptr, likes.items[order], user_words, item_words)
    parts = _split_users(
        ratings, mine, np.flatnonzero(np.diff(ptr) >= protocol.least_likes), protocol, streams
    )
    labels = [
        _labels(mine, users, protocol, streams.key("click-log-labels")) for users in parts.values()
    ]
    weights = np.bincount(mine.items[labels[0]], minlength=ratings.num_items)
    key = streams.key("click-log-candidates")
    return ClickLog(
        *(
            _impressions(mine, users, events, weights, protocol, key, blind=name == "train")
            for (name, users), events in zip(parts.items(), labels, strict=True)
        )
    )


def not_covered(protocol: ClickLogProtocol) -> tuple[str, ...]:
    """Sentences on what such a log reads off all users' rows, so that no guarantee for training
    covers it."""
    latest = (
        "who the latest users are, whom the click log tests: read off the times of all users",
    )
    drawn = (
        (
            "the candidates of every impression of the click log: drawn by how often an item is "
            "a label of train"
        ),
    )
    return drawn + (latest if protocol.division == "latest" else ())


@dataclass(frozen=True)
class _Likes:
    """Distinct liked items of user k, oldest first: `items[ptr[k]:ptr[k + 1]]`."""

    ptr: Int64s
    items: Int32s
    user_words: Words
    item_words: Words

    def draws(self, key: bytes) -> Words:
        """One for each like."""
        return hashed_events(key, self.ptr, self.items, self.user_words, self.item_words)

    def history_sizes(self, users: Int64s, protocol: ClickLogProtocol) -> Int64s:
        return np.asarray(np.minimum(protocol.history, np.diff(self.ptr)[users] // 2))


def _likes(ratings: OrderedRatings, liked: float) -> OrderedRatings:
    likes = ratings.take(ratings.values >= liked)
    first = np.unique(
        likes.users.astype(np.int64) * likes.num_items + likes.items, return_index=True
    )[1]
    return likes.take(np.sort(first))


def _split_users(
    ratings: OrderedRatings,
    mine: _Likes,
    users: Int64s,
    protocol: ClickLogProtocol,
    streams: Streams,
) -> dict[str, Int64s]:
    """Users of each part, in increasing order."""
    if protocol.division == "latest":
        # the nearest number of users: the share is public, and so is the division
        latest = users[
            np.argsort(_arrivals(ratings)[users], kind="stable")[
                len(users) - round(protocol.test_share * len(users)) :
            ]
        ]
        tested = np.isin(users, latest)
    else:
        tested = below(
            hashed(streams.key("click-log-test"), mine.user_words[users]), protocol.test_share
        )
    checked = ~tested & below(
        hashed(streams.key("click-log-validation"), mine.user_words[users]),
        protocol.validation_share,
    )
    parts = {
        "train": users[~tested & ~checked],
        "validation": users[checked],
        "test": users[tested],
    }
    empty = [
        name
        for name, part in parts.items()
        if not len(part) and not (name == "validation" and protocol.validation_share == 0)
    ]
    if empty:
        raise DataError(
            (
                f"{len(users)} users with at least {protocol.least_likes} likes leave none for "
                f"{empty[0]}"
            ),
            "Take a larger log or fewer likes.",
        )
    return parts


def _arrivals(ratings: OrderedRatings) -> Int64s:
    """(num_users,) when each user came: its first known time, or, unless every user of the log has
    one, its first row."""
    none = np.iinfo(np.int64).max
    first_row = np.full(ratings.num_users, none)
    np.minimum.at(first_row, ratings.users, np.arange(len(ratings)))
    if ratings.times is None:
        return first_row
    known = ratings.times > 0
    first_time = np.full(ratings.num_users, none)
    np.minimum.at(first_time, ratings.users[known], ratings.times[known])
    return first_row if ((first_time == none) & (first_row != none)).any() else first_time


def _labels(mine: _Likes, users: Int64s, protocol: ClickLogProtocol, key: bytes) -> Int64s:
    """Where among all likes the labels of these users stand, user by user, old to new."""
    sizes = mine.history_sizes(users, protocol)
    events, owner = _ranges(mine.ptr[users] + sizes, np.diff(mine.ptr)[users] - sizes)
    shuffled = np.lexsort((mine.draws(key)[events], owner))
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(users)))])
    return np.sort(events[shuffled[np.arange(len(events)) - starts[owner] < protocol.labels]])


def _impressions(
    mine: _Likes,
    users: Int64s,
    labels: Int64s,
    weights: Int64s,
    protocol: ClickLogProtocol,
    key: bytes,
    *,
    blind: bool,
) -> Impressions:
    """blind: the others of an impression are any but its label, whatever else the user likes."""
    sizes = mine.history_sizes(users, protocol)
    history, _ = _ranges(mine.ptr[users], sizes)
    owner = (np.searchsorted(mine.ptr, labels, side="right") - 1).astype(np.int32)
    clicked = mine.items[labels]
    seeds = mine.draws(key)[labels]
    left_out = (
        (np.arange(len(labels) + 1), clicked, np.arange(len(labels), dtype=np.int32))
        if blind
        else (mine.ptr, mine.items, owner)
    )
    own_ptr, own, of = left_out
    others = draw_others(
        weights, own_ptr=own_ptr, own=own, users=of, size=protocol.candidates - 1, seeds=seeds
    )
    shown = np.column_stack([clicked, others])
    each = np.asarray(seeds[:, None] + np.arange(protocol.candidates, dtype=np.uint64), np.uint64)
    places = np.argsort(hashed(key, each.ravel()).reshape(each.shape), axis=1)
    return Impressions(
        num_news=len(weights),
        history_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        history=mine.items[history],
        users=np.searchsorted(users, owner).astype(np.int32),
        candidate_ptr=np.arange(len(labels) + 1, dtype=np.int64) * protocol.candidates,
        candidates=np.take_along_axis(shown, places, axis=1).ravel(),
        clicked=(places == 0).ravel(),
        user_words=mine.user_words[users],
    )


def _ranges(starts: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s]:
    """All positions of the ranges one after another, and the number of the range of each."""
    owner = np.repeat(np.arange(len(starts)), sizes)
    return np.arange(len(owner)) - (np.cumsum(sizes) - sizes - starts)[owner], owner


def liked_in(form: str) -> float:
    """The least rating that counts as a click in data of this format; 0 where clicks are none."""
    return ClickLogProtocol().liked if form == "click-log" else 0.0
