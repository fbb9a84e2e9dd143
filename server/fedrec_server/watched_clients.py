"""Broadcast whose rounds are counted and logged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedrec.federation.protocol import Answer, Invitation, Refusal, Terms
from fedrec.news.messages import Ask, NewsBroadcast, Reply
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing
from fedrec_server.cohorts import UNREACHABLE, AsksSome


class SomeBroadcast(NewsBroadcast, AsksSome, Protocol):
    """What Flower's messages carry: to all clients or to some."""


@dataclass
class WatchedClients:
    """A broadcast to clients; `connected` is asked at every scrape, `unanswered` names who
    was asked and has not answered. known: names of all that may join. min_clients: with fewer,
    clients are waited for, else their users."""

    clients: SomeBroadcast
    metrics: Metrics
    connected: Callable[[], float] = float
    unanswered: Callable[[], Collection[str]] = tuple
    known: Collection[str] = ()
    min_clients: int = 1
    _joined: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.metrics.state.clients(connected=self.connected, joined=0, absent=0)
        self.metrics.state.unanswered = self._missing

    def join(self, terms: Terms) -> Sequence[Answer]:
        """Implements `Broadcast.join`."""
        state = self.metrics.state
        if state.phase in {Doing.STARTING, Doing.IDLE}:
            state.doing(Doing.GATHERING)
        if state.phase is Doing.GATHERING and state.awaited is Awaited.NOTHING:
            state.waiting(Awaited.CLIENTS)
        answers = self.clients.join(terms)
        self._joined |= {answer.client for answer in answers if not answer.refusal}
        self._there(answers)
        return answers

    def ask(self, invitation: Invitation) -> Sequence[Answer]:
        """Implements `Broadcast.ask`."""
        self._asking(invitation.run, invitation.question.round)
        answers = self.clients.ask(invitation)
        self._there(answers)
        return answers

    def ask_some(self, invitation: Invitation, clients: Collection[str]) -> Sequence[Answer]:
        """Implements `AsksSome.ask_some`."""
        self._asking(invitation.run, invitation.question.round)
        answers = self.clients.ask_some(invitation, clients)
        self._there(answers)
        return answers

    def tell(self, ask: Ask) -> list[Reply]:
        """Implements `NewsBroadcast.tell`."""
        self._asking(ask.run, ask.round)
        replies = self.clients.tell(ask)
        self._there([reply.answer for reply in replies])
        self.metrics.state.doing(Doing.LEARNING)
        self.metrics.state.waiting(Awaited.NOTHING)
        return replies

    def pausing(self, sleep: Callable[[float], None]) -> Callable[[float], None]:
        """`sleep` between two attempts at gathering, which says who is missing."""

        def wait(seconds: float) -> None:
            state = self.metrics.state
            if state.phase is Doing.GATHERING and state.awaited is not Awaited.AGGREGATOR:
                state.waiting(
                    Awaited.CLIENTS if len(self._joined) < self.min_clients else Awaited.USERS
                )
            sleep(seconds)  # so long as whoever gathers says

        return wait

    def _missing(self) -> set[str]:
        """Names: who has not answered; before the first round also who has not come."""
        gathering = self.metrics.state.phase is Doing.GATHERING
        return {*self.unanswered(), *(set(self.known) - self._joined if gathering else ())}

    def _asking(self, run: str, round: int) -> None:
        state = self.metrics.state
        state.doing(Doing.COLLECTING)
        state.round(round, run)
        if state.awaited is not Awaited.QUORUM:  # asking again does not bring it
            state.waiting(Awaited.REPORTS)

    def _there(self, answers: Sequence[Answer]) -> None:
        away = {UNREACHABLE, Refusal.BUSY.value}
        there = {answer.client for answer in answers if answer.refusal not in away}
        self.metrics.state.clients(joined=len(self._joined), absent=len(self._joined - there))
