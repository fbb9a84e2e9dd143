"""The process of a client that holds data and ledger, started by `fedrec_client.worker`: `python -m
fedrec_client.worker_main FD`.

Over the connection FD come the settings, then messages; it sends what `worker` lists, a reply last.
Without a message for `idle_s` it ends, and so it does when the connection ends. Its log lines and
numbers go to the other process, which has the log file and the metrics.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import fedrec
from fedrec.errors import FedRecError, RunError
from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.news.messages import Ask, Reply
from fedrec.operations import logs
from fedrec.operations.clock import ClockJump
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing
from fedrec_client.held_arrays import HeldArrays
from fedrec_client.opened import open_participant
from fedrec_client.participant import Participant
from fedrec_client.refusals import UNREACHABLE
from fedrec_client.requests import Requests
from fedrec_client.run_record import unknown_of
from fedrec_client.store import HELD
from fedrec_client.worker import Begin, WorkerMessage

if TYPE_CHECKING:  # it brings torch, which a client of ratings does without
    from fedrec_client.news import NewsParticipant

_FIRST_S = 10.0
"""Least time for the first message: the one that started this process is on its way."""

log = logging.getLogger(__name__)


class Counted:
    """A participant whose answers and budget are counted for Prometheus."""

    def __init__(
        self, participant: Participant | NewsParticipant, metrics: Metrics, folder: Path
    ) -> None:
        self._participant = participant
        self._folder = folder
        self._metrics = metrics
        metrics.state.enrolled(participant.users.num_users)
        self._rest()
        self._budget()

    @property
    def name(self) -> str:
        """The participant's."""
        return self._participant.name

    def join(self, terms: Terms) -> Answer:
        """Joins as the participant does."""
        self._work(terms.run)
        answer = self._counted(self._participant.join(terms))
        self._metrics.items(*unknown_of(self._folder))
        return answer

    def answer(self, invitation: Invitation) -> Answer:
        """Answers as the participant does, and counts how long it took."""
        self._work(invitation.run, invitation.question.round)
        began = time.monotonic()
        answer = self._counted(self._participant.answer(invitation))
        self._metrics.decided(
            "refused" if answer.refusal else "answered", took_s=time.monotonic() - began
        )
        return answer

    def tell(self, ask: Ask) -> Reply:
        """Tells as the participant does; an answer to the server counts as one to an aggregator
        does."""
        self._work(ask.run, ask.round)
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

    def _work(self, run: str, round: int | None = None) -> None:
        state = self._metrics.state
        state.doing(Doing.ANSWERING)
        state.waiting(Awaited.NOTHING)
        if round is not None:
            state.round(round, run)

    def _rest(self, refusal: str = "") -> None:
        reasons = {Refusal.BUDGET.value: Awaited.BUDGET, UNREACHABLE: Awaited.AGGREGATOR}
        self._metrics.state.doing(Doing.IDLE)
        self._metrics.state.waiting(reasons.get(refusal, Awaited.SERVER))

    def _budget(self) -> None:
        ledger = self._participant.ledger
        self._metrics.budget(spent=ledger.epsilon, left=ledger.epsilon_left)


class SentMetrics:
    """Numbers that another process shows: each call of a `Metrics` is made here and sent there, by
    the names that lead to it."""

    def __init__(
        self, send: Callable[[tuple[Any, ...]], None], metrics: Any, path: tuple[str, ...] = ()
    ) -> None:
        self._send = send
        self._metrics = metrics
        self._path = path

    def __getattr__(self, name: str) -> SentMetrics:
        return SentMetrics(self._send, getattr(self._metrics, name), (*self._path, name))

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Calls the `Metrics` here, and sends the call."""
        self._send(("metrics", self._path, values, named))
        return self._metrics(*values, **named)


class _Lines(logging.Handler):
    """Log lines to the other process."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._send_on = send

    def emit(self, record: logging.LogRecord) -> None:
        line = {
            "name": record.name,
            "levelno": record.levelno,
            "levelname": record.levelname,
            "msg": record.getMessage(),
        }
        self._send_on(
            ("log", line | {"created": record.created, "fields": getattr(record, "fields", {})})
        )


def serve(connection: Connection) -> None:
    """Open what the settings name and say how many users there are, then answer until nothing comes
    for a while."""
    one_at_a_time = Lock()  # log lines come from other threads than answers

    def send(what: tuple[Any, ...]) -> None:
        with one_at_a_time:
            connection.send(what)

    for package in map(logging.getLogger, ("fedrec_client", "fedrec")):
        package.setLevel(logging.INFO)
        package.propagate = False
        package.addHandler(_Lines(send))
    begin: Begin = connection.recv()
    with ExitStack() as stack:
        try:
            metrics = cast(Metrics, SentMetrics(send, Metrics("client", fedrec.__version__)))
            if begin.check is not None:
                begin.check()
            folder = Path(begin.settings.state)
            participant = open_participant(begin.settings, folder, stack, metrics.state)
            if begin.new_aggregator_ledger and isinstance(participant, Participant):
                participant.ledger.forget_aggregators()
                logs.say(log, "aggregator-ledger-forgotten", level=logging.WARNING)
            requests = Requests(
                Counted(participant, metrics, folder), held=HeldArrays(folder / HELD)
            )
        except FedRecError as failure:
            send(("failed", failure, failure.exit_code))
            return
        except Exception as failure:  # a defect, or a disk; its words could hold anything
            logs.say_failure(log, "failed", failure, quoted=False)
            send(("failed", RunError(*logs.reason(failure)), RunError.exit_code))
            return
        send(("opened", (participant.users.num_users, _note(participant))))
        waits_s = max(_FIRST_S, begin.settings.idle_s)
        while connection.poll(waits_s):
            waits_s = begin.settings.idle_s
            asked: WorkerMessage = connection.recv()
            if asked.jump is not None:
                _note(participant, asked.jump)
            send(("reply", requests.answer(asked.message)))


def _note(
    participant: Participant | NewsParticipant, jump: ClockJump | None = None
) -> ClockJump | None:
    """Keep a jump of the clock, or that it is behind the ledger's last entry."""
    try:
        return participant.ledger.note_clock(jump)
    except RunError as failure:
        logs.say_failure(log, "clock-not-noted", failure)
        return jump


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's to understand
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the other process is gone
