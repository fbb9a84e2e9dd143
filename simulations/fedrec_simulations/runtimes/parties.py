"""Parties of a rehearsal: what ratings, clicks and news share of it, and what each of them says for
itself (`ratings.RatingsParties`, `news.NewsParties`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

from fedrec.federation.protocol import ReleaseEndpoint, ReportEndpoint
from fedrec.operations.certificates import PLACES
from fedrec.run.job import AnyJob, Shard
from fedrec.sharing.three_endpoints import ThreeEndpoints
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.peers import CoreAsPeer
from fedrec_aggregator.three_party import ThreePartyAggregator
from fedrec_client.requests import Answering
from fedrec_client.three_way import ThreeWay
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.gathering import Gathering
from fedrec_simulations.runtimes.deployment_files import Holdings, limits

SLOWEST_ROUND_S = 3_600.0
"""Nobody is waited for here: a node answers while its message is delivered."""

Aggregated = tuple[ReleaseEndpoint, Callable[[str], ReportEndpoint | ThreeWay]]


class Parties(Protocol):
    """Real parties of one job, and what they keep; steps are what the job's runtime yields."""

    @property
    def job(self) -> AnyJob:
        """What they train."""

    @property
    def holdings(self) -> Holdings:
        """Who holds what."""

    def check(self) -> None:
        """Raises SettingsError on a scenario that cannot run between real parties."""

    def participant(
        self, shard: Shard[Any], aggregated: Aggregated | None, stack: ExitStack
    ) -> Answering:
        """A client with its ledger under the job's folder, where it goes on after an
        interruption."""

    def serve(
        self, endpoint: ReleaseEndpoint | None, clients: ClientBroadcast, gathering: Gathering
    ) -> Iterator[Any]:
        """The server's rounds in this process, from what the folder holds on."""

    def kept(self, server: Path) -> Callable[[], Iterator[Any]]:
        """What a server's folder tells of steps, each time those that were not told before."""

    def finished(self, server: Path) -> Iterator[Any]:
        """What is still to be told when the server has finished."""


def played(
    parties: Parties, stack: ExitStack
) -> tuple[ReleaseEndpoint | None, Sequence[Answering]]:
    """All parties in this process, as long as `stack`: the aggregator, where one is needed, and the
    clients."""
    held = parties.holdings
    aggregated = (
        aggregation(parties.job, held.num_users, held.num_items, stack) if held.aggregated else None
    )
    return aggregated and aggregated[0], [
        parties.participant(shard, aggregated, stack) for shard in held.shards
    ]


def aggregation(job: AnyJob, users: int, items: int, stack: ExitStack) -> Aggregated:
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


def _three(job: AnyJob, bounds: Limits, stack: ExitStack) -> Aggregated:
    names = [name.encode() for name in PLACES]
    cores = list[ThreePartyAggregator]()

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
