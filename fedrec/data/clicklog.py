"""Impressions from a log of ratings or clicks: a benchmark for news models wherever there are times, or an order, and item texts.

The protocol, user by user, on the items it liked in their order (`ClickLogProtocol` has the numbers):

1. The first half of the likes, at most 50, is the history. Up to 15 of the others, drawn at random, are the labels: one impression
   each. No like is both, so that a guarantee for one click has one role of it to protect. Users with fewer than 20 likes are left out.
2. A tenth of the users is the test: whole users, whom training never meets, drawn at random or the latest ones (`Division`). "Latest"
   is by the first known time of each user where every user has one, else by first row. A tenth of the others, drawn, is for validation.
3. An impression shows its label among 36 others, drawn without repetition in proportion to how often an item is a label *of train*.
   Popularity alone then says little (AUC about 50); with uniform others it would look like personal taste. The order of the candidates
   is random. What is shown is public to a server of news, so in train the others are drawn without a look at what the user likes: if
   they left it out, an item that is often shown and never to this user would be one that the user likes. In validation and test,
   which no guarantee covers, an item that the user likes is never among the others: it would count as an error.

What decides the draw, label counts of train, is as private as train: a benchmark's choice, no part of a mechanism. A site cannot make
impressions in this way (its own counts would tell its clicks), so clients read no click log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.data.drawing import draw_others
from fedrec.data.impressions import Impressions
from fedrec.data.interactions import Float32s, Int32s, Int64s, Interactions
from fedrec.errors import DataError
from fedrec.streams import Streams

Division = Literal["drawn", "latest"]
"""Who is tested. "latest" ignores the streams: every seed tests the same users, and what is chosen on some seed has met them."""


@dataclass(frozen=True)
class OrderedRatings:
    """n ratings (or clicks) in an order in which every user's own rows go from old to new.

    users, items: (n,) int32 in [0, num_users) and [0, num_items). values: (n,) float32. times: (n,) int64 seconds, 0 unknown, or None.
    """

    users: Int32s
    items: Int32s
    values: Float32s
    times: Int64s | None
    num_users: int
    num_items: int

    def __post_init__(self) -> None:
        sizes = [len(self.users), len(self.items), len(self.values), *([] if self.times is None else [len(self.times)])]
        if len(set(sizes)) > 1:
            raise ValueError(f"columns must have one entry a rating, found {sizes}")

    def __len__(self) -> int:
        return len(self.items)

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> OrderedRatings:
        """The given rows."""
        times = None if self.times is None else self.times[rows]
        return OrderedRatings(self.users[rows], self.items[rows], self.values[rows], times, self.num_users, self.num_items)


@dataclass(frozen=True)
class ClickLogProtocol:
    """The numbers of the protocol. `liked`: least value of a like. candidates: of an impression, its label among them."""

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
            raise ValueError(f"sizes must be positive, with at least 2 likes and 2 candidates, found {self}")
        if not (0 < self.test_share < 1 and 0 <= self.validation_share < 1):
            raise ValueError(f"shares must be in (0, 1), found test {self.test_share}, validation {self.validation_share}")


@dataclass(frozen=True)
class ClickLog:
    """Impressions for training, for choosing and for the final number; a user is in one of the three only, numbered there from 0."""

    train: Impressions
    validation: Impressions
    test: Impressions


def by_time(interactions: Interactions) -> OrderedRatings:
    """The events of a data set from old to new, equal times by item. Raises DataError without a time for every event."""
    times = interactions.times
    if times is None or (len(times) and times.min() <= 0):
        raise DataError("the data set has no time for every event", "Name its timestamp column, or take a log in a known order.")
    order = np.argsort(times, kind="stable")
    ratings = OrderedRatings(
        interactions.users, interactions.items, interactions.values, times, interactions.num_users, interactions.num_items
    )
    return ratings.take(order)


def click_log(ratings: OrderedRatings, protocol: ClickLogProtocol | None = None, *, streams: Streams) -> ClickLog:
    """The impressions of the protocol above; the same ratings and streams give the same bytes.

    A like of an item already liked is passed over. Raises DataError where a part would have no user, or an impression too few candidates.
    """
    protocol = protocol or ClickLogProtocol()
    likes = _likes(ratings, protocol.liked)
    order = np.argsort(likes.users, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(likes.users, minlength=likes.num_users))]).astype(np.int64)
    mine = _Likes(ptr, likes.items[order])
    parts = _split_users(ratings, np.flatnonzero(np.diff(ptr) >= protocol.least_likes), protocol, streams)
    labels = [_labels(mine, users, protocol, streams.numpy(f"click-log-labels-{name}")) for name, users in parts.items()]
    weights = np.bincount(mine.items[labels[0]], minlength=ratings.num_items)
    return ClickLog(
        *(
            _impressions(mine, users, events, weights, protocol, streams.numpy(f"click-log-candidates-{name}"), blind=name == "train")
            for (name, users), events in zip(parts.items(), labels, strict=True)
        )
    )


@dataclass(frozen=True)
class _Likes:
    """Distinct liked items of user k, oldest first: `items[ptr[k]:ptr[k + 1]]`."""

    ptr: Int64s
    items: Int32s

    def history_sizes(self, users: Int64s, protocol: ClickLogProtocol) -> Int64s:
        return np.asarray(np.minimum(protocol.history, np.diff(self.ptr)[users] // 2))


def _likes(ratings: OrderedRatings, liked: float) -> OrderedRatings:
    likes = ratings.take(ratings.values >= liked)
    first = np.unique(likes.users.astype(np.int64) * likes.num_items + likes.items, return_index=True)[1]
    return likes.take(np.sort(first))


def _split_users(ratings: OrderedRatings, users: Int64s, protocol: ClickLogProtocol, streams: Streams) -> dict[str, Int64s]:
    """Users of each part, in increasing order."""
    tested = round(protocol.test_share * len(users))
    if protocol.division == "latest":
        tested_last = users[np.argsort(_arrivals(ratings)[users], kind="stable")]
    else:
        tested_last = streams.numpy("click-log-test").permutation(users)
    others = streams.numpy("click-log-validation").permutation(tested_last[: len(users) - tested])
    checked = round(protocol.validation_share * len(others))
    parts = {"train": others[checked:], "validation": others[:checked], "test": tested_last[len(users) - tested :]}
    empty = [name for name, part in parts.items() if not len(part) and not (name == "validation" and protocol.validation_share == 0)]
    if empty:
        raise DataError(
            f"{len(users)} users with at least {protocol.least_likes} likes leave none for {empty[0]}", "Take a larger log or fewer likes."
        )
    return {name: np.sort(part) for name, part in parts.items()}


def _arrivals(ratings: OrderedRatings) -> Int64s:
    """(num_users,) when each user came: its first known time, or, unless every user of the log has one, its first row."""
    none = np.iinfo(np.int64).max
    first_row = np.full(ratings.num_users, none)
    np.minimum.at(first_row, ratings.users, np.arange(len(ratings)))
    if ratings.times is None:
        return first_row
    known = ratings.times > 0
    first_time = np.full(ratings.num_users, none)
    np.minimum.at(first_time, ratings.users[known], ratings.times[known])
    return first_row if ((first_time == none) & (first_row != none)).any() else first_time


def _labels(mine: _Likes, users: Int64s, protocol: ClickLogProtocol, rng: np.random.Generator) -> Int64s:
    """Where among all likes the labels of these users stand, user by user, old to new."""
    sizes = mine.history_sizes(users, protocol)
    events, owner = _ranges(mine.ptr[users] + sizes, np.diff(mine.ptr)[users] - sizes)
    shuffled = np.lexsort((rng.random(len(events)), owner))
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(users)))])
    return np.sort(events[shuffled[np.arange(len(events)) - starts[owner] < protocol.labels]])


def _impressions(
    mine: _Likes,
    users: Int64s,
    labels: Int64s,
    weights: Int64s,
    protocol: ClickLogProtocol,
    rng: np.random.Generator,
    *,
    blind: bool,
) -> Impressions:
    """blind: the others of an impression are any but its label, whatever else the user likes."""
    sizes = mine.history_sizes(users, protocol)
    history, _ = _ranges(mine.ptr[users], sizes)
    owner = (np.searchsorted(mine.ptr, labels, side="right") - 1).astype(np.int32)
    clicked = mine.items[labels]
    left_out = (np.arange(len(labels) + 1), clicked, np.arange(len(labels), dtype=np.int32)) if blind else (mine.ptr, mine.items, owner)
    own_ptr, own, of = left_out
    others = draw_others(weights, own_ptr=own_ptr, own=own, users=of, size=protocol.candidates - 1, rng=rng)
    shown = np.column_stack([clicked, others])
    places = rng.permuted(np.tile(np.arange(protocol.candidates), (len(labels), 1)), axis=1)
    return Impressions(
        num_news=len(weights),
        history_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        history=mine.items[history],
        users=np.searchsorted(users, owner).astype(np.int32),
        candidate_ptr=np.arange(len(labels) + 1, dtype=np.int64) * protocol.candidates,
        candidates=np.take_along_axis(shown, places, axis=1).ravel(),
        clicked=(places == 0).ravel(),
    )


def _ranges(starts: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s]:
    """All positions of the ranges one after another, and the number of the range of each."""
    owner = np.repeat(np.arange(len(starts)), sizes)
    return np.arange(len(owner)) - (np.cumsum(sizes) - sizes - starts)[owner], owner
