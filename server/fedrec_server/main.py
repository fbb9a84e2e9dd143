"""One server process: wires public data, aggregator, SuperLink and gate together, and trains to the
end.

    SuperNodes --TLS--> gate (this process) --loopback--> flower-superlink (child)
    executor (this process) --loopback--> flower-superlink (child)
    rounds (this process) --gRPC, TLS--> aggregator

It may be ended at any moment, by kill -9 too: the same command goes on after the last checkpoint.
The SuperLink ends with it, and begins again with the nodes it knew.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from fedrec import __version__
from fedrec.data.clicklog import ClickLogProtocol
from fedrec.errors import RunError, SettingsError
from fedrec.federation.protocol import ReleaseDesk
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing, noting
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import guarantee_of
from fedrec.settings import Scenario
from fedrec.storage import write_json
from fedrec_server.aggregation import desk_and_budget, memories
from fedrec_server.bundle_endpoint import BundleEndpoint
from fedrec_server.device_clients import DeviceClients, Publication
from fedrec_server.executor import Executor, LostRunError, require_pinned_flower
from fedrec_server.fleet_listener import FleetListener
from fedrec_server.fleet_proxy import Certificate, FleetLimits
from fedrec_server.flower import FlowerBroadcast, Owner, bundle, server_app
from fedrec_server.public import PublicData
from fedrec_server.rounds import Progress, check, run_rounds
from fedrec_server.run_record import only_one
from fedrec_server.runs import Runs
from fedrec_server.schedule import Schedule, words_of
from fedrec_server.settings import ServerSettings
from fedrec_server.settings_tables import PublishTable, SuperLinkTable
from fedrec_server.superlink import SuperLink
from fedrec_server.trainings import Trainings
from fedrec_server.watching import WatchedClients
from fedrec_transport.aggregator_client import Retry

if TYPE_CHECKING:  # it brings torch, which a server of ratings does without
    from fedrec.news.trained import Catalogue

_LOST_RUNS = 5
"""How many Flower runs may be lost one after the other, without a round in between, before the
server gives up."""


@dataclass(frozen=True)
class Status:
    """What runs where, kept as `server.json` in the state folder while it runs. Addresses are
    host:port, "" for none.

    gate: where SuperNodes connect. superlink: where Flower listens, on loopback where it was
    started here. stands: whether it stays up between trainings, and takes requests (`schedule`).
    publish: where the bundle is fetched.
    """

    version: str
    pid: int
    gate: str
    superlink: str
    superlink_pid: int
    metrics: str
    stands: bool = False
    publish: str = ""


class Stopped(SystemExit):
    """The process was told to end before the model was trained.

    Its exit code is 128 and the signal's number."""


def run(
    scenario: Scenario,
    settings: ServerSettings,
    *,
    ready: Callable[[Status], None] | None = None,
    stop: threading.Event | None = None,
    new_aggregator_ledger: bool = False,
    again: bool = False,
    drop: bool = False,
    every_s: float = 0.0,
    say: Callable[[str], None] = lambda words: None,
) -> None:
    """Train to the end; model and bundle then lie in the state folder. `ready` is told when clients
    can connect.

    new_aggregator_ledger: forget what was seen of the aggregator's ledger, and take the one that it
    has now. A folder whose training is finished trains no more, and says so, unless again or
    every_s say otherwise (`schedule`). drop: leave an unfinished training for good. say: told what
    the operator should read.

    SIGTERM, SIGINT and `stop` end it early: raises Stopped. Raises FedRecError where the run cannot
    begin or go on.
    """
    require_pinned_flower()
    folder, told = Path(settings.state), stop or threading.Event()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise SettingsError(
            f"state: {failure}", "Name a folder that this user may write."
        ) from None
    with ExitStack() as stack:
        stack.enter_context(only_one(folder))
        runs, schedule = Runs(folder), Schedule(folder, every_s, again)
        runs.adopt()
        if drop:
            runs.drop()
        if (
            not (runs.last and runs.last.open)
            and not schedule.stands
            and not schedule.due(runs.finished, begun=len(runs.entries))
        ):
            say(words_of(runs))
            return
        file = Path(settings.log) if settings.log else None
        log = stack.enter_context(
            logs.party_log(
                "server", file=file, max_bytes=settings.log_max_bytes, kept=settings.log_files
            )
        )
        stack.enter_context(_signals(told))
        if new_aggregator_ledger:
            for seen in memories(settings):
                seen.forget()
            logs.say(log, "aggregator-ledger-forgotten", level=logging.WARNING)
        _run(scenario, settings, runs, schedule, _Sleep(told), stack, ready, say)
        logs.say(log, "server-finished", pid=os.getpid())


