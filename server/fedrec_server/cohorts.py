"""Sampled cohorts: every round asks a share of the clients, so that a round costs messages and
reports of those alone.

The sample is a function of the run's id, the round and the clients' names: anybody can repeat it,
and a round that begins again asks the same. The server chose the run's id, so that in the end the
choice is the server's. Hence the guarantee does not count on it: nothing is amplified, the plan and
the aggregator charge every round as if everybody were in it. A client's own ledger charges the
rounds that it was asked in, which is exact for its users, because nobody's data have a part in the
choice.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from fedrec.errors import SettingsError
from fedrec.federation.protocol import Answer, Broadcast, Invitation, Refusal, Terms
from fedrec.registry import require

UNREACHABLE = "unreachable"
"""The refusal that stands for no answer: of a transport about its node, or of a client about the
aggregator."""
_NOT_YET = {UNREACHABLE, Refusal.BUSY.value}
log = logging.getLogger(__name__)


@dataclass
class Cohorts:
    """Which clients a round of a run asks. share: of the users, in (0, 1]. users: of each client
    that joined."""

    run: str
    share: float
    users: dict[str, int] = field(default_factory=dict)

    def heard(self, answers: Iterable[Answer]) -> None:
        """Clients that joined, with how many users."""
        self.users |= {answer.client: answer.users for answer in answers if not answer.refusal}

    def asked(self, round: int) -> frozenset[str]:
        """Clients in the order of a hash, until they have the share of all users."""
        chosen = set[str]()
        found = 0
        least = self.planned(sum(self.users.values()))
        for name in sorted(
            self.users,
            key=lambda name: hashlib.sha256(f"{self.run}/{round}/{name}".encode()).digest(),
        ):
            if found >= least:
                break
            chosen.add(name)
            found += self.users[name]
        return frozenset(chosen)

    def num_users(self, round: int) -> int:
        """Users of the clients that a round asks."""
        return sum(self.users[name] for name in self.asked(round))

    def say(self, tell: Callable[[str], None]) -> None:
        """What a sample means for the guarantee."""
        tell(
            f"every round asks {self.share:.0%} of the users; the guarantee is charged as if "
            "everybody were in every round"
        )

    def planned(self, num_users: int) -> int:
        """How many of so many users a round asks for: what the recipe counts on."""
        return math.ceil(self.share * num_users * (1 - 1e-12))


def require_sampled(recipe: str, kind: str) -> None:
    """Raises SettingsError for a recipe that does not learn from other users in every round."""
    if kind not in require(recipe).cohorts:
        raise SettingsError(
            (
                f'rounds.cohort below 1 with recipe = "{recipe}" on {kind}: what it learns in '
                "one round is of the users of another"
            ),
            'Leave rounds.cohort at 1, or set recipe = "default" for ratings.',
        )


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

    A client that is restarted in the middle of a round still takes part: it is asked again before
    the round is closed without it.
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


def missing(answers: Sequence[Answer]) -> str:
    """Which clients did not report for all of their users, and why."""
    lacking = [answer for answer in answers if answer.refusal or answer.accepted < answer.users]
    return "; ".join(
        f"{one.client}: {one.refusal or f'{one.accepted} of {one.users} users'}"
        for one in lacking[:20]
    )
