"""Job of a runtime for news: one training with its private clicks, and the shards of its
clients."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrec.data.impressions import Impressions
from fedrec.errors import SettingsError
from fedrec.news.trained import Catalogue, Progress, TrainedNews
from fedrec.news.variant import promise, promised
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams
from fedrec.settings import Scenario


@dataclass(frozen=True)
class NewsJob:
    """One training: its scenario, what is public, the private clicks of all users, and a folder for
    what the runtime keeps."""

    scenario: Scenario
    catalogue: Catalogue
    train: Impressions
    folder: Path

    @property
    def run(self) -> str:
        """The run's id: the same scenario is the same run."""
        return f"{self.scenario.news.variant}-{self.scenario.digest()[:16]}"

    @property
    def noise(self) -> Streams | SystemStreams:
        """Where the aggregator's noise comes from."""
        return (
            Streams(self.scenario.seed)
            if self.scenario.privacy.noise == "seeded"
            else SystemStreams()
        )

    @property
    def limit(self) -> Guarantee:
        """What every party of a rehearsal allows: exactly this run, and anything where it only
        reproduces a paper."""
        guarantee = promised(self.scenario)
        epsilon = float("inf") if not promise(self.scenario).established else guarantee.epsilon
        return Guarantee(epsilon, guarantee.delta, guarantee.unit, guarantee.neighbours)


NewsRuntime = Callable[[NewsJob], Generator[Progress | TrainedNews, None, None]]
"""Carries a job from where its folder is; the last thing it yields is the trained model.

Closing it ends all parties."""


@dataclass(frozen=True)
class NewsShard:
    """What one client holds: consecutive users, named as the loopback names them, so that seeded
    noise is the same."""

    name: str
    first_user: int
    clicks: Impressions

    @property
    def user_ids(self) -> tuple[str, ...]:
        """Users are named by their number among all."""
        return tuple(str(self.first_user + k) for k in range(self.clicks.num_users))


def news_shards(train: Impressions, clients: int) -> list[NewsShard]:
    """All users, divided evenly. Raises SettingsError where a client would have none."""
    if clients > train.num_users:
        raise SettingsError(
            f"{clients} clients cannot share {train.num_users} users", "Give fewer --clients."
        )
    users = np.array_split(np.arange(train.num_users), clients)
    return [
        NewsShard(f"client-{k}", int(mine[0]), train.users_subset(mine))
        for k, mine in enumerate(users, start=1)
    ]