def _run(
    scenario: Scenario,
    settings: ServerSettings,
    runs: Runs,
    schedule: Schedule,
    sleep: _Sleep,
    stack: ExitStack,
    ready: Callable[[Status], None] | None,
    say: Callable[[str], None],
) -> None:
    log, folder = logging.getLogger(__name__), runs.state
    _keep_loopback_direct()
    metrics, metrics_address = _metrics(settings.metrics, stack)
    patiently = Retry(sleep=noting(metrics.state, Awaited.AGGREGATOR, sleep, log))
    desk, budget = desk_and_budget(scenario, settings, metrics, patiently, stack)
    flower = stack.enter_context(_Flower(settings.superlink, folder))
    noise: Literal["seeded", "system"] = "seeded" if settings.rehearsal else "system"
    trainings = Trainings(
        runs, schedule, _promised(scenario), budget, noise, settings.run, say, state=metrics.state
    )
    # while the SuperLink starts
    training = _training(scenario, settings, desk, trainings, metrics, sleep, flower.owner)
    published = _published(settings.publish, folder, stack)
    writing = threading.Lock()

    def note() -> Status:
        status = Status(
            __version__,
            os.getpid(),
            flower.gate,
            flower.superlink,
            flower.superlink_pid,
            metrics_address,
            schedule.stands,
            published,
        )
        with writing:
            write_json(folder / "server.json", asdict(status))
        return status

    training.wake = flower.wake
    stack.callback(lambda: (folder / "server.json").unlink(missing_ok=True))
    executor = flower.up(sleep, changed=note)
    logs.say(log, "server-started", pid=os.getpid(), version=__version__, address=flower.gate)
    if ready:
        ready(note())
    for _ in trainings.each(sleep):
        training.carry_out(executor)
    metrics.state.doing(Doing.FINISHED)


def _training(
    scenario: Scenario,
    settings: ServerSettings,
    desk: ReleaseDesk | None,
    trainings: Trainings,
    metrics: Metrics,
    sleep: _Sleep,
    owner: Owner | None,
) -> _Training:
    """Ready to be carried out, its public data read.

    Raises FedRecError where scenario and settings do not go together."""
    if scenario.learns_news:
        from fedrec_server.news import check as check_news  # brings torch
        from fedrec_server.public_news import read_public_news

        check_news(scenario, desk)
        catalogue = read_public_news(Path(settings.public.path), settings.public.format, scenario)
        return _Training(
            scenario, settings, None, desk, trainings, metrics, sleep, owner, catalogue=catalogue
        )
    public = settings.public.read()
    check(scenario, public)
    if desk is None:
        raise SettingsError(
            "the server's settings have no aggregator",
            "Give them an aggregator table, or three, as in docs/deploy.md.",
        )
    return _Training(scenario, settings, public, desk, trainings, metrics, sleep, owner)


def _promised(scenario: Scenario) -> Guarantee:
    if scenario.learns_news:
        from fedrec.news.variant import promised

        return promised(scenario)
    return guarantee_of(scenario)


