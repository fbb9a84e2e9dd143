"""Workload of a server: ratings and clicks, or news; what it must know of them, its trainings, and
the rounds that it publishes for light devices.

Everything else of a server is the same for both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedrec.data.clicklog import liked_in
from fedrec.errors import RunError, SettingsError
from fedrec.federation.protocol import Answer, Broadcast, Invitation, Phase, ReleaseEndpoint, Terms
from fedrec.federation.wire import described
from fedrec.news.messages import NewsBroadcast
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.preparing import guarantee_of
from fedrec.privacy.guarantee import Guarantee
from fedrec.public_data import PublicData
from fedrec.settings import Scenario
from fedrec.storage import write_bytes
from fedrec_server.aggregation import Aggregation
from fedrec_server.rounds import KeptRound, RoundSettings, check, run_rounds
from fedrec_server.run_settings import RunSettings
from fedrec_server.runs import evaluation_in, quality_of
from fedrec_server.settings import ServerSettings
from fedrec_server.settings_tables import PublicTable
from fedrec_server.stopping import Sleep
from fedrec_server.trainings import Trainings
from fedrec_server.watched_clients import WatchedClients

if TYPE_CHECKING:
    from fedrec.news.trained import Catalogue

NAME = "light-devices"
"""What the answers of all light devices together are called."""


class Publication:
    """The folder, written one file after the other, the round last.

    It makes light devices one more client of a broadcast: a question is published for all of them,
    and they report when they look.

        FOLDER/v1/round             the round that is open, as JSON; "{}" for none
        FOLDER/v1/content/SHA256    question's header, arrays, plan and terms, each under its digest

    The files are the same for everybody and, but for `round`, never change: any web server, object
    store or cache may serve the folder. An aggregator's table `devices` serves it beside its
    intake. Files of the round before stay, for devices that read it just now.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "v1"
        self._before = set[str]()

    def publish(self, terms: Terms, invitation: Invitation) -> None:
        """Let devices answer this round, in the place of the one before. Raises RunError."""
        files, told = described(terms, invitation)
        try:
            for name, content in files.items():
                if not (path := self._folder / "content" / name).exists():
                    write_bytes(path, content)
            write_bytes(self._folder / "round", told)
            for path in (self._folder / "content").iterdir():
                if path.name not in files.keys() | self._before:
                    path.unlink()
        except OSError as failure:
            raise RunError(
                f"the round cannot be published to devices: {failure}",
                "Free disk space, and go on.",
            ) from failure
        self._before = set(files)

    def withdraw(self) -> None:
        """No round is open."""
        write_bytes(self._folder / "round", b"{}")


@dataclass
class DeviceClients:
    """A `Broadcast` to clients and to light devices. users: devices that are counted on; window_s:
    for them to report in a round.

    endpoint: says who is enrolled and has reported, devices and clients together.
    """

    clients: Broadcast
    endpoint: ReleaseEndpoint
    publication: Publication
    users: int
    window_s: float
    pause_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _terms: Terms | None = field(default=None, init=False)
    _joined: int = field(default=0, init=False)

    def join(self, terms: Terms) -> Sequence[Answer]:
        """Implements `Broadcast.join`; of devices, those are there who enrolled and are no
        client's."""
        answers = list(self.clients.join(terms))
        self._terms = terms
        theirs = sum(answer.users for answer in answers if not answer.refusal)
        self._joined = max(0, min(self.users, self.endpoint.enrolled() - theirs))
        return [*answers, Answer(NAME, self._joined)] if self._joined else answers

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """Implements `Broadcast.ask`; when clients have answered, devices are waited for until all
        have reported or the window is over."""
        if self._terms is None or not self._joined:
            return self.clients.ask(invitation)
        until_s = self.clock() + self.window_s
        self.publication.publish(self._terms, invitation)
        answers = list(self.clients.ask(invitation))
        theirs = sum(answer.accepted for answer in answers)
        run = invitation.run
        round = invitation.question.round
        while True:
            status = self.endpoint.status(run, round)
            counted = max(0, min(self._joined, status.reported - theirs))
            if counted == self._joined or status.phase is not Phase.OPEN or self.clock() >= until_s:
                return [*answers, Answer(NAME, self._joined, counted)]
            self.sleep(self.pause_s)


@dataclass
class Host:
    """Where a server trains."""

    settings: ServerSettings
    aggregation: Aggregation
    trainings: Trainings
    metrics: Metrics
    sleep: Sleep

    def released(self, took_s: float | None = None) -> None:
        """A round is over."""
        self.metrics.decided("released", took_s=took_s)

    def run(self, clients: WatchedClients) -> RunSettings:
        """Settings of the rounds of the training that `trainings` is at."""
        chosen = self.settings
        return RunSettings(
            replace(chosen.whom_to_wait_for(), sleep=clients.pausing(self.sleep)),
            replace(chosen.patience(), sleep=self.sleep),
            chosen.rounds.absent_s,
            self.trainings.entry.asks,
            self.aggregation.statements,
        )


class Workload(Protocol):
    """What a server trains."""

    @property
    def promised(self) -> Guarantee:
        """What one training promises."""

    @property
    def about(self) -> str:
        """What is public, in words. Raises FedRecError where it cannot be read."""

    def check(self, aggregator: object | None) -> None:
        """Raises FedRecError where the scenario cannot run between real parties."""

    def steps(
        self,
        endpoint: ReleaseEndpoint | None,
        clients: NewsBroadcast,
        folder: Path,
        run: RunSettings,
    ) -> Iterator[object]:
        """One training, as it is by itself."""

    def serve(self, host: Host, clients: WatchedClients) -> None:
        """The training that `host.trainings` is at, to its end."""


