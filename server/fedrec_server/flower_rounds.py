"""Rounds of trainings over Flower's runs, of ratings or news: as many runs as it takes, since a
SuperLink may lose one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedrec.data.clicklog import ClickLogProtocol
from fedrec.errors import RunError, SettingsError
from fedrec.federation.protocol import ReleaseEndpoint
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.settings import Scenario
from fedrec_server.device_clients import DeviceClients, Publication
from fedrec_server.executor import AppRunner, LostRunError
from fedrec_server.flower import FlowerBroadcast, Owner, bundle, server_app
from fedrec_server.public import PublicData
from fedrec_server.rounds import KeptRound, check, run_rounds
from fedrec_server.settings import ServerSettings
from fedrec_server.stopping import Sleep
from fedrec_server.trainings import Trainings
from fedrec_server.watching import WatchedClients

if TYPE_CHECKING:  # it brings torch, which a server of ratings does without
    from fedrec.news.trained import Catalogue

_LOST_RUNS = 5
"""How many Flower runs may be lost one after the other, without a round in between, before the
server gives up."""


def flower_rounds(
    scenario: Scenario,
    settings: ServerSettings,
    endpoint: ReleaseEndpoint | None,
    trainings: Trainings,
    metrics: Metrics,
    sleep: Sleep,
    owner: Owner | None,
) -> FlowerRounds:
    """Ready to be carried out, its public data read.

    Raises FedRecError where scenario and settings do not go together."""
    if scenario.learns_news:
        from fedrec_server.news import check as check_news  # brings torch
        from fedrec_server.public_news import read_public_news

        check_news(scenario, endpoint)
        catalogue = read_public_news(Path(settings.public.path), settings.public.format, scenario)
        return FlowerRounds(
            scenario,
            settings,
            None,
            endpoint,
            trainings,
            metrics,
            sleep,
            owner,
            catalogue=catalogue,
        )
    public = settings.public.read()
    check(scenario, public)
    if endpoint is None:
        raise SettingsError(
            "the server's settings have no aggregator",
            "Give them an aggregator table, or three, as in docs/deploy.md.",
        )
    return FlowerRounds(scenario, settings, public, endpoint, trainings, metrics, sleep, owner)


@dataclass
class FlowerRounds:
    """The rounds, over as many Flower runs as it takes.

    `lost` counts runs lost since the last round. `catalogue`: of news."""

    scenario: Scenario
    settings: ServerSettings
    public: PublicData | None
    endpoint: ReleaseEndpoint | None
    trainings: Trainings
    metrics: Metrics
    sleep: Sleep
    owner: Owner | None = None
    wake: Callable[[Iterable[int]], None] | None = None
    lost: int = 0
    catalogue: Catalogue | None = None

    def carry_out(self, executor: AppRunner) -> None:
        """The training that `trainings` is at, to its end.

        Raises RunError where run after run is lost."""
        app = server_app(
            self._serve,
            timeout_s=self.settings.rounds.timeout_s,
            sleep=self.sleep,
            owner=self.owner,
            wake=self.wake,
        )
        content = bundle(self.scenario.digest())
        while True:
            try:
                return executor.run(app, content)
            except LostRunError as failure:
                self.lost += 1
                if self.lost >= _LOST_RUNS:
                    remedy = (
                        "Look into superlink.log in the state folder; the same command goes on "
                        "after the last checkpoint."
                    )
                    raise RunError(
                        f"{self.lost} Flower runs were lost one after the other: {failure}", remedy
                    ) from None
                self.sleep(2.0 ** (self.lost - 1))

    def _news(self, clients: WatchedClients, catalogue: Catalogue) -> None:
        from fedrec.news.trained import TrainedNews
        from fedrec.serving.news_bundles import news_bundle
        from fedrec_server.news import run_news

        chosen, sleep, trainings = self.settings, self.sleep, self.trainings
        trainings.runs.planned(trainings.promised, None)
        steps = run_news(
            self.scenario,
            catalogue,
            self.endpoint,
            clients,
            self.trainings.folder,
            gathering=replace(chosen.whom_to_wait_for(), sleep=clients.pausing(sleep)),
            patience=replace(chosen.patience(), sleep=sleep),
            absent_s=chosen.rounds.absent_s,
            run=trainings.entry.run,
        )
        for done in steps:
            self.lost = 0
            self.metrics.decided("released")
            if isinstance(done, TrainedNews):
                trainings.runs.planned(done.guarantee, None)
                origin = trainings.origin(self.scenario.privacy.delta, spent=done.spent)
                liked = (
                    ClickLogProtocol().liked if self.scenario.data.format == "click-log" else 0.0
                )
                if origin is not None:
                    trainings.export = partial(
                        news_bundle, done.recommender, catalogue.news, origin, liked=liked
                    )

    def _serve(self, clients: FlowerBroadcast) -> None:
        watched = WatchedClients(
            clients, self.metrics, lambda: clients.connected, self.settings.gathering.min_clients
        )
        if self.catalogue is not None:
            self._news(watched, self.catalogue)
        elif self.public is not None and self.endpoint is not None:
            self._rounds(watched, self.public, self.endpoint)

    def _rounds(
        self, clients: WatchedClients, public: PublicData, endpoint: ReleaseEndpoint
    ) -> None:
        chosen, sleep, told = self.settings, self.sleep, self.settings.devices
        published = Publication(Path(told.folder)) if told.users else None
        everybody = (
            DeviceClients(clients, endpoint, published, told.users, told.window_s, sleep=sleep)
            if published
            else clients
        )
        rounds = run_rounds(
            self.scenario,
            public,
            endpoint,
            everybody,
            self.trainings.folder,
            gathering=replace(chosen.whom_to_wait_for(), sleep=clients.pausing(sleep)),
            patience=replace(chosen.patience(), sleep=sleep),
            absent_s=chosen.rounds.absent_s,
            run=self.trainings.entry.run,
            cohort=chosen.rounds.cohort,
            planned=self.trainings.planned,
            earlier=self.trainings.earlier(public.items) if chosen.warm_start else None,
            tell=self.trainings.say,
            checkpoints=chosen.rounds.checkpoints,
        )
        for progress in rounds:
            self.lost = 0
            self._tell(progress)
        if published:
            published.withdraw()

    def _tell(self, progress: KeptRound) -> None:
        line = progress.line
        self.metrics.reports(accepted=line.reported, rejected=line.rejected)
        self.metrics.moved(
            bytes_in=line.release_bytes, bytes_out=line.bytes_down * len(line.answers)
        )
        self.metrics.decided("released", took_s=line.seconds)
        logs.say(
            logging.getLogger(__name__),
            "round-released",
            round=line.round,
            step=line.step,
            attempt=line.attempt,
            enrolled=line.enrolled,
            joined=line.joined,
            quorum=line.quorum,
            accepted=line.reported,
            clipped=line.clipped,
            rejected=line.rejected,
            bytes_in=line.release_bytes,
            took_s=line.seconds,
            sha256=line.release_sha256,
        )
