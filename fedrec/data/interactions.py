"""Private interactions: who rated or clicked what. One frozen type, compressed by user.

`Interactions` is private by type: it enters only functions that return a release, a local result or
an evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedrec.arrays import Float32s, Int32s, Int64s
from fedrec.data.keyed_hash import Words, first_words, hashed, hashed_events, number_words
from fedrec.data.kinds import KINDS, Kind
from fedrec.errors import SettingsError


@dataclass(frozen=True)
class Interactions:
    """n events of `num_users` users on `num_items` items, sorted by user, then item.

    user_ptr: (num_users + 1,) int64, the events of user k are `user_ptr[k]:user_ptr[k + 1]`.
    items: (n,) int32 in [0, num_items). values: (n,) float32, ratings, or 1 for a click.
    times: (n,) int64 seconds, or None. value_range: the public scale (lowest, highest) of values.
    user_words: (num_users,), item_words: (num_items,) uint64, the hash of each external id
    (`keyed_hash.id_words`), by which draws are made; None where the ids are the numbers. They stay
    with their users and items when those are numbered anew.
    """

    user_ptr: Int64s
    items: Int32s
    values: Float32s
    num_items: int
    value_range: tuple[float, float]
    kind: Kind = "ratings"
    times: Int64s | None = None
    user_words: Words | None = None
    item_words: Words | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_users(self) -> int:
        """Users, with or without events."""
        return len(self.user_ptr) - 1

    @property
    def rated(self) -> bool:
        """Whether events have values on a scale; clicks have none."""
        return KINDS[self.kind].rated

    @property
    def users(self) -> Int32s:
        """(n,) int32 user of each event, expanded from `user_ptr`."""
        return np.repeat(np.arange(self.num_users, dtype=np.int32), np.diff(self.user_ptr))

    def draws(self, key: bytes) -> Words:
        """(n,) uniform 64-bit draws, one for each event: functions of the key, its user's id and
        its item's id alone."""
        users = first_words(self.num_users) if self.user_words is None else self.user_words
        items = first_words(self.num_items) if self.item_words is None else self.item_words
        return hashed_events(key, self.user_ptr, self.items, users, items)

    def user_draws(self, key: bytes) -> Words:
        """(num_users,) uniform 64-bit draws, one for each user: functions of the key and the user's
        id alone."""
        return hashed(
            key, first_words(self.num_users) if self.user_words is None else self.user_words
        )

    @staticmethod
    def from_columns(
        users: npt.NDArray[np.integer],
        items: npt.NDArray[np.integer],
        values: npt.NDArray[np.floating] | None,
        *,
        num_users: int,
        num_items: int,
        value_range: tuple[float, float],
        kind: Kind = "ratings",
        times: npt.NDArray[np.integer] | None = None,
        user_words: Words | None = None,
        item_words: Words | None = None,
    ) -> Interactions:
        """Sort parallel columns by (user, item).

        Raises ValueError on ids outside [0, num_users) x [0, num_items)."""
        for name, ids, bound in (("user", users, num_users), ("item", items, num_items)):
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= bound):
                raise ValueError(
                    f"{name} ids must be in [0, {bound}), found {int(ids.min())}..{int(ids.max())}"
                )
        order = np.argsort(users.astype(np.int64) * num_items + items, kind="stable")
        user_ptr = np.zeros(num_users + 1, dtype=np.int64)
        np.cumsum(np.bincount(users, minlength=num_users), out=user_ptr[1:])
        return Interactions(
            user_ptr=user_ptr,
            items=items[order].astype(np.int32),
            values=np.ones(len(items), np.float32)
            if values is None
            else values[order].astype(np.float32),
            num_items=num_items,
            value_range=value_range,
            kind=kind,
            times=None if times is None else times[order].astype(np.int64),
            user_words=user_words,
            item_words=item_words,
        )

    def select(self, mask: npt.NDArray[np.bool_]) -> Interactions:
        """The events where `mask` (n,) is true, same users and items."""
        kept = np.concatenate([[0], np.cumsum(mask)])[self.user_ptr]
        times = None if self.times is None else self.times[mask]
        return replace(
            self,
            user_ptr=kept.astype(np.int64),
            items=self.items[mask],
            values=self.values[mask],
            times=times,
        )

    def liked(self, least: float) -> Interactions:
        """The events that say that a user likes an item: ratings of at least `least`, and every
        click."""
        return self.select(self.values >= least) if self.rated else self

    def as_clicks(self, threshold: float) -> Interactions:
        """The events of at least `threshold`, as clicks."""
        kept = self.select(self.values >= threshold)
        return replace(
            kept,
            values=np.ones(len(kept), np.float32),
            kind="clicks",
            value_range=KINDS["clicks"].scale(self.value_range),
        )

    def as_chosen(self, kind: str, *, threshold: float) -> Interactions:
        """These interactions where their kind is chosen or "auto"; the ratings of at least
        `threshold` where clicks are chosen (Liang et al. 2018 take 4 stars).

        Raises SettingsError where ratings are chosen, but these are clicks."""
        if kind not in KINDS or kind == self.kind:
            return self
        if not self.rated:
            raise SettingsError(
                'data.kind = "ratings" needs ratings, but this data holds clicks',
                'Set data.kind = "auto".',
            )
        return self.as_clicks(threshold)

    def users_subset(self, users: npt.NDArray[np.integer]) -> Interactions:
        """The events of the given users, renumbered 0..len(users)-1 in the given order."""
        starts = self.user_ptr[users]
        lengths = np.diff(self.user_ptr)[users]
        ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.repeat(starts - ptr[:-1], lengths) + np.arange(ptr[-1])
        times = None if self.times is None else self.times[index]
        words = number_words(users) if self.user_words is None else self.user_words[users]
        return replace(
            self,
            user_ptr=ptr,
            items=self.items[index],
            values=self.values[index],
            times=times,
            user_words=words,
        )


@dataclass(frozen=True)
class ItemOrder:
    """Events grouped by item: `item_ptr` (m + 1,), `users` (n,) int32, and `positions` (n,) into
    the user-sorted columns."""

    item_ptr: Int64s
    users: Int32s
    positions: Int64s


def order_by_item(user_ptr: Int64s, items: Int32s, num_items: int) -> ItemOrder:
    """Events of consecutive users grouped by item, in linear time.

    Raises ValueError on bad pointers or ids."""
    if user_ptr[0] != 0 or user_ptr[-1] != len(items) or bool(np.any(np.diff(user_ptr) < 0)):
        raise ValueError(
            f"user_ptr must rise from 0 to {len(items)}, found "
            f"{int(user_ptr[0])}..{int(user_ptr[-1])}"
        )
    if len(items) and (int(items.min()) < 0 or int(items.max()) >= num_items):
        raise ValueError(
            f"item ids must be in [0, {num_items}), found {int(items.min())}..{int(items.max())}"
        )
    shape = len(user_ptr) - 1, num_items
    # a change of format is a stable counting sort
    by_item = sparse.csr_array((np.arange(len(items)), items, user_ptr), shape).tocsc()
    return ItemOrder(
        by_item.indptr.astype(np.int64), by_item.indices.astype(np.int32, copy=False), by_item.data
    )
