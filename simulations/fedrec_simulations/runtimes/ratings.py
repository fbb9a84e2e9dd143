"""Parties of a training on ratings or clicks, and the rounds that their server has kept."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedrec.data.interactions import Catalogue, Interactions
from fedrec.federation.protocol import ReleaseEndpoint
from fedrec.federation.round_driver import Patience
from fedrec.public_data import PublicData, write_public
from fedrec.run.job import Carried, Job
from fedrec.run.shards import Shard, shards
from fedrec.storage import read_arrays, read_json, release_file
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import Participant
from fedrec_client.store import LocalUsers, write_shard
from fedrec_server.broadcast import ClientBroadcast
from fedrec_server.gathering import Gathering
from fedrec_server.rounds import check, run_rounds
from fedrec_server.run_settings import RunSettings
from fedrec_server.runs import run_folder
from fedrec_simulations.runtimes.deployment_files import SLOWEST_ROUND_S, Aggregated, Holdings


@dataclass(frozen=True)
class RatingsParties:
    """See `parties.Parties`."""

    job: Job
    catalogue: Catalogue
    clients: int

    @property
    def public(self) -> PublicData:
        """What everybody knows."""
        facts = self.job.facts
        of = Catalogue(self.catalogue.item_ids, None, ())  # titles decide nothing here
        return PublicData.of(of, facts)

    @cached_property
    def holdings(self) -> Holdings:
        """See `Parties`."""
        job = self.job
        ids = self.catalogue.item_ids
        return Holdings(
            shards(job.data, self.clients),
            job.data.num_users,
            job.data.num_items,
            ("public", "shard"),
            lambda folder: write_public(folder, self.catalogue, job.facts),
            lambda path, shard: write_shard(path, shard.events, ids, shard.user_ids),
        )

    def check(self) -> None:
        """See `Parties`."""
        check(self.job.scenario, self.public)

    def participant(
        self, shard: Shard[Interactions], aggregated: Aggregated | None, stack: ExitStack
    ) -> Participant:
        """See `Parties`."""
        assert aggregated is not None
        folder = self.job.folder / shard.name
        ledger = ClientLedger(folder / "ledger.sqlite", limit=self.job.limit)
        return Participant(
            shard.name,
            LocalUsers(shard.events, self.catalogue.item_ids, shard.user_ids),
            stack.enter_context(closing(ledger)),
            aggregated[1](shard.name),
            folder,
            keep_sent=True,
            allow_not_established=True,
        )

    def serve(
        self, endpoint: ReleaseEndpoint | None, clients: ClientBroadcast, gathering: Gathering
    ) -> Iterator[Carried]:
        """See `Parties`."""
        assert endpoint is not None
        server = self.job.folder / "server"
        # what an interrupted run's server kept last
        yield from kept_rounds(server, after=int(self.job.begun["round"]))
        rounds = run_rounds(
            self.job.scenario,
            self.public,
            endpoint,
            clients,
            server,
            RunSettings(gathering, no_patience(), run=self.job.run),
        )
        for progress in rounds:
            yield from kept_rounds(server, after=progress.line.round)

    def kept(self, server: Path) -> Callable[[], Iterator[Carried]]:
        """See `Parties`."""
        after = int(self.job.begun["round"])

        def told() -> Iterator[Carried]:
            nonlocal after
            for carried in kept_rounds(server, after=after):
                after = carried.round + 1
                yield carried

        return told

    def finished(self, server: Path) -> Iterator[Carried]:
        """See `Parties`: every round was told."""
        return iter(())


def no_patience() -> Patience:
    """Everybody is asked once: its clock has passed the longest round whenever it is looked at
    again."""
    looks = itertools.count()
    return Patience(
        SLOWEST_ROUND_S, attempts=1, short_attempts=1, clock=lambda: next(looks) * SLOWEST_ROUND_S
    )


def kept_rounds(server: Path, *, after: int) -> Iterator[Carried]:
    """The rounds that a server's newest training holds from number `after` on, as far as their
    checkpoint is there too."""
    parties = server.parent
    server = run_folder(server)
    lines = server / "rounds.jsonl"
    for text in lines.read_text().splitlines()[after:] if lines.exists() else ():
        line = json.loads(text)
        path = server / "checkpoints" / f"round-{line['round'] + 1:03d}.safetensors"
        if not path.exists():
            return
        names = tuple(line["releases"])
        # each client keeps its own count, and the server hears of none
        notes = parties.glob(f"client-*/sent/*/round-{line['round']:03d}.json")
        up = sum(read_json(note)["bytes_sent"] for note in notes)
        released = release_file(server, line["round"])
        yield Carried(
            line["round"],
            line["step"],
            names,
            up,
            line["bytes_down"],
            line["seconds"],
            read_arrays(path),
            released.read_bytes(),
            line["reported"],
        )
