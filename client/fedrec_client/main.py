"""One client process: wires data, ledger, aggregator and SuperNode together, and answers until it is told to stop.

    SuperLink <--TLS-- flower-supernode (child) <--loopback-- this process: executor -> participant --gRPC, TLS--> aggregator

Only this process reads the data and the ledger. It may be ended at any moment, by kill -9 too: the ledger is written
before a report leaves, and the same question is answered again with the same reports.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import fedrec
from fedrec.checkpoint import write_json
from fedrec.errors import RunError, SettingsError
from fedrec.federation.protocol import Answer, Invitation, LedgerHead, Refusal, Terms
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.clock import Clocks
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing, PartyState, noting
from fedrec.privaterec.messages import Ask, Reply
from fedrec_aggregator.channel import Access
from fedrec_aggregator.remote import RemoteReportDesk, Retry
from fedrec_client.executor import Executor, require_pinned_flower
from fedrec_client.flower import client_app
from fedrec_client.held import HELD, HeldArrays
from fedrec_client.ledger import ClientLedger
from fedrec_client.participant import UNREACHABLE, Participant, SiteUsers
from fedrec_client.renewal import Renewal
from fedrec_client.settings import NEWS_FORMATS, ClientData, ClientSettings
from fedrec_client.store import read_users
from fedrec_client.supernode import SuperNode

if TYPE_CHECKING:  # it brings torch, which a client of ratings does without
    from fedrec_client.news import NewsParticipant

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """What runs where, kept as `client.json` in the state folder. Addresses are host:port, "" for none."""

    name: str
    version: str
    pid: int
    supernode_pid: int
    supernode_address: str
    metrics_address: str


def run(
    settings: ClientSettings,
    *,
    ready: Callable[[Status], None] | None = None,
    stop: threading.Event | None = None,
    new_aggregator_ledger: bool = False,
) -> None:
    """Answer until SIGTERM, SIGINT or `stop`. `ready` is told when tasks are taken.

    new_aggregator_ledger: forget what was seen of the aggregator's ledger, and take the one that it has now.

    A signal ends an answer in its middle, which is safe. Raises FedRecError where data, ledger, aggregator's certificate
    or SuperNode cannot be used.
    """
    require_pinned_flower()
    folder, ended = Path(settings.state), stop or threading.Event()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _signals(ended), ExitStack() as stack:
        file = Path(settings.log) if settings.log else None
        log = stack.enter_context(logs.party_log("client", file=file, max_bytes=settings.log_max_bytes, kept=settings.log_files))
        metrics, metrics_address = _metrics(settings.metrics, stack)
        participant = open_participant(settings, folder, stack, metrics.state)
        if new_aggregator_ledger and isinstance(participant, Participant):
            participant.ledger.keep_ledger_head(LedgerHead())
            logs.say(log, "aggregator-ledger-forgotten", level=logging.WARNING)
        node = SuperNode(settings.superlink, folder)

        writing = threading.Lock()

        def note() -> Status:
            status = Status(settings.name, fedrec.__version__, os.getpid(), node.pid, node.address, metrics_address)
            with writing:
                write_json(folder / "client.json", asdict(status))
            return status

        node.changed = note
        stack.callback((folder / "client.json").unlink, missing_ok=True)
        stack.callback(node.stop)
        node.start()
        logs.say(log, "client-started", pid=os.getpid(), version=fedrec.__version__, users=participant.users.num_users)
        if ready:
            ready(note())
        held = HeldArrays(folder / HELD)
        Executor(client_app(Counted(participant, metrics), held=held), lambda: node.address, node.secret).run(ended)


class Counted:
    """A participant whose answers and budget are counted for Prometheus."""

    def __init__(self, participant: Participant | NewsParticipant, metrics: Metrics) -> None:
        self._participant, self._metrics, self._clocks = participant, metrics, Clocks()
        metrics.state.enrolled(participant.users.num_users)
        self._rest()
        self._budget()

    @property
    def name(self) -> str:
        """The participant's."""
        return self._participant.name

    def join(self, terms: Terms) -> Answer:
        """As the participant's."""
        self._work()
        return self._counted(self._participant.join(terms))

    def answer(self, invitation: Invitation) -> Answer:
        """As the participant's, and how long it took."""
        self._work(invitation.question.round)
        began = time.monotonic()
        answer = self._counted(self._participant.answer(invitation))
        self._metrics.decided("refused" if answer.refusal else "answered", took_s=time.monotonic() - began)
        return answer

    def tell(self, ask: Ask) -> Reply:
        """As the participant's; an answer to the server counts as one to an aggregator does."""
        self._work(ask.round)
        told = self._participant.tell(ask)
        self._metrics.decided("refused" if told.answer.refusal else "answered")
        self._counted(told.answer)
        return told

    def _counted(self, answer: Answer) -> Answer:
        self._metrics.reports(accepted=answer.accepted, rejected=answer.rejected)
        if answer.refusal:
            self._metrics.refused(answer.refusal)
        self._rest(answer.refusal)
        self._budget()
        return answer

    def _work(self, round: int | None = None) -> None:
        self._look_at_the_clock()
        state = self._metrics.state
        state.doing(Doing.ANSWERING)
        state.waiting(Awaited.NOTHING)
        if round is not None:
            state.round(round)

    def _look_at_the_clock(self) -> None:
        """A clock that was set refuses nothing: it is counted, logged and written beside the ledger's entries."""
        jump = self._clocks.jump()
        if jump is None:
            return
        self._metrics.clock_jumped()
        logs.say(log, "clock-set", level=logging.WARNING, wait_s=jump.expected_s - jump.now_s)
        try:
            self._participant.ledger.note_clock(jump)
        except RunError as failure:
            logs.say_failure(log, "clock-not-noted", failure)

    def _rest(self, refusal: str = "") -> None:
        reasons = {Refusal.BUDGET.value: Awaited.BUDGET, UNREACHABLE: Awaited.AGGREGATOR}
        self._metrics.state.doing(Doing.IDLE)
        self._metrics.state.waiting(reasons.get(refusal, Awaited.SERVER))

    def _budget(self) -> None:
        ledger = self._participant.ledger
        self._metrics.budget(spent=ledger.epsilon, left=ledger.epsilon_left)


