"""Shards: the users that one client of a run holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from fedrec.arrays import Int64s
from fedrec.errors import SettingsError


class Held(Protocol):
    """Private data of some users."""

    @property
    def num_users(self) -> int:
        """Whose data it is, numbered from 0."""

    def users_subset(self, users: Int64s, /) -> Self:
        """Data of these alone, in their order."""


Data = TypeVar("Data", bound=Held)


@dataclass(frozen=True)
class Shard(Generic[Data]):
    """What one client holds: consecutive users, the first of which has the number `first_user`
    among all."""

    name: str
    first_user: int
    events: Data

    @property
    def user_ids(self) -> tuple[str, ...]:
        """Users are named by their number among all: a split may have left out some that the data
        names."""
        return tuple(str(self.first_user + k) for k in range(self.events.num_users))


def shards(data: Data, clients: int) -> list[Shard[Data]]:
    """All users, divided as evenly as possible.

    Raises SettingsError where a client would have none."""
    if clients > data.num_users:
        raise SettingsError(
            f"{clients} clients cannot share {data.num_users} users", "Give fewer --clients."
        )
    parts = np.array_split(np.arange(data.num_users), clients)
    return [
        Shard(f"client-{number}", int(part[0]), data.users_subset(part))
        for number, part in enumerate(parts, start=1)
    ]
