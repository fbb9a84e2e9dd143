"""The runtime `flower`: real parties in one process, which meet at the same seam as over a network.

The server's loop, every client's ledger and checks, the aggregator's core and its release ledger are those of a
deployment. Rounds are Flower messages over `grid.InProcessGrid`; the aggregator's desks are called directly.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from fedrec.data.dataset import Catalogue
from fedrec.federation.round_driver import Patience
from fedrec.federation.rounds import State
from fedrec_aggregator.core import Aggregator, Limits
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_client.answering import Bounds
from fedrec_client.flower import client_app
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers
from fedrec_server.flower import FlowerBroadcast
from fedrec_server.gathering import Gathering
from fedrec_server.public import PublicData
from fedrec_server.rounds import run_rounds
from fedrec_simulations.grid import InProcessGrid
from fedrec_simulations.runtimes import Carried, Job, Runtime, kept_rounds, shards

FIRST_NODE = 2
"""Flower's number 1 is the server."""

SLOWEST_ROUND_S = 3_600.0
"""Nobody is waited for here: a node answers while its message is delivered."""


def no_patience() -> Patience:
    """Everybody is asked once: its clock has passed the longest round whenever it is looked at again."""
    looks = itertools.count()
    return Patience(SLOWEST_ROUND_S, attempts=1, short_attempts=1, clock=lambda: next(looks) * SLOWEST_ROUND_S)


@dataclass(frozen=True)
class Parties:
    """An aggregator and its clients, as long as the context that made them."""

    aggregator: Aggregator
    participants: tuple[Participant, ...]

    def grid(self) -> InProcessGrid:
        """One node for each client."""
        return InProcessGrid({node: client_app(each) for node, each in enumerate(self.participants, start=FIRST_NODE)})


def limits(users: int, items: int) -> Limits:
    """A rehearsal needs every user in every round: with fewer it would not give the loopback's bytes."""
    return Limits(
        min_cohort=users,
        max_users_per_sender=users,
        max_events_per_user=items + Bounds().features,
        max_accumulator_bytes=2**33,
        allow_not_established=True,
    )


@contextmanager
def parties(job: Job, catalogue: Catalogue, *, clients: int) -> Iterator[Parties]:
    """An aggregator and `clients` clients with their ledgers under `job.folder`, where they go on after an interruption."""
    with ExitStack() as stack:
        ledger = stack.enter_context(closing(ReleaseLedger(job.folder / "aggregator", limit=job.limit)))
        aggregator = Aggregator(ledger, limits(job.data.num_users, job.data.num_items), noise=job.noise)
        participants = list[Participant]()
        for shard in shards(job.data, clients):
            folder, users = job.folder / shard.name, LocalUsers(shard.events, catalogue.item_ids, shard.user_ids)
            own = stack.enter_context(closing(ClientLedger(folder / "ledger.sqlite", limit=job.limit)))
            desk = aggregator.client_desk(shard.name)
            participants.append(Participant(shard.name, users, own, desk, folder, keep_sent=True, allow_not_established=True))
        yield Parties(aggregator, tuple(participants))


def flower(catalogue: Catalogue, *, clients: int) -> Runtime:
    """Carries a job by `clients` Flower nodes in this process."""

    def carry(job: Job, state: State, released: Sequence[str]) -> Generator[Carried, None, None]:
        server = job.folder / "server"
        yield from kept_rounds(server, after=int(state["round"]))  # what an interrupted run's server kept last
        public = PublicData(catalogue.item_ids, job.facts.kind, job.facts.value_range, job.facts.features)
        gathering = Gathering(expected_users=job.data.num_users, min_clients=clients, timeout_s=0.0)
        with parties(job, catalogue, clients=clients) as cast:
            broadcast = FlowerBroadcast(cast.grid(), SLOWEST_ROUND_S)
            rounds = run_rounds(
                job.scenario,
                public,
                cast.aggregator,
                broadcast,
                server,
                gathering=gathering,
                patience=no_patience(),
                run=job.run,
            )
            for progress in rounds:
                yield from kept_rounds(server, after=progress.line.round)

    return carry