def open_participant(
    settings: ClientSettings, folder: Path, stack: ExitStack, state: PartyState | None = None
) -> Participant | NewsParticipant:
    """A client's data, ledger and way to the aggregator as one, until `stack` closes. Raises FedRecError where one cannot be used.

    state: is told when the aggregator is waited for.
    """
    if settings.privacy.unit == "click":
        return _open_news(settings, folder, stack)
    assert settings.aggregator is not None  # the settings' own check
    renewal = Renewal(Path(settings.data.path), lambda: read_site(settings.data))  # first: what is written meanwhile is read again
    users = read_site(settings.data)
    retry = Retry(sleep=noting(state, Awaited.AGGREGATOR, time.sleep, logging.getLogger(__name__))) if state else None
    ledger = ClientLedger(folder / "ledger.sqlite", limit=settings.privacy.limit)
    stack.callback(ledger.close)
    return Participant(
        settings.name,
        users,
        ledger,
        stack.enter_context(RemoteReportDesk(Access(name=settings.name, **settings.aggregator.model_dump()), retry=retry)),
        folder,
        users_per_batch=settings.users_per_batch,
        keep_sent=settings.keep_sent,
        allow_not_established=settings.privacy.allow_not_established,
        renew=renewal,
    )


def read_site(data: ClientData) -> SiteUsers:
    """Ratings, clicks, or news. Raises DataError and SettingsError."""
    if data.format not in NEWS_FORMATS:
        return read_users(data)
    from fedrec_client.readers import read_readers

    return read_readers(data)


def _open_news(settings: ClientSettings, folder: Path, stack: ExitStack) -> NewsParticipant:
    from fedrec_client.click_ledger import ClickSpending
    from fedrec_client.news import NewsParticipant, NewsTrust  # bring torch
    from fedrec_client.readers import read_readers

    renewal = Renewal(Path(settings.data.path), lambda: read_readers(settings.data))
    users = read_readers(settings.data)
    ledger = ClickSpending(folder / "clicks.sqlite", limit=settings.privacy.limit, max_user_epsilon=settings.privacy.max_user_epsilon)
    stack.callback(ledger.close)
    trust = NewsTrust(settings.privacy.allow_not_established, frozenset(settings.privacy.open_categories))
    return NewsParticipant(settings.name, users, ledger, folder, trust=trust, seed=settings.rehearsal_seed, renew=renewal)


def _metrics(address: str, stack: ExitStack) -> tuple[Metrics, str]:
    metrics = Metrics("client", fedrec.__version__)
    if not address:
        return metrics, ""
    try:
        wanted = Address.of(address)
    except ValueError as failure:
        raise SettingsError(f"metrics: {failure}", "For example 127.0.0.1:9464; port 0 picks one.") from None
    endpoint = stack.enter_context(metrics.serve(wanted.host, wanted.port))
    return metrics, str(Address(endpoint.host, endpoint.port))


@contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT end the body, once: what is being closed after the first is not disturbed by a second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both = (signal.SIGTERM, signal.SIGINT)

    def end(_signal: int, _frame: FrameType | None) -> None:
        for each in both:
            signal.signal(each, signal.SIG_IGN)
        ended.set()
        raise KeyboardInterrupt

    before = [(each, signal.signal(each, end)) for each in both]
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)
