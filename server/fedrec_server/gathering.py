"""Before the first round, and after every restart: tell all clients what the run is about, and wait
for enough of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedrec.errors import UnreachableError
from fedrec.federation.protocol import Answer, Broadcast, Refusal, Terms
from fedrec.operations import logs

log = logging.getLogger(__name__)
NOBODY_ENROLS = 2**40
"""What `Enrolling.enrolled` says where there is no aggregator: more users than there can be."""


@dataclass(frozen=True)
class Gathering:
    """How many clients, and users in all, a run waits for, and for how long. Seconds; `sleep` and
    `clock` are the test's to replace.

    `expected_users` 0 takes whoever the clients bring. Both count those that answer now; users must
    be enrolled too.
    """

    expected_users: int = 0
    min_clients: int = 1
    timeout_s: float = 600.0
    pause_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def is_enough(self, answers: Sequence[Answer], enrolled: int) -> bool:
        """Whether a run may begin with those who answered."""
        joined = [answer for answer in answers if not answer.refusal]
        users = sum(answer.users for answer in joined)
        return len(joined) >= self.min_clients and min(users, enrolled) >= max(
            1, self.expected_users
        )


class Enrolling(Protocol):
    """Who knows which users may report: an aggregator's endpoint."""

    def enrolled(self) -> int:
        """Users enrolled now."""


def gather(terms: Terms, endpoint: Enrolling, clients: Broadcast, gathering: Gathering) -> int:
    """How many users have joined once enough are there: no more than clients say, since a shared
    aggregator may have enrolled others long ago, and no more than are enrolled. Clients that joined
    already join again, which changes nothing.

    An aggregator that does not answer is waited for too. Raises UnreachableError at the deadline,
    saying who is missing.
    """
    deadline = gathering.clock() + gathering.timeout_s
    said = ""
    while True:
        answers = list[Answer]()
        missing = None
        try:
            answers = list(clients.join(terms))
            enrolled = endpoint.enrolled()
            if gathering.is_enough(answers, enrolled):
                return min(enrolled, sum(answer.users for answer in answers if not answer.refusal))
            missing = _missing(answers, enrolled, gathering)
        except UnreachableError as failure:
            missing = failure
        if gathering.clock() >= deadline:
            waited = f"{missing.cause}; waited {gathering.timeout_s:g} s"
            raise UnreachableError(waited, missing.remedy)
        if missing.cause != said:
            said = missing.cause
            logs.say(log, "waiting", level=logging.WARNING, run=terms.run, cause=said)
        gathering.sleep(gathering.pause_s)


def _missing(answers: Sequence[Answer], enrolled: int, gathering: Gathering) -> UnreachableError:
    joined = [answer for answer in answers if not answer.refusal]
    refusals = "".join(
        f"; {answer.client}: {answer.refusal} ({answer.cause})"
        for answer in answers
        if answer.refusal
    )
    wanted = f"{gathering.min_clients} clients" + (
        f" with {gathering.expected_users} users" if gathering.expected_users else ""
    )
    remedy = (
        "Nothing was asked of anybody yet in this start: bring the missing clients up and run "
        "the server again."
    )
    if any(answer.refusal == Refusal.BUDGET for answer in answers):
        remedy = (
            "Nothing was asked of anybody yet in this start. The log of a client that says "
            "budget names the largest epsilon that it has "
            "room for: lower privacy.epsilon to it and begin anew with --drop-unfinished "
            "--again, or go on without that client."
        )
    there = f"{len(joined)} clients with {sum(answer.users for answer in joined)} users"
    if enrolled < NOBODY_ENROLS:
        there += f", {enrolled} enrolled"
    return UnreachableError(f"joined: {there}; needed: {wanted}{refusals}", remedy)
