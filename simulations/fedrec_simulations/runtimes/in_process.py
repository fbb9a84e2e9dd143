"""The runtime `flower`: real parties in one process, which meet at the same seam as over a network.

The server's loop, every client's ledger and checks, the aggregator's core and its release ledger
are those of a deployment. Rounds are Flower messages over `grid.InProcessGrid`; the aggregator's
endpoints are called directly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedrec.data.dataset import Catalogue
from fedrec.federation.protocol import ReleaseEndpoint, ReportEndpoint
from fedrec.federation.round_driver import Patience
from fedrec.federation.rounds import State
from fedrec.operations.certificates import PLACES
from fedrec.run.job import Carried, Job, Runtime, shards
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.peers import CoreAsPeer
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_client.answering import AnswerBounds
from fedrec_client.flower import client_app
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_client.three_way import ThreeWay
from fedrec_server.flower import FlowerBroadcast
from fedrec_server.gathering import Gathering
from fedrec_server.public import PublicData
from fedrec_server.rounds import run_rounds
from fedrec_simulations.runtimes.in_process_grid import InProcessGrid
from fedrec_simulations.runtimes.kept_rounds import kept_rounds

if TYPE_CHECKING:
    from fedrec.run.news_job import NewsJob

FIRST_NODE = 2
"""Flower's number 1 is the server."""

SLOWEST_ROUND_S = 3_600.0
"""Nobody is waited for here: a node answers while its message is delivered."""


def no_patience() -> Patience:
    """Everybody is asked once: its clock has passed the longest round whenever it is looked at
    again."""
    looks = itertools.count()
    return Patience(
        SLOWEST_ROUND_S, attempts=1, short_attempts=1, clock=lambda: next(looks) * SLOWEST_ROUND_S
    )


@dataclass(frozen=True)
class Parties:
    """An aggregator and its clients, as long as the context that made them."""

    aggregator: ReleaseEndpoint
    participants: tuple[Participant, ...]

    def grid(self) -> InProcessGrid:
        """One node for each client."""
        return InProcessGrid(
            {
                node: client_app(each)
                for node, each in enumerate(self.participants, start=FIRST_NODE)
            }
        )


def limits(users: int, items: int) -> Limits:
    """A rehearsal needs every user in every round: with fewer it would not give the loopback's
    bytes."""
    return Limits(
        min_cohort=users,
        max_users_per_sender=users,
        max_events_per_user=items + AnswerBounds().features,
        max_accumulator_bytes=2**33,
        max_shares_bytes=2**34,
        allow_not_established=True,
    )


@contextmanager
def parties(job: Job, catalogue: Catalogue, *, clients: int) -> Iterator[Parties]:
    """An aggregator and `clients` clients with their ledgers under `job.folder`, where they go on
    after an interruption."""
    with ExitStack() as stack:
        aggregator, endpoint_of = aggregation(job, job.data.num_users, job.data.num_items, stack)
        participants = list[Participant]()
        for shard in shards(job.data, clients):
            folder, users = (
                job.folder / shard.name,
                LocalUsers(shard.events, catalogue.item_ids, shard.user_ids),
            )
            own = stack.enter_context(
                closing(ClientLedger(folder / "ledger.sqlite", limit=job.limit))
            )
            participants.append(
                Participant(
                    shard.name,
                    users,
                    own,
                    endpoint_of(shard.name),
                    folder,
                    keep_sent=True,
                    allow_not_established=True,
                )
            )
        yield Parties(aggregator, tuple(participants))


Aggregated = tuple[ReleaseEndpoint, Callable[[str], ReportEndpoint | ThreeWay]]


def aggregation(job: Job | NewsJob, users: int, items: int, stack: ExitStack) -> Aggregated:
    """The aggregator, or three of them as one, for so many users and items; and the endpoint of
    each client by name.

    Three protect nobody from the one process that plays them.
    """
    bounds = limits(users, items)
    if job.scenario.privacy.aggregation == "three-party":
        return _three(job, bounds, stack)
    ledger = stack.enter_context(closing(ReleaseLedger(job.folder / "aggregator", limit=job.limit)))
    aggregator = Aggregator(ledger, bounds, noise=job.noise)
    return aggregator, aggregator.client_endpoint


def _three(job: Job | NewsJob, bounds: Limits, stack: ExitStack) -> Aggregated:
    names, cores = [name.encode() for name in PLACES], list[ThreePartyAggregator]()

    def sleep(seconds: float) -> None:
        for core in cores:
            core.tick()

    for place, name in enumerate(PLACES):
        ledger = stack.enter_context(
            closing(ReleaseLedger(job.folder / f"aggregator-{name}", limit=job.limit))
        )
        peers = {i: CoreAsPeer(cores, i, caller=place) for i in range(3) if i != place}
        cores.append(
            ThreePartyAggregator(
                ledger, bounds, noise=job.noise, place=place, names=names, peers=peers, sleep=sleep
            )
        )
    return ThreeEndpoints(cores), lambda client: ThreeWay(
        [core.share_endpoint(client) for core in cores], names, sleep=sleep
    )


def flower(catalogue: Catalogue, *, clients: int) -> Runtime:
    """Carries a job by `clients` Flower nodes in this process."""

    def carry(job: Job, state: State, released: Sequence[str]) -> Generator[Carried, None, None]:
        server = job.folder / "server"
        # what an interrupted run's server kept last
        yield from kept_rounds(server, after=int(state["round"]))
        public = PublicData(
            catalogue.item_ids, job.facts.kind, job.facts.value_range, job.facts.features
        )
        gathering = Gathering(expected_users=job.data.num_users, min_clients=clients, timeout_s=0.0)
        with parties(job, catalogue, clients=clients) as opened:
            broadcast = FlowerBroadcast(opened.grid(), SLOWEST_ROUND_S)
            rounds = run_rounds(
                job.scenario,
                public,
                opened.aggregator,
                broadcast,
                server,
                gathering=gathering,
                patience=no_patience(),
                run=job.run,
            )
            for progress in rounds:
                yield from kept_rounds(server, after=progress.line.round)

    return carry
