"""The runtime `flower` for news: real parties in one process, which meet over Flower's messages as over a network (`in_process`)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from fedrec.federation.round_driver import Patience
from fedrec.news.trained import Progress, TrainedNews
from fedrec.news.variant import of
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.click_ledger import ClickSpending
from fedrec_client.flower import Answering, client_app
from fedrec_client.ledger import ClientLedger
from fedrec_client.news import NewsParticipant, NewsTrust
from fedrec_client.participant import Participant
from fedrec_client.readers import LocalReaders
from fedrec_server.flower import FlowerBroadcast
from fedrec_server.gathering import Gathering
from fedrec_server.news import run_news
from fedrec_simulations.runtimes.in_process import FIRST_NODE, SLOWEST_ROUND_S, limits
from fedrec_simulations.runtimes.in_process_grid import InProcessGrid
from fedrec_simulations.runtimes.news_job import NewsJob, NewsRuntime, NewsShard, news_shards


@dataclass(frozen=True)
class NewsParties:
    """Clients, and for `central` an aggregator, as long as the context that made them."""

    aggregator: Aggregator | None
    participants: tuple[Answering, ...]

    def grid(self) -> InProcessGrid:
        """One node for each client."""
        return InProcessGrid({node: client_app(each) for node, each in enumerate(self.participants, start=FIRST_NODE)})


@contextmanager
def news_parties(job: NewsJob, *, clients: int) -> Iterator[NewsParties]:
    """`clients` clients with their ledgers under `job.folder`, where they go on after an interruption."""
    with ExitStack() as stack:
        shards, aggregator = news_shards(job.train, clients), None
        if of(job.scenario).plan is not None:
            ledger = stack.enter_context(closing(ReleaseLedger(job.folder / "aggregator", limit=job.limit)))
            aggregator = Aggregator(ledger, limits(job.train.num_users, job.train.num_news), noise=job.noise)
        yield NewsParties(aggregator, tuple(_participant(job, shard, aggregator, stack) for shard in shards))


def _participant(job: NewsJob, shard: NewsShard, aggregator: Aggregator | None, stack: ExitStack) -> Answering:
    folder, users = job.folder / shard.name, readers(job, shard)
    if aggregator is not None:
        own = stack.enter_context(closing(ClientLedger(folder / "ledger.sqlite", limit=job.limit)))
        return Participant(shard.name, users, own, aggregator.client_desk(shard.name), folder, keep_sent=True)
    clicks = stack.enter_context(closing(ClickSpending(folder / "clicks.sqlite", limit=job.limit)))
    trust = NewsTrust(True, frozenset(job.scenario.news.open_categories))
    seed = job.scenario.seed if job.scenario.privacy.noise == "seeded" else None
    return NewsParticipant(shard.name, users, clicks, folder, trust=trust, seed=seed)


def readers(job: NewsJob, shard: NewsShard) -> LocalReaders:
    """What a client has."""
    return LocalReaders(shard.clicks, job.catalogue.news, shard.user_ids, job.catalogue.vectors)


def flower(*, clients: int) -> NewsRuntime:
    """Carries a job by `clients` Flower nodes in this process."""

    def carry(job: NewsJob) -> Generator[Progress | TrainedNews, None, None]:
        gathering = Gathering(expected_users=job.train.num_users, min_clients=clients, timeout_s=0.0)
        with news_parties(job, clients=clients) as cast:
            broadcast = FlowerBroadcast(cast.grid(), SLOWEST_ROUND_S)
            patience = Patience(SLOWEST_ROUND_S, attempts=1)
            server = job.folder / "server"
            yield from run_news(
                job.scenario, job.catalogue, cast.aggregator, broadcast, server, gathering=gathering, patience=patience, run=job.run
            )

    return carry
