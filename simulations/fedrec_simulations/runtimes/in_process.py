"""The runtime `parties`: real parties in one process, which meet at the same seam as over a
network.

The server's loop, every client's ledger and checks, the aggregator's core and its release ledger
are those of a deployment. Rounds are the messages of a deployment, without network or Flower; the
aggregator's endpoints are called directly.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from fedrec.data.interactions import Catalogue
from fedrec.federation.protocol import Answer
from fedrec.federation.round_messages import RoundMessage
from fedrec.run.job import AnyJob, Job, Runtime
from fedrec_client.requests import Requests
from fedrec_server.broadcast import ClientBroadcast, Received
from fedrec_server.cohorts import UNREACHABLE
from fedrec_server.gathering import Gathering
from fedrec_simulations.runtimes.deployment_files import SLOWEST_ROUND_S, Parties, played
from fedrec_simulations.runtimes.ratings import RatingsParties


@dataclass
class PostHere:
    """A `broadcast.Post` to clients in this process, called one after the other."""

    clients: Sequence[Requests]
    again_s: float = inf
    owned: bool = True
    _replies: dict[str, Received] = field(default_factory=dict, init=False)
    _sent: int = field(default=0, init=False)

    def nodes(self) -> list[str]:
        """Implements `Post.nodes`."""
        return [str(number) for number in range(len(self.clients))]

    def owner(self, node: str) -> str:
        """Implements `Post.owner`."""
        return self.clients[int(node)].participant.name

    def send(self, nodes: Sequence[str], message: RoundMessage, ttl_s: float) -> list[str]:
        """Implements `Post.send`."""
        names = list[str]()
        for node in nodes:
            self._sent += 1
            names.append(str(self._sent))
            # its words are its own: no client sees what another did to them
            mine = replace(message, said=dict(message.said), arrays=dict(message.arrays))
            try:
                self._replies[names[-1]] = self.clients[int(node)].answer(mine)
            except Exception as failure:  # whatever a client raises is its failure, not the round's
                cause = f"it raised {type(failure).__name__}"
                self._replies[names[-1]] = Answer("", 0, refusal=UNREACHABLE, cause=cause)
        return names

    def replies(self, names: Collection[str]) -> Iterator[tuple[str, Received]]:
        """Implements `Post.replies`."""
        for name in [name for name in names if name in self._replies]:
            yield name, self._replies.pop(name)


def parties_of(job: AnyJob, catalogue: Catalogue | None, clients: int) -> Parties:
    """Parties of a job of ratings and clicks, whose catalogue this is, or of one of news."""
    if isinstance(job, Job) and catalogue is not None:
        return RatingsParties(job, catalogue, clients)
    from fedrec.run.news_run import NewsJob
    from fedrec_simulations.runtimes.news import NewsParties  # brings torch

    assert isinstance(job, NewsJob)
    return NewsParties(job, clients)


def parties(catalogue: Catalogue | None, *, clients: int) -> Runtime[AnyJob, Any]:
    """Carries a job by `clients` participants in this process."""

    def carry(job: AnyJob) -> Generator[Any, None, None]:
        parties = parties_of(job, catalogue, clients)
        users = parties.holdings.num_users
        gathering = Gathering(expected_users=users, min_clients=clients, timeout_s=0.0)
        with ExitStack() as stack:
            endpoint, participants = played(parties, stack)
            post = PostHere([Requests(participant) for participant in participants])
            yield from parties.serve(endpoint, ClientBroadcast(post, SLOWEST_ROUND_S), gathering)

    return carry
