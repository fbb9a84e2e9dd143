"""Job of a runtime for news: one training with its private clicks, and the runtime that needs no
other process."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from fedrec.data.impressions import Impressions
from fedrec.news.checkpoints import Kept
from fedrec.news.trained import Catalogue, Progress, TrainedNews
from fedrec.news.variant import promise, promised, train_news
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams, noise_from
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
        return noise_from(self.scenario.privacy.noise, self.scenario.seed)

    @property
    def limit(self) -> Guarantee:
        """What every party of a rehearsal allows: exactly this run, and anything where it only
        reproduces a paper."""
        guarantee = promised(self.scenario)
        epsilon = float("inf") if not promise(self.scenario).established else guarantee.epsilon
        return Guarantee(epsilon, guarantee.delta, guarantee.unit, guarantee.neighbours)


def loopback(job: NewsJob) -> Generator[Progress | TrainedNews, None, None]:
    """The runtime `loopback`: everybody in this process."""
    from fedrec.news.local_clients import LocalClients  # brings torch

    kept = Kept(job.folder)
    clients = LocalClients(job.scenario, job.catalogue, job.train, kept)
    yield from train_news(job.scenario, job.catalogue, clients, kept=kept)