def workload_of(scenario: Scenario, public: PublicTable) -> Workload:
    """What the scenario is about; public data is read when it is needed."""
    return (News if scenario.learns_news else Ratings)(scenario, public)


@dataclass(frozen=True)
class Ratings:
    """Ratings and clicks."""

    scenario: Scenario
    table: PublicTable

    @cached_property
    def public(self) -> PublicData:
        """What everybody knows."""
        return self.table.read()

    @property
    def promised(self) -> Guarantee:
        """See `Workload`."""
        return guarantee_of(self.scenario.privacy)

    @property
    def about(self) -> str:
        """See `Workload`."""
        return f"{len(self.public.items):,} items, {self.public.kind}"

    def check(self, aggregator: object | None) -> None:
        """See `Workload`."""
        check(self.scenario, self.public)
        if aggregator is None:
            raise SettingsError(
                "the server's settings have no aggregator",
                "Give them an aggregator table, or three, as in docs/deploy.md.",
            )

    def steps(
        self,
        endpoint: ReleaseEndpoint | None,
        clients: NewsBroadcast,
        folder: Path,
        run: RunSettings,
    ) -> Iterator[KeptRound]:
        """See `Workload`."""
        assert endpoint is not None  # `check`
        return run_rounds(self.scenario, self.public, endpoint, clients, folder, run)

    def serve(self, host: Host, clients: WatchedClients) -> None:
        """See `Workload`: with devices beside the clients, warm starts and samples of users."""
        chosen = host.settings
        told = host.settings.devices
        trainings = host.trainings
        endpoint = host.aggregation.endpoint
        assert endpoint is not None  # `check`
        if told.users and self.scenario.privacy.evaluation_share:
            raise SettingsError(
                "privacy.evaluation_share: light devices do not answer its question yet",
                "Leave it out, or the table devices.",
            )
        if told.users and self.scenario.privacy.horizon:
            raise SettingsError(
                "privacy.horizon: light devices keep no stream yet",
                "Leave it out, or the table devices.",
            )
        trainings.runs.resume_stream()
        published = Publication(Path(told.folder)) if told.users else None
        everybody = (
            DeviceClients(clients, endpoint, published, told.users, told.window_s, sleep=host.sleep)
            if published
            else clients
        )
        rounds = run_rounds(
            self.scenario,
            self.public,
            endpoint,
            everybody,
            trainings.folder,
            host.run(clients),
            RoundSettings(
                cohort=chosen.rounds.cohort,
                planned=trainings.planned,
                earlier=trainings.earlier(
                    self.public.items, evaluated=self.scenario.privacy.evaluation_share > 0
                )
                if chosen.warm_start and not self.scenario.privacy.horizon
                else None,
                serving=trainings.compared(self.public.items),
                week=trainings.entry.week,
                tell=trainings.say,
                checkpoints=chosen.rounds.checkpoints,
            ),
        )
        for progress in rounds:
            line = progress.line
            host.metrics.reports(accepted=line.reported, rejected=line.rejected)
            host.metrics.moved(
                bytes_in=line.release_bytes, bytes_out=line.bytes_down * len(line.answers)
            )
            host.released(line.seconds)
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
        if said := evaluation_in(trainings.folder):
            trainings.say(f"quality  {said['words']}")
            logs.say(logging.getLogger(__name__), f"evaluated: {said['words']}")
            host.metrics.evaluated(quality_of(trainings.runs))
        if published:
            published.withdraw()


@dataclass(frozen=True)
class News:
    """News, of whose parts most bring torch."""

    scenario: Scenario
    table: PublicTable

    @cached_property
    def catalogue(self) -> Catalogue:
        """What everybody knows."""
        from fedrec_server.public_news import read_public_news

        return read_public_news(Path(self.table.path), self.table.format, self.scenario)

    @property
    def promised(self) -> Guarantee:
        """See `Workload`."""
        from fedrec.news.variant import promised

        return promised(self.scenario)

    @property
    def about(self) -> str:
        """See `Workload`."""
        return f"{len(self.catalogue.news):,} items, news"

    def check(self, aggregator: object | None) -> None:
        """See `Workload`."""
        from fedrec_server.news import check as check_news

        check_news(self.scenario, aggregator)
        _ = self.catalogue  # read before anybody connects

    def steps(
        self,
        endpoint: ReleaseEndpoint | None,
        clients: NewsBroadcast,
        folder: Path,
        run: RunSettings,
    ) -> Iterator[object]:
        """See `Workload`."""
        from fedrec_server.news import run_news

        return run_news(self.scenario, self.catalogue, endpoint, clients, folder, run)

    def serve(self, host: Host, clients: WatchedClients) -> None:
        """See `Workload`."""
        from fedrec.news.trained import TrainedNews
        from fedrec.serving.news_bundles import news_bundle

        trainings = host.trainings
        trainings.runs.planned(trainings.promised, None)
        for done in self.steps(
            host.aggregation.endpoint, clients, trainings.folder, host.run(clients)
        ):
            host.released()
            if isinstance(done, TrainedNews):
                trainings.runs.planned(done.guarantee, None)
                origin = trainings.origin(self.scenario.privacy.delta, spent=done.spent)
                if origin is not None:
                    trainings.export = partial(
                        news_bundle,
                        done.recommender,
                        self.catalogue.news,
                        origin,
                        liked=liked_in(self.scenario.data.format),
                    )
