"""Parties of a training of news: a server, clients and, for `central`, an aggregator.

What real processes trained is what their server kept: training is gone through once more here from
the server's last step, over clients that nobody can ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from fedrec.arrays import Int64s
from fedrec.data.impressions import Impressions
from fedrec.errors import RunError
from fedrec.federation.messages import Question
from fedrec.federation.protocol import ReleaseEndpoint
from fedrec.federation.round_driver import Patience
from fedrec.news.checkpoints import Kept
from fedrec.news.rounds import Course, FedAdam
from fedrec.news.trained import Progress, TrainedNews
from fedrec.news.variant import of, train_news
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan
from fedrec.privacy.click_accounting import TrainingPlan
from fedrec.run.news_run import NewsJob
from fedrec.run.shards import Shard, shards
from fedrec.storage import read_json
from fedrec_client.click_ledger import ClickLedger
from fedrec_client.ledger import ClientLedger
from fedrec_client.news import NewsParticipant, NewsTrust
from fedrec_client.participant import Participant
from fedrec_client.readers import LocalReaders, write_news_shard
from fedrec_client.requests import Answering
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.gathering import Gathering
from fedrec_server.news import check, run_news
from fedrec_server.public_news import write_public_news
from fedrec_server.run_settings import RunSettings
from fedrec_server.runs import run_folder
from fedrec_simulations.runtimes.deployment_files import SLOWEST_ROUND_S, Aggregated, Holdings


@dataclass(frozen=True)
class NewsParties:
    """See `parties.Parties`."""

    job: NewsJob
    clients: int

    @property
    def _seed(self) -> int | None:
        """Seed of the devices' noise, where it is seeded."""
        return self.job.scenario.seed if self.job.scenario.privacy.noise == "seeded" else None

    @cached_property
    def holdings(self) -> Holdings:
        """See `Parties`."""
        job = self.job
        aggregated = of(self.job.scenario).plan is not None
        own = aggregated or self._seed is None
        return Holdings(
            shards(job.train, self.clients),
            job.train.num_users,
            job.train.num_news,
            ("news", "news-shard"),
            lambda folder: write_public_news(folder, job.catalogue),
            lambda path, shard: write_news_shard(path, self._readers(shard)),
            aggregated=aggregated,
            client={} if own else {"rehearsal_seed": self._seed},
            privacy={
                "unit": job.limit.unit,
                "open_categories": list(job.scenario.news.open_categories),
            },
        )

    def _readers(self, shard: Shard[Impressions]) -> LocalReaders:
        public = self.job.catalogue
        return LocalReaders(shard.events, public.news, shard.user_ids, public.vectors)

    def check(self) -> None:
        """See `Parties`."""
        check(self.job.scenario, self.job)

    def participant(
        self, shard: Shard[Impressions], aggregated: Aggregated | None, stack: ExitStack
    ) -> Answering:
        """See `Parties`."""
        job = self.job
        folder = self.job.folder / shard.name
        users = self._readers(shard)
        if aggregated is not None:
            ledger = ClientLedger(folder / "ledger.sqlite", limit=job.limit)
            own = stack.enter_context(closing(ledger))
            endpoint = aggregated[1](shard.name)
            return Participant(shard.name, users, own, endpoint, folder, keep_sent=True)
        clicks = ClickLedger(folder / "clicks.sqlite", limit=job.limit)
        stack.enter_context(closing(clicks))
        trust = NewsTrust(True, frozenset(job.scenario.news.open_categories))
        return NewsParticipant(shard.name, users, clicks, folder, trust=trust, seed=self._seed)

    def serve(
        self, endpoint: ReleaseEndpoint | None, clients: ClientBroadcast, gathering: Gathering
    ) -> Iterator[Progress | TrainedNews]:
        """See `Parties`."""
        job = self.job
        return run_news(
            job.scenario,
            job.catalogue,
            endpoint,
            clients,
            job.folder / "server",
            RunSettings(gathering, Patience(SLOWEST_ROUND_S, attempts=1), run=job.run),
        )

    def kept(self, server: Path) -> Callable[[], Iterator[Progress]]:
        """See `Parties`."""
        last = 0

        def told() -> Iterator[Progress]:
            nonlocal last
            path = run_folder(server) / "progress.json"
            if path.exists() and (latest := Progress(**read_json(path))).step != last:
                last = latest.step
                yield latest

        return told

    def finished(self, server: Path) -> Iterator[TrainedNews]:
        """See `Parties`. Raises RunError where the training is not finished."""
        *_, trained = train_news(
            self.job.scenario,
            self.job.catalogue,
            Finished(self.job.train.num_users),
            kept=Kept(run_folder(server)),
        )
        assert isinstance(trained, TrainedNews)
        yield trained


@dataclass(frozen=True)
class Finished:
    """The clients of a training that is over: everything was asked."""

    num_users: int

    def reports(self, topics: TopicTable, plan: TrainingPlan) -> NoReturn:
        """See `NewsClients`."""
        raise _unfinished()

    def step(self, course: Course, users: Int64s, rule: FedAdam) -> NoReturn:
        """See `NewsClients`."""
        raise _unfinished()

    def link(self, plan: Plan, released: Sequence[str]) -> Finished:
        """See `NewsClients`."""
        return self

    def answer(self, question: Question) -> NoReturn:
        """See `federation.messages.Link`."""
        raise _unfinished()

    def data(self) -> Impressions:
        """See `NewsClients`."""
        raise _unfinished()


def _unfinished() -> RunError:
    return RunError(
        "the server ended well, but what it kept is not a finished training",
        "Run it again with --resume.",
    )
