"""The server's way through a round with real parties: open it, ask the clients, wait for the
release, and begin again where a party forgot it in a crash, or too few took part. Whatever carries
the messages, this is the order in which they go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedrec.errors import ProtocolError, RefusedError, UnreachableError
from fedrec.federation.coding import coded
from fedrec.federation.messages import Question, Release
from fedrec.federation.protocol import (
    BETWEEN,
    DIFFER,
    Answer,
    Broadcast,
    Invitation,
    Opening,
    Phase,
    Refusal,
    ReleaseEndpoint,
    RoundStatus,
    Terms,
)
from fedrec.federation.wire import (
    invitation_bytes,
    question_digest,
    question_header,
    unpack_release,
)
from fedrec.privacy.calibration import Plan

_LONGEST_PAUSE_S = 30.0
"""Between two askings of a round that waits for its quorum: a client that came back is asked after
at most so long."""

_MAY_CHANGE = {"unreachable", "failed", Refusal.BUSY.value, Refusal.RUN_UNKNOWN.value}
"""Refusals after which a client may take part in the same round after all: it restarts, or its
operator repairs it."""

_NAMED = 8
"""Clients that a message names."""

Watch = Callable[[RoundStatus, Sequence[Answer]], None]
"""Told after every round: what the aggregator counted, and what the clients said."""


@dataclass
class Patience:
    """How long a round may take, how often it may begin again, and how many must take part.
    Seconds; `sleep` and `clock` are the test's.

    attempts: at a round that a party lost in a crash. short_attempts: at one that missed its
    quorum, each of which waits `round_s`. min_share: of the run's users, who must report in every
    round (`quorum`).
    """

    round_s: float = 600.0
    attempts: int = 5
    pause_s: float = 1.0
    short_attempts: int = 3
    min_share: float = 0.8
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def quorum(self, num_users: int) -> int:
        """How many of so many users must report."""
        # upwards, and .8 of 10 users are 8 although the product rounds to a little more
        return math.ceil(self.min_share * num_users * (1 - 1e-12))


@dataclass
class AggregatedLink:
    """A `Link` over an aggregator's endpoint and a broadcast to clients. `ledger_head` is the last
    one seen, for the checkpoint.

    num_users: who joined for this run, or whom the round asks; `patience.quorum` of them must
    report before a round is released. A round waits for them until its time is over, and is asked
    again where it was short; what fewer reported stands for all (`Release.standing_for`).
    keep: makes a release durable, of its run, round and bytes, before anything is learned from it.
    watch: told of every release; watch_short: of every round that was short; watch_waiting:
    whenever one goes on waiting for its quorum. asked: how many users a round asks, where that is a
    sample of them (None: all). planned_users: for whom reports stand then, those that the recipe
    counts on in every round.
    told: the public arrays of the question before, which clients have. bytes_down:
    `wire.invitation_bytes` of the last question.
    """

    terms: Terms
    plan: Plan
    endpoint: ReleaseEndpoint
    clients: Broadcast
    patience: Patience = field(default_factory=Patience)
    ledger_head: str = ""
    watch: Watch | None = None
    num_users: int = 0
    watch_short: Watch | None = None
    watch_waiting: Watch | None = None
    asked: Callable[[int], int] | None = None
    planned_users: int = 0
    told: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    bytes_down: int = 0
    keep: Callable[[str, int, bytes], None] | None = None

    @property
    def quorum(self) -> int:
        """How many users must report in a round."""
        return self.patience.quorum(self.num_users)

    def answer(self, question: Question) -> Release:
        """One round, begun again where it must be. Raises ProtocolError when patience ends, with
        what was lost and what it cost; its code is `TOO_FEW` where the quorum was missed in every
        attempt."""
        if self.asked:
            self.num_users = self.asked(question.round)
        header = question_header(question, run=self.terms.run, plan=self.plan.digest())
        quorum = self.quorum
        opening = Opening(
            self.terms.run,
            question.round,
            header,
            question_digest(header),
            self.patience.round_s,
            self.ledger_head,
            quorum,
        )
        invitation = Invitation(
            self.terms.run, self.plan, question, coded(question.public, self.told), quorum
        )
        lost = short = 0
        while True:
            try:
                status, answers = self._collect(opening, invitation)
                if status.phase is Phase.RELEASED:
                    self.told = question.public
                    self.bytes_down = invitation_bytes(invitation)
                    return self._fetched(status, answers, question)
                if status.phase is Phase.RELEASING:
                    raise self._unreleased(status)
                short += 1
                if self.watch_short:
                    self.watch_short(status, answers)
                if short >= self.patience.short_attempts:
                    raise RefusedError(
                        Refusal.TOO_FEW.value, *self._too_few(status, answers, short)
                    )
            except (UnreachableError, RefusedError) as failure:
                forgotten = {Refusal.ROUND_UNKNOWN, Refusal.RUN_UNKNOWN, Refusal.BUSY}
                if isinstance(failure, RefusedError) and failure.code not in forgotten:
                    raise
                lost += 1
                if lost >= self.patience.attempts:
                    raise
            self.patience.sleep(self.patience.pause_s * 2.0 ** (lost + short - 1))

    def _collect(
        self, opening: Opening, invitation: Invitation
    ) -> tuple[RoundStatus, Sequence[Answer]]:
        self.endpoint.open_run(self.terms.run, self.plan)
        status = self.endpoint.open_round(opening)
        answers = list[Answer]()
        if status.phase is Phase.OPEN and status.quorum != opening.quorum:
            raise RefusedError(
                Refusal.WRONG_PROTOCOL.value,
                (
                    f"the aggregator opened round {opening.round} with a quorum of "
                    f"{status.quorum}, asked for was {opening.quorum}"
                ),
                "Look what runs there. rounds.min_share = 0 leaves it to its minimum cohort.",
            )
        if status.phase is Phase.OPEN:
            answers = self._asked(opening, invitation)
            status = self.endpoint.close(opening.run, opening.round)
        if status.phase is Phase.RELEASING:
            status = self.endpoint.status(opening.run, opening.round, wait_s=self.patience.round_s)
        return status, answers

    def _asked(self, opening: Opening, invitation: Invitation) -> list[Answer]:
        """What the clients said, asked again and again until the quorum has reported or the round's
        time is over.

        It ends sooner where everybody has said their last word: there is nobody left to wait for.
        Reports are counted by the aggregator.
        """
        deadline_s = self.patience.clock() + self.patience.round_s
        pause_s = self.patience.pause_s
        answers = dict[str, Answer]()
        while True:
            said = list(self.clients.ask(invitation))
            # a client lost its notes
            if any(answer.refusal == Refusal.RUN_UNKNOWN for answer in said):
                self.clients.join(self.terms)
                said = list(self.clients.ask(invitation))
            for answer in said:
                if (
                    answer.client not in answers
                    or answers[answer.client].refusal
                    or not answer.refusal
                ):
                    answers[answer.client] = answer
            status = self.endpoint.status(opening.run, opening.round)
            left_s = deadline_s - self.patience.clock()
            heard = sum(
                answer.users for answer in answers.values() if answer.refusal not in _MAY_CHANGE
            )
            if (
                status.phase is not Phase.OPEN
                or status.reported >= opening.quorum
                or heard >= self.num_users
                or left_s <= 0
            ):
                return list(answers.values())
            if self.watch_waiting:
                self.watch_waiting(status, list(answers.values()))
            self.patience.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _fetched(
        self, status: RoundStatus, answers: Sequence[Answer], question: Question
    ) -> Release:
        if status.reported < status.quorum:
            cause = (
                f"round {status.round} was released with {status.reported} users, below its "
                f"quorum of {status.quorum}"
            )
            raise ProtocolError(
                cause, "Ask the aggregator's operator: it must not release such a round."
            )
        content = self.endpoint.release(status.run, status.round)
        if self.keep:
            self.keep(status.run, status.round, content)
        release = unpack_release(content, question.releases)
        self.ledger_head = status.ledger_head
        if self.watch:
            self.watch(status, answers)
        if self.plan.horizon:  # a week's sum scaled would have noise that no other week takes off
            return release
        return release.standing_for(self.planned_users or self.num_users, reported=status.reported)

    def _unreleased(self, status: RoundStatus) -> UnreachableError:
        return UnreachableError(
            f"round {status.round}: {status.reported} users reported and no more are taken, but "
            f"it was not released within {self.patience.round_s:g} s",
            "Read the aggregators' logs: one of them, or its disk, does not answer. Then run the "
            "server again: it goes on with this round, which is released and charged once.",
        )

    def _too_few(
        self, status: RoundStatus, answers: Sequence[Answer], attempts: int
    ) -> tuple[str, str]:
        missing = [answer for answer in answers if answer.accepted < answer.users or answer.refusal]
        said = [f"{answer.client}: {_words(answer)}" for answer in missing[:_NAMED]]
        said += [f"{len(missing) - _NAMED} more"] if len(missing) > _NAMED else []
        said += [
            f"{count} {code}"
            for code, count in sorted(status.rejected.items())
            if count and not code.startswith(DIFFER)
        ]
        least = f"{self.quorum} must (min_share {self.patience.min_share:g})"
        differ = _differing(status)
        if differ or status.reported >= self.quorum:
            least = differ or "the aggregator's minimum cohort is larger"
        counted = (
            f"round {status.round}: {status.reported} of {self.num_users or status.enrolled} "
            f"users reported, too few to release: {least}"
        )
        cause = (
            f"{counted}; so it was in each of {attempts} attempts "
            f"({'; '.join(said) or 'the others did not answer'})"
        )
        remedy = (
            "Nothing was released or spent in this round. Start the missing clients and run the "
            "server again: it goes on with this round."
        )
        if differ:
            remedy = (
                "Nothing was released or spent in this round. Ask that operator; `lists-differ` in "
                "the aggregators' logs has the numbers. Lower no limit: a party that lies gains "
                "by it."
            )
        elif 0 < status.reported < self.quorum:
            # downwards: with this share, those who are there suffice
            share = math.floor(100 * status.reported / self.num_users) / 100
            remedy += (
                f" Where they left for good, rounds.min_share of at most {share:g} goes on "
                "without them: "
                "the guarantee stays as planned, the model is of fewer people, and every page "
                "says so."
            )
        return cause, remedy


def _words(answer: Answer) -> str:
    if answer.refusal:
        return f"{answer.refusal} ({answer.cause})"
    return f"{answer.accepted} of {answer.users} users"


def _differing(status: RoundStatus) -> str:
    """Whose list of users is another, of a round of three aggregators; "" where all are alike."""
    pairs = {
        frozenset(code.removeprefix(DIFFER).split(BETWEEN)): count
        for code, count in sorted(status.rejected.items())
        if code.startswith(DIFFER)
    }
    if len(pairs) == 2 and (apart := frozenset.intersection(*pairs)):  # the other two are alike
        return (
            f"aggregator {''.join(apart)} lists other users than the two others, who agree: "
            f"{max(pairs.values())} users differ. It lies, or clients sent it something else"
        )
    words = (f"{' and '.join(sorted(pair))} by {count}" for pair, count in pairs.items())
    return f"lists of aggregators differ: {', '.join(words)} users" if pairs else ""
