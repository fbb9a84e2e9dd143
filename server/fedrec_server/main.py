"""One server process: wires public data, aggregator and clients together, and trains to the end.

    clients --gRPC, TLS--> service of rounds (this process)
    rounds (this process) --gRPC, TLS--> aggregator

It may be ended at any moment, by kill -9 too: the same command goes on after the last checkpoint,
and clients connect again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Self

from fedrec import __version__
from fedrec.errors import FedRecError, SettingsError
from fedrec.operations import logs
from fedrec.operations.machine import ClockWatch, watch_machine
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing, PartyState, noting
from fedrec.operations.watched_files import LOOK_S, WatchedFiles
from fedrec.settings import Scenario
from fedrec.storage import write_json
from fedrec.transport.aggregator_client import Retry, healthy
from fedrec.transport.channel import Access
from fedrec_server.aggregation import access, aggregation_of, memories
from fedrec_server.broadcast import ClientBroadcast, Post
from fedrec_server.round_service import RoundService
from fedrec_server.run_record import only_one
from fedrec_server.runs import Runs, quality_of
from fedrec_server.schedule import TrainingSchedule, words_of
from fedrec_server.settings import ServerSettings, address_of, load
from fedrec_server.settings_tables import PublishTable
from fedrec_server.stopping import Sleep, stopping_signals
from fedrec_server.trainings import Trainings
from fedrec_server.watched_clients import WatchedClients
from fedrec_server.workload import Host, workload_of

EVERY_S = 30.0
_TIMEOUT_S = 5.0
"""How often a wait is said again, and how long an aggregator's health may take for it."""
_OF_CLIENTS = {Awaited.CLIENTS, Awaited.USERS, Awaited.REPORTS, Awaited.QUORUM}
_EXPECTED = {Awaited.NOTHING, Awaited.SCHEDULE}

log = logging.getLogger(__name__)


