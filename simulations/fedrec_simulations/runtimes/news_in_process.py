"""The runtime `flower` for news: real parties in one process, which meet over Flower's messages as
over a network (`in_process`)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from fedrec.federation.protocol import ReleaseEndpoint
from fedrec.federation.round_driver import Patience
from fedrec.news.trained import Progress, TrainedNews
from fedrec.news.variant import of
from fedrec.run.news_job import NewsJob, NewsRuntime, NewsShard, news_shards
from fedrec_client.click_ledger import ClickLedger
from fedrec_client.flower import Answering, client_app
from fedrec_client.ledger import ClientLedger
from fedrec_client.news import NewsParticipant, NewsTrust
from fedrec_client.participant import Participant
from fedrec_client.readers import LocalReaders
from fedrec_server.flower import FlowerBroadcast
from fedrec_server.gathering import Gathering
from fedrec_server.news import run_news
from fedrec_simulations.runtimes.in_process import (
    FIRST_NODE,
    SLOWEST_ROUND_S,
    Aggregated,
    aggregation,
)
from fedrec_simulations.runtimes.in_process_grid import InProcessGrid


@dataclass(frozen=True)
class NewsParties:
    """Clients, and for `central` an aggregator or three as one, as long as the context that made
    them."""

    aggregator: ReleaseEndpoint | None
    participants: tuple[Answering, ...]

    def grid(self) -> InProcessGrid:
        """One node for each client."""
        return InProcessGrid(
            {
                node: client_app(each)
                for node, each in enumerate(self.participants, start=FIRST_NODE)
            }
        )


@contextmanager
def news_parties(job: NewsJob, *, clients: int) -> Iterator[NewsParties]:
    """`clients` clients with their ledgers under `job.folder`, where they go on after an
    interruption."""
    with ExitStack() as stack:
        summed = (
            None
            if of(job.scenario).plan is None
            else aggregation(job, job.train.num_users, job.train.num_news, stack)
        )
        participants = tuple(
            _participant(job, shard, summed, stack) for shard in news_shards(job.train, clients)
        )
        yield NewsParties(summed and summed[0], participants)


def _participant(
    job: NewsJob, shard: NewsShard, summed: Aggregated | None, stack: ExitStack
) -> Answering:
    folder, users = job.folder / shard.name, readers(job, shard)
    if summed is not None:
        own = stack.enter_context(closing(ClientLedger(folder / "ledger.sqlite", limit=job.limit)))
        return Participant(shard.name, users, own, summed[1](shard.name), folder, keep_sent=True)
    clicks = stack.enter_context(closing(ClickLedger(folder / "clicks.sqlite", limit=job.limit)))
    trust = NewsTrust(True, frozenset(job.scenario.news.open_categories))
    seed = job.scenario.seed if job.scenario.privacy.noise == "seeded" else None
    return NewsParticipant(shard.name, users, clicks, folder, trust=trust, seed=seed)


def readers(job: NewsJob, shard: NewsShard) -> LocalReaders:
    """What a client has."""
    return LocalReaders(shard.clicks, job.catalogue.news, shard.user_ids, job.catalogue.vectors)


def flower(*, clients: int) -> NewsRuntime:
    """Carries a job by `clients` Flower nodes in this process."""

    def carry(job: NewsJob) -> Generator[Progress | TrainedNews, None, None]:
        gathering = Gathering(
            expected_users=job.train.num_users, min_clients=clients, timeout_s=0.0
        )
        with news_parties(job, clients=clients) as opened:
            broadcast = FlowerBroadcast(opened.grid(), SLOWEST_ROUND_S)
            patience = Patience(SLOWEST_ROUND_S, attempts=1)
            server = job.folder / "server"
            yield from run_news(
                job.scenario,
                job.catalogue,
                opened.aggregator,
                broadcast,
                server,
                gathering=gathering,
                patience=patience,
                run=job.run,
            )

    return carry
