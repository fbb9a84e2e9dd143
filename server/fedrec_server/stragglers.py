"""A client that is restarted in the middle of a round still takes part: it is asked again before
the round is closed without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from fedrec.federation.protocol import Answer, Broadcast, Invitation, Refusal, Terms
from fedrec_server.cohorts import Cohorts

UNREACHABLE = "unreachable"
"""The refusal that stands for no answer: of a transport about its node, or of a client about the
aggregator."""
_NOT_YET = {UNREACHABLE, Refusal.BUSY.value}


@runtime_checkable
class AsksSome(Protocol):
    """A `Broadcast` that can ask some clients alone."""

    def ask_some(self, invitation: Invitation, clients: Collection[str]) -> Sequence[Answer]:
        """Asks as `ask` does, of these clients."""


@dataclass
class EveryClient:
    """A `Broadcast` that asks again, for up to `absent_s` seconds a round, until every client that
    joined has answered.

    A question asked twice is answered with the same reports, which are counted once. A client that
    stays away is not waited for in the next round, unless it has joined or answered again. cohorts:
    which clients a round asks, None for all.
    """

    clients: Broadcast
    absent_s: float
    pause_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    longest_pause_s: float = 15.0
    present: set[str] = field(default_factory=set)
    cohorts: Cohorts | None = None

    def join(self, terms: Terms) -> Sequence[Answer]:
        """Implements `Broadcast.join`, remembering who joined."""
        answers = self.clients.join(terms)
        self.present |= {answer.client for answer in answers if not answer.refusal}
        if self.cohorts:
            self.cohorts.heard(answers)
        return answers

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """The last answer of each client; at once where a client does not know the run, so that it
        can be told."""
        deadline = self.clock() + self.absent_s
        pause_s = self.pause_s
        answers = dict[str, Answer]()
        asked = self.cohorts.asked(invitation.question.round) if self.cohorts else None
        others = set[str]() if asked is None else self.present - asked
        while True:
            for answer in self._asked(invitation, asked):
                if answer.client not in answers or answer.refusal not in _NOT_YET:
                    answers[answer.client] = answer
            said = {name for name, answer in answers.items() if answer.refusal not in _NOT_YET}
            lost = any(answer.refusal == Refusal.RUN_UNKNOWN for answer in answers.values())
            if lost or self.present - others <= said or self.clock() >= deadline:
                self.present = said | others
                return list(answers.values())
            self.sleep(pause_s)  # longer each time: who is there computes its reports again
            pause_s = min(2 * pause_s, self.longest_pause_s)

    def _asked(self, invitation: Invitation, some: Collection[str] | None) -> Sequence[Answer]:
        if some is None:
            return self.clients.ask(invitation)
        assert isinstance(self.clients, AsksSome)  # whoever gives cohorts gives such a broadcast
        return self.clients.ask_some(invitation, some)