@dataclass
class WaitingLog:
    """aggregators: all of them, each asked for its health by a connection of its own. clock: looked
    at as often."""

    state: PartyState
    aggregators: Collection[Access]
    clock: ClockWatch | None = None
    _said_s: float = field(default=0.0, init=False)

    def look(self) -> None:
        """Say it where this wait has lasted half a minute, or another one since it was said."""
        waited_s = max(0.0, self.state.waited_s())
        self._said_s = min(self._said_s, waited_s)  # less: another wait began
        if waited_s - self._said_s >= EVERY_S:
            self._said_s = waited_s
            self.say(waited_s)

    def say(self, waited_s: float) -> None:
        """One line, unless it waits for nothing or for its schedule."""
        reason = self.state.awaited
        if reason in _EXPECTED:
            return
        silent = [f"aggregator {one.address}" for one in self.aggregators if not _answers(one)]
        if reason in _OF_CLIENTS:
            silent += [f"client {name}" for name in sorted(self.state.unanswered())]
        # a wait is said in whole seconds
        logs.say(
            log,
            "waiting",
            level=logging.WARNING,
            code=reason.value,
            wait_s=round(waited_s),
            missing=", ".join(silent) or None,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """A thread that says it while the body runs."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(EVERY_S / 30):
                if self.clock is not None:
                    self.clock.look()
                self.look()

        thread = threading.Thread(target=work, name="waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()


def _answers(access: Access) -> bool:
    try:
        return healthy(access, timeout_s=_TIMEOUT_S)
    except FedRecError:
        return False


class Connection(Protocol):
    """A server's way to its clients, as long as the context."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *exception: object) -> None:
        """End what was started."""

    @property
    def post(self) -> Post:
        """What carries messages."""

    @property
    def address(self) -> str:
        """Where clients connect, "" where that is not ours to know."""


@dataclass(frozen=True)
class ServerStatus:
    """What runs where, kept as `server.json` in the state folder while it runs. Addresses are
    host:port, "" for none.

    link: where clients connect. stands: whether it stays up between trainings, and takes requests
    (`schedule`). publish: where the bundle is fetched.
    """

    version: str
    pid: int
    link: str
    metrics: str
    stands: bool = False
    publish: str = ""


def run(
    scenario: Scenario,
    settings: ServerSettings,
    *,
    source: Path | None = None,
    ready: Callable[[ServerStatus], None] | None = None,
    stop: threading.Event | None = None,
    new_aggregator_ledger: bool = False,
    again: bool = False,
    drop: bool = False,
    every_s: float = 0.0,
    say: Callable[[str], None] = lambda words: None,
    connection: Connection | None = None,
) -> None:
    """Train to the end; model and bundle then lie in the state folder. `ready` is told when clients
    can connect.

    source: file of the settings; which clients may join (`pins`, `link.clients`) is read again
    from it after SIGHUP, and when it or the pins change. new_aggregator_ledger: forget what was
    seen of the aggregator's ledger, and take the one that it has now. A folder whose training is
    finished trains no more, and says so, unless again or every_s say otherwise (`schedule`). drop:
    leave an unfinished training for good. say: told what the operator should read. connection: to
    the SuperLink, in place of what the settings name.

    SIGTERM, SIGINT and `stop` end it early: raises Stopped. Raises FedRecError where the run cannot
    begin or go on.
    """
    if settings.publish.rule != "always" and not scenario.privacy.evaluation_share:
        raise SettingsError(
            f"publish.rule = {settings.publish.rule!r} goes by what people say: nobody is asked",
            "Give the scenario privacy.evaluation_share, for example 0.01.",
        )
    folder = Path(settings.state)
    told = stop or threading.Event()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as failure:
        raise SettingsError(
            f"state: {failure}", "Name a folder that this user may write."
        ) from None
    with ExitStack() as stack:
        stack.enter_context(only_one(folder))
        runs = Runs(folder)
        schedule = TrainingSchedule(folder, every_s, again)
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
        stack.enter_context(stopping_signals(told))
        if new_aggregator_ledger:
            for seen in memories(settings):
                seen.forget()
            logs.say(log, "aggregator-ledger-forgotten", level=logging.WARNING)
        stack.enter_context(_followed(settings, source, log))
        connected = connection or RoundService(settings.link)
        _run(scenario, settings, runs, schedule, Sleep(told), stack, connected, ready, say)
        logs.say(log, "server-finished", pid=os.getpid())


def _run(
    scenario: Scenario,
    settings: ServerSettings,
    runs: Runs,
    schedule: TrainingSchedule,
    sleep: Sleep,
    stack: ExitStack,
    connection: Connection,
    ready: Callable[[ServerStatus], None] | None,
    say: Callable[[str], None],
) -> None:
    log = logging.getLogger(__name__)
    folder = runs.state
    metrics, metrics_address = _metrics(settings.metrics, stack)
    tables = [*([settings.aggregator] if settings.aggregator else []), *settings.aggregators]
    own = [settings.link.certificate, settings.link.client_ca]
    own += [file for table in tables for file in (table.certificate, table.ca)]
    watch_machine(metrics.registry, state=folder, certificates=own)
    metrics.evaluated(quality_of(runs))
    patiently = Retry(tell=noting(metrics.state, Awaited.AGGREGATOR, log), sleep=sleep)
    aggregation = aggregation_of(scenario.privacy, settings, metrics, patiently, stack)
    link = stack.enter_context(connection)
    noise: Literal["seeded", "system"] = "seeded" if settings.rehearsal else "system"
    work = workload_of(scenario, settings.public)
    trainings = Trainings(
        runs,
        schedule,
        work.promised,
        aggregation.budget,
        noise,
        settings.run,
        say,
        state=metrics.state,
        rule=settings.publish.rule,
        horizon=scenario.privacy.horizon,
    )
    work.check(aggregation.endpoint)
    host = Host(settings, aggregation, trainings, metrics, sleep)
    published = _published(settings.publish, folder, stack)
    status = ServerStatus(
        __version__, os.getpid(), link.address, metrics_address, schedule.stands, published
    )
    # before it is written: a signal in between would leave it
    stack.callback(lambda: (folder / "server.json").unlink(missing_ok=True))
    write_json(folder / "server.json", asdict(status))
    logs.say(log, "server-started", pid=os.getpid(), version=__version__, address=link.address)
    if ready:
        ready(status)
    aggregators = [access(table) for table in tables]
    clock = ClockWatch(metrics.registry, log)
    if (jump := runs.clock_behind(time.time())) is not None:
        clock.tell(jump)
    stack.enter_context(WaitingLog(metrics.state, aggregators, clock).running())
    for _ in trainings.each(sleep):
        trainings.attempt(lambda: work.serve(host, _watched(host, link.post)))
    metrics.state.doing(Doing.FINISHED)


def _watched(host: Host, post: Post) -> WatchedClients:
    """The clients as one training asks them."""
    settings = host.settings
    clients = ClientBroadcast(
        post, settings.rounds.timeout_s, again_s=post.again_s, sleep=host.sleep
    )
    return WatchedClients(
        clients,
        host.metrics,
        lambda: clients.connected,
        lambda: clients.unanswered,
        settings.link.clients,
        settings.gathering.min_clients,
    )


@contextmanager
def _followed(settings: ServerSettings, source: Path | None, log: logging.Logger) -> Iterator[None]:
    """A thread that lets in the clients whom the settings file and its pins name now; a file that
    cannot be used is logged, and changes nothing."""
    watched = WatchedFiles((source, settings.pins) if source else ())
    ended = threading.Event()
    known = settings.link.clients  # the service looks names up in this very mapping

    def follow(file: Path) -> None:
        while not ended.wait(LOOK_S):
            if not watched.due():
                continue
            try:
                now = load(file).link.clients
                if known and not now:  # no name at all would let everybody in
                    cause = f"{file.name} and its pins name no client any more"
                    raise SettingsError(cause, "Start the server again to let in every client.")
            except SettingsError as failure:
                logs.say_failure(log, "clients-not-reloaded", failure)
                continue
            known.update(now)
            for name in known.keys() - now.keys():
                del known[name]
            logs.say(log, "clients-reloaded", clients=len(known))

    with watched.on_hangup():
        if source:
            thread = threading.Thread(target=follow, args=(source,), name="pins", daemon=True)
            thread.start()
        try:
            yield
        finally:
            ended.set()


def _metrics(address: str, stack: ExitStack) -> tuple[Metrics, str]:
    metrics = Metrics("server", __version__)
    if not address:
        return metrics, ""
    wanted = address_of(address, "metrics")
    return metrics, str(stack.enter_context(metrics.serve(wanted.host, wanted.port)).address)


def _published(table: PublishTable, folder: Path, stack: ExitStack) -> str:
    """Where the current bundle is fetched, "" where it is not."""
    if not table.listen:
        return ""
    # brings uvicorn, which only an endpoint needs
    from fedrec.transport.http_listener import TlsFiles
    from fedrec_server.bundle_endpoint import bundle_endpoint

    tls = TlsFiles(Path(table.certificate), Path(table.key)) if table.certificate else None
    listen = address_of(table.listen, "publish.listen")
    return str(stack.enter_context(bundle_endpoint(folder, listen, table.tokens, tls=tls)))
