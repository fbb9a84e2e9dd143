"""News and what people clicked among what they were shown. `News` is public by type, `Impressions`
is private by type.

An impression is one list of candidates shown to one user, of which some were clicked; a user's
history is what it had clicked before (MIND, Wu et al. 2020). The same types carry any catalogue
with texts, such as films.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Int32s, Int64s
from fedrec.data.keyed_hash import Words, first_words, hashed, number_words


@dataclass(frozen=True)
class News:
    """m public items: one entry each in every column.

    `entities` are identifiers of what the title and abstract name."""

    ids: tuple[str, ...]
    titles: tuple[str, ...]
    abstracts: tuple[str, ...]
    categories: tuple[str, ...]
    subcategories: tuple[str, ...]
    entities: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in vars(self).items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"all columns must have one entry per item, found {lengths}")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Impressions:
    """n impressions of `num_users` users on `num_news` items.

    user k's history, oldest click first: `history[history_ptr[k]:history_ptr[k + 1]]`, -1 for an
    item that has no number here. users: (n,) int32, whose impression it is.
    impression i showed `candidates[candidate_ptr[i]:candidate_ptr[i + 1]]`; clicked: bool, aligned
    with candidates. No click is both in a user's history and in one of its impressions. user_words:
    (num_users,) uint64, the hash of each external id (`keyed_hash.id_words`), by which users are
    divided; None where the ids are the numbers.
    """

    num_news: int
    history_ptr: Int64s
    history: Int32s
    users: Int32s
    candidate_ptr: Int64s
    candidates: Int32s
    clicked: npt.NDArray[np.bool_]
    user_words: Words | None = None

    def __len__(self) -> int:
        return len(self.users)

    @property
    def num_users(self) -> int:
        """Users, with or without impressions."""
        return len(self.history_ptr) - 1

    def select(self, impressions: npt.NDArray[np.integer]) -> Impressions:
        """The given impressions, in the given order, of the same users."""
        starts = self.candidate_ptr[impressions]
        lengths = self.candidate_ptr[impressions + 1] - starts
        ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.repeat(starts - ptr[:-1], lengths) + np.arange(ptr[-1])
        shown = self.candidates[index]
        clicked = self.clicked[index]
        return replace(
            self,
            users=self.users[impressions],
            candidate_ptr=ptr,
            candidates=shown,
            clicked=clicked,
        )

    def users_subset(self, users: npt.NDArray[np.integer]) -> Impressions:
        """The impressions and histories of the given users alone, renumbered 0..len(users)-1 in the
        given order."""
        starts = self.history_ptr[users]
        lengths = np.diff(self.history_ptr)[users]
        ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        history = self.history[np.repeat(starts - ptr[:-1], lengths) + np.arange(ptr[-1])]
        place = np.full(self.num_users, -1, np.int32)
        place[users] = np.arange(len(users))
        kept = self.select(np.flatnonzero(place[self.users] >= 0))
        words = number_words(users) if self.user_words is None else self.user_words[users]
        return replace(
            kept, history_ptr=ptr, history=history, users=place[kept.users], user_words=words
        )

    def user_draws(self, key: bytes) -> Words:
        """(num_users,) uniform 64-bit draws, one for each user: functions of the key and the user's
        id alone."""
        return hashed(
            key, first_words(self.num_users) if self.user_words is None else self.user_words
        )

    def by_user(self) -> Iterator[tuple[int, Int64s, Impressions]]:
        """Each user with impressions, which they are, and these alone."""
        order = np.argsort(self.users, kind="stable")
        users, starts = np.unique(self.users[order], return_index=True)
        stops = [*starts[1:], len(order)]
        for user, start, stop in zip(
            users.tolist(), starts, stops, strict=False
        ):  # nobody: no start
            yield user, order[start:stop], self.select(order[start:stop])

    def last_clicks(self, length: int) -> Int32s:
        """(num_users, length) the latest clicks of each history, oldest first, -1 in front where
        there are fewer."""
        table = np.full((self.num_users, length), -1, np.int32)
        for k in range(self.num_users):
            mine = self.history[self.history_ptr[k] : self.history_ptr[k + 1]][-length:]
            table[k, length - len(mine) :] = mine
        return table
