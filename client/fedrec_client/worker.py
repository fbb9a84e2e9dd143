"""The child process that holds a client's data and ledger, as the process that started it sees it:
there while there are messages.

    main --settings, the server's messages--> worker    over a pair of sockets that nobody else
        has; both are one program of one user
    main <--log lines, numbers, replies--  worker

A worker ends by itself when it was asked nothing for `idle_s`, and the next message starts another.
One that dies over a message is started once more for it: the same question again costs nothing and
sends the same reports.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from multiprocessing.connection import Connection
from typing import Any, Self

from fedrec.errors import FedRecError, RunError
from fedrec.federation.round_messages import RoundMessage
from fedrec.operations import logs, parent_death, party_state
from fedrec.operations.clock import ClockJump
from fedrec.operations.machine import ClockWatch
from fedrec.operations.metrics import Metrics
from fedrec_client.refusals import UNREACHABLE
from fedrec_client.settings import ClientSettings

MAIN = "fedrec_client.worker_main"

_GRACE_S = 10.0  # for the answer in work to be written; then the child is killed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerMessage:
    """One message. jump: of the clock since the one before, which the ledger notes."""

    message: RoundMessage
    jump: ClockJump | None


@dataclass(frozen=True)
class Begin:
    """What a worker is told first. check: run before anything is opened; new_aggregator_ledger: see
    `main.run`."""

    settings: ClientSettings
    check: Callable[[], object] | None = None
    new_aggregator_ledger: bool = False


class Worker:
    """A context; the child is of the thread that calls (see `parent_death`), and ends with it or
    with the body."""

    def __init__(self, settings: ClientSettings, metrics: Metrics) -> None:
        self._begin = Begin(settings)
        self._metrics = metrics
        self._clock = ClockWatch(metrics.registry, log)
        self._has_begun = False
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def begin(
        self, *, check: Callable[[], object] | None = None, new_aggregator_ledger: bool = False
    ) -> int:
        """Start one; how many users it found.

        Raises what `check` raised, and FedRecError where something cannot be opened."""
        self._start()
        users: int
        users, behind = self._heard(
            replace(self._begin, check=check, new_aggregator_ledger=new_aggregator_ledger)
        )
        if behind is not None and not self._has_begun:  # later, this process has seen it itself
            self._clock.tell(behind)
        self._has_begun = True
        return users

    @property
    def pid(self) -> int:
        """Process id of the child; 0 while there is none."""
        return self._child.pid if self._child is not None and self._child.poll() is None else 0

    def answer(self, message: RoundMessage) -> RoundMessage:
        """The reply to a message; a refusal where there is none: its words go to the server, so
        they are ours and not the error's."""
        try:
            return self._answered(WorkerMessage(message, self._clock.look()))
        except FedRecError as failure:
            logs.say_failure(log, "message-unanswered", failure)
            cause = "the client could not answer; its own log says where"
            from fedrec_client.requests import refusing  # it brings scipy

            return refusing(self._begin.settings.name, UNREACHABLE, cause)

    def _answered(self, asked: WorkerMessage) -> RoundMessage:
        for _ in range(2):
            if not self.pid:
                self._end()
                self.begin()
            assert self._connection is not None
            try:
                self._connection.send(asked)
                reply: RoundMessage = self._result()
                return reply
            except (EOFError, OSError):  # it ended: of itself just now, or over this message
                status = self._end()
                if status:
                    logs.say(log, "worker-ended", level=logging.WARNING, exit_status=status)
        raise RunError(
            "the process that answers ends before it has answered",
            "See the log before this line; it may lack memory.",
        )

    def _heard(self, begin: Begin) -> Any:
        assert self._connection is not None
        try:
            self._connection.send(begin)
            return self._result()
        except (EOFError, OSError):
            status = self._end()
            raise RunError(
                f"the process that holds data and ledger ended with status {status}",
                "See its words on standard error.",
            ) from None
        except FedRecError:
            self._end()
            raise

    def _result(self) -> Any:
        """What comes last of an answer; what comes before it is written down here."""
        assert self._connection is not None
        while True:
            match self._connection.recv():
                case ("log", line):
                    logging.getLogger(line["name"]).handle(logging.makeLogRecord(line))
                case ("metrics", path, values, named):
                    reduce(getattr, path, self._metrics)(*values, **named)  # type: ignore[operator]
                case ("failed", failure, exit_code):
                    failure.exit_code = exit_code
                    raise failure
                case ("opened" | "reply", result):
                    return result

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            handed = theirs.fileno()
            program = parent_death.command([sys.executable, "-m", MAIN, str(handed)])
            # this process traces what the child does; who holds data sends nothing to a collector
            kept = {
                name: value for name, value in os.environ.items() if name != party_state.ENDPOINT
            }
            self._child = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, pass_fds=[handed], env=kept
            )
        self._connection = Connection(ours.detach())

    def _end(self) -> int:
        """Its exit status, once it has ended."""
        connection = self._connection
        child = self._child
        self._connection = None
        self._child = None
        if connection is not None:
            connection.close()
        return parent_death.ended(child, _GRACE_S) if child is not None else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
