"""All parties of a deployment as processes of this machine, which train as often as they are asked.

They are what `fedrec simulate --runtime processes` starts. A party that dies is started again at
the same address, as a supervisor would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.cli.disclosure.aggregator import aggregator as inspect_aggregator
from fedrec.cli.disclosure.client import client as inspect_client
from fedrec.cli.supervisor import Supervisor
from fedrec.errors import RunError
from fedrec_server.runs import Runs, TrainingRun
from fedrec_server.schedule import ask_standing
from fedrec_simulations.runtimes import processes
from fedrec_simulations.runtimes.deployment_files import PartyFiles
from fedrec_simulations.runtimes.ratings import kept_rounds

SERVER = "server"
_LONG_S = 600.0
"""For what a busy machine makes slow; a guard against waiting for ever."""


@dataclass
class Deployment:
    """An aggregator or three, a server and clients, in the folders of `files`."""

    files: PartyFiles
    company: Supervisor

    @property
    def server(self) -> Path:
        """The server's state folder."""
        return self.files.state(SERVER)

    @property
    def runs(self) -> Sequence[TrainingRun]:
        """All trainings, oldest first."""
        return Runs(self.server).entries

    def start(self) -> None:
        """Start all; the first training begins. The server stays up after it."""
        processes.start(self.files, self.company, server=["--every", "3650d"])

    def train_again(self, files: PartyFiles) -> None:
        """Ask the server for another training, with what the sites hold by `files`; returns when it
        has begun."""
        before = len(self.runs)
        self.files = files
        files.write_shards()
        self.wait(self._asked, "server that stands")
        self.wait(lambda: len(self.runs) > before, "further training")

    def _asked(self) -> bool:
        with suppress(RunError):  # it is just being started
            return ask_standing(self.server) > 0
        return False

    def rounds(self) -> Iterator[int]:
        """The number of every round of the newest training, from 0, when the server has kept it,
        until the training has finished. Raises RunError where a party gives up."""
        number = 0
        while True:
            # first: what is kept by then is everything
            finished = self.runs and self.runs[-1].finished_s
            for carried in kept_rounds(self.server, after=number):
                number = carried.round + 1
                yield carried.round
            if finished:
                return
            self.company.look()
            self.company.rest()

    def lines(self, training: int = -1) -> list[dict[str, Any]]:
        """What the server keeps of each round of a training, the newest unless another is named."""
        path = self.folder(training) / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def folder(self, training: int = -1) -> Path:
        """Where the server keeps a training."""
        return self.server / "runs" / self.runs[training].run

    def spent(self) -> dict[str, Any]:
        """What every party's ledger says that training has spent, by the party's name."""
        read = dict.fromkeys(self.files.aggregators, inspect_aggregator)
        read |= {shard.name: inspect_client for shard in self.files.shards}
        return {
            name: ledger(self.files.state(name), None)["spent"] for name, ledger in read.items()
        }

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds. Raises RunError where that takes too long or a party gives up."""
        self.company.wait_for(lambda: condition() or None, what=what, timeout_s=_LONG_S)
