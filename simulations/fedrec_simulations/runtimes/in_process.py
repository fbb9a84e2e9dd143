"""The runtime `flower`: real parties in one process, which meet at the same seam as over a network.

The server's loop, every client's ledger and checks, the aggregator's core and its release ledger
are those of a deployment. Rounds are Flower messages over `grid.InProcessGrid`; the aggregator's
endpoints are called directly.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any

from fedrec.data.dataset import Catalogue
from fedrec.run.job import AnyJob, Job, Runtime
from fedrec_client.flower import client_app
from fedrec_client.requests import Answering, Requests
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.flower import GridPost
from fedrec_server.gathering import Gathering
from fedrec_simulations.runtimes.in_process_grid import InProcessGrid
from fedrec_simulations.runtimes.parties import SLOWEST_ROUND_S, Parties, played
from fedrec_simulations.runtimes.ratings import RatingsParties

FIRST_NODE = 2
"""Flower's number 1 is the server."""


def grid(participants: Sequence[Answering]) -> InProcessGrid:
    """One node for each client."""
    return InProcessGrid(
        {
            node: client_app(Requests(each))
            for node, each in enumerate(participants, start=FIRST_NODE)
        }
    )


def parties_of(job: AnyJob, catalogue: Catalogue | None, clients: int) -> Parties:
    """Parties of a job of ratings and clicks, whose catalogue this is, or of one of news."""
    if isinstance(job, Job) and catalogue is not None:
        return RatingsParties(job, catalogue, clients)
    from fedrec.run.news_run import NewsJob
    from fedrec_simulations.runtimes.news import NewsParties  # brings torch

    assert isinstance(job, NewsJob)
    return NewsParties(job, clients)


def flower(catalogue: Catalogue | None, *, clients: int) -> Runtime[AnyJob, Any]:
    """Carries a job by `clients` Flower nodes in this process."""

    def carry(job: AnyJob) -> Generator[Any, None, None]:
        parties = parties_of(job, catalogue, clients)
        users = parties.holdings.num_users
        gathering = Gathering(expected_users=users, min_clients=clients, timeout_s=0.0)
        with ExitStack() as stack:
            endpoint, participants = played(parties, stack)
            broadcast = ClientBroadcast(GridPost(grid(participants)), SLOWEST_ROUND_S)
            yield from parties.serve(endpoint, broadcast, gathering)

    return carry