@dataclass
class _Training:
    """The rounds, over as many Flower runs as it takes.

    `lost` counts runs lost since the last round. `catalogue`: of news."""

    scenario: Scenario
    settings: ServerSettings
    public: PublicData | None
    desk: ReleaseDesk | None
    trainings: Trainings
    metrics: Metrics
    sleep: _Sleep
    owner: Owner | None = None
    wake: Callable[[Iterable[int]], None] | None = None
    lost: int = 0
    catalogue: Catalogue | None = None

    def carry_out(self, executor: Executor) -> None:
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
            self.desk,
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
        elif self.public is not None and self.desk is not None:
            self._rounds(watched, self.public, self.desk)

    def _rounds(self, clients: WatchedClients, public: PublicData, desk: ReleaseDesk) -> None:
        chosen, sleep, told = self.settings, self.sleep, self.settings.devices
        published = Publication(Path(told.folder)) if told.users else None
        everybody = (
            DeviceClients(clients, desk, published, told.users, told.window_s, sleep=sleep)
            if published
            else clients
        )
        rounds = run_rounds(
            self.scenario,
            public,
            desk,
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

    def _tell(self, progress: Progress) -> None:
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


class _Flower:
    """The SuperLink of a run: a child behind our gate, or one that runs already.

    A context that ends what was started here."""

    def __init__(self, table: SuperLinkTable, folder: Path) -> None:
        self._table, self._stack = table, ExitStack()
        database = (
            Path(table.database) if table.database else folder / "flower" / "superlink.sqlite"
        )
        self._child = SuperLink(folder / "flower", database) if table.start else None
        self._gate: FleetListener | None = None

    def __enter__(self) -> _Flower:
        """Begin; the SuperLink may still be starting."""
        if self._child:
            self._gate = self._stack.enter_context(_gate(self._table, self._child))
            self._stack.enter_context(self._child)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def up(self, sleep: Callable[[float], None], *, changed: Callable[[], object]) -> Executor:
        """What runs apps at the SuperLink, once it answers.

        `changed` is told whenever the child is another."""
        if self._child:
            self._child.changed = changed
            self._child.wait_until_up()
            return Executor(self._child.address, self._child.secret, sleep=sleep)
        certificates = (
            _file(self._table.root_certificates, "superlink.root_certificates")
            if self._table.root_certificates
            else None
        )
        if certificates is None and not _address(self._table.address, "superlink.address").loopback:
            raise SettingsError(
                f"plain HTTP to a SuperLink at {self._table.address}",
                "Give superlink.root_certificates.",
            )
        return Executor(
            self._table.address,
            _file(self._table.secret, "superlink.secret"),
            certificates,
            sleep=sleep,
        )

    @property
    def owner(self) -> Owner | None:
        """Which client a node is, where the gate asks for certificates."""
        return self._gate.owner if self._gate and self._gate.certificate else None

    def wake(self, nodes: Iterable[int]) -> None:
        """There are messages for these nodes."""
        if self._gate:
            self._gate.wake(nodes)

    @property
    def gate(self) -> str:
        return str(self._gate.address) if self._gate else ""

    @property
    def superlink(self) -> str:
        return self._child.address if self._child else self._table.address

    @property
    def superlink_pid(self) -> int:
        return self._child.pid if self._child else 0


def _gate(table: SuperLinkTable, superlink: SuperLink) -> FleetListener:
    certificate = None
    if table.certificate:
        certificate = Certificate(
            Path(table.certificate), Path(table.key), Path(table.client_ca), table.clients
        )
    limits = FleetLimits(
        max_body_bytes=table.max_message_bytes, max_bytes=8 * table.max_message_bytes
    )
    return FleetListener(
        _address(table.listen, "superlink.listen"),
        lambda: superlink.address,
        certificate,
        limits,
        holds=certificate is not None,
    )


def _metrics(address: str, stack: ExitStack) -> tuple[Metrics, str]:
    metrics = Metrics("server", __version__)
    if not address:
        return metrics, ""
    wanted = _address(address, "metrics")
    endpoint = stack.enter_context(metrics.serve(wanted.host, wanted.port))
    return metrics, str(Address(endpoint.host, endpoint.port))


def _published(table: PublishTable, folder: Path, stack: ExitStack) -> str:
    """Where the current bundle is fetched, "" where it is not."""
    if not table.listen:
        return ""
    certificate, key = (Path(name) if name else None for name in (table.certificate, table.key))
    listen = _address(table.listen, "publish.listen")
    return str(
        stack.enter_context(
            BundleEndpoint(folder, listen, table.tokens, certificate=certificate, key=key)
        ).address
    )


def _address(text: str, key: str) -> Address:
    try:
        return Address.of(text)
    except ValueError as failure:
        raise SettingsError(f"{key}: {failure}", "Correct it in the server's settings.") from None


def _file(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as failure:
        raise SettingsError(
            f"{key}: {path}: {failure.strerror or failure}",
            "Name a readable file in the server's settings.",
        ) from None


def _keep_loopback_direct() -> None:
    """Flower's clients follow the environment's proxies; what goes to loopback stays there."""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(
            filter(None, [os.environ.get(name, ""), "127.0.0.1", "localhost"])
        )


@dataclass(frozen=True)
class _Sleep:
    """Sleeps until the time is over or the process is told to end, which raises Stopped."""

    told: threading.Event

    def __call__(self, seconds: float) -> None:
        if self.told.wait(seconds):
            raise Stopped(128 + signal.SIGTERM)


@contextmanager
def _signals(told: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT raise Stopped in the body, once: what is being closed after the first is
    not disturbed by a second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if not told.is_set():
            told.set()
            raise Stopped(128 + number)

    both = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handle) for number in both]
    try:
        yield
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)
