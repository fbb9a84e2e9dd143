"""Rounds of trainings over Flower's runs, of ratings or news: as many runs as it takes, since a
SuperLink may lose one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from flwr.serverapp import ServerApp

from fedrec.errors import RunError
from fedrec_server.executor import LostRunError
from fedrec_server.flower import FlowerBroadcast, Owner, bundle, server_app
from fedrec_server.watching import WatchedClients
from fedrec_server.workload import Host, Workload

_LOST_RUNS = 5
"""How many Flower runs may be lost one after the other, without a round in between, before the
server gives up."""


class Runner(Protocol):
    """What runs an app over one SuperLink: `executor.AppRunner`, or a run that has begun."""

    def run(self, app: ServerApp, bundle: bytes) -> None:
        """To its end. Raises LostRunError where another run may have more luck."""


@dataclass
class FlowerRounds:
    """The rounds, over as many Flower runs as it takes. content: of the app."""

    work: Workload
    host: Host
    content: str
    owner: Owner | None = None
    wake: Callable[[Iterable[int]], None] | None = None

    def carry_out(self, executor: Runner) -> None:
        """The training that `trainings` is at, to its end.

        Raises RunError where run after run is lost."""
        host = self.host
        app = server_app(
            self._serve,
            timeout_s=host.settings.rounds.timeout_s,
            sleep=host.sleep,
            owner=self.owner,
            wake=self.wake,
        )
        content = bundle(self.content)
        while True:
            try:
                return executor.run(app, content)
            except LostRunError as failure:
                host.lost += 1
                if host.lost >= _LOST_RUNS:
                    remedy = (
                        "Look into superlink.log in the state folder; the same command goes on "
                        "after the last checkpoint."
                    )
                    raise RunError(
                        f"{host.lost} Flower runs were lost one after the other: {failure}", remedy
                    ) from None
                host.sleep(2.0 ** (host.lost - 1))

    def _serve(self, clients: FlowerBroadcast) -> None:
        settings = self.host.settings
        watched = WatchedClients(
            clients,
            self.host.metrics,
            lambda: clients.connected,
            lambda: clients.unanswered,
            settings.superlink.clients,
            settings.gathering.min_clients,
        )
        self.work.serve(self.host, watched)
