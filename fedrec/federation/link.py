"""The server's way through a round with real parties: open it, ask the clients, wait for the release, and begin again
where a party forgot it in a crash. Whatever carries the messages, this is the order in which they go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedrec.errors import ProtocolError, RefusedError, UnreachableError
from fedrec.federation.coding import coded
from fedrec.federation.messages import Question, Release
from fedrec.federation.protocol import Answer, Broadcast, Invitation, Opening, Phase, Refusal, ReleaseDesk, RoundStatus, Terms
from fedrec.federation.wire import invitation_bytes, question_digest, question_header, unpack_release
from fedrec.privacy.calibration import Plan

Watch = Callable[[RoundStatus, Sequence[Answer]], None]
"""Told after every round: what the aggregator counted, and what the clients said."""


@dataclass
class Patience:
    """How long a round may take, and how often it may begin again. Seconds; `sleep` and `clock` are the test's to replace."""

    round_s: float = 600.0
    attempts: int = 5
    pause_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep


@dataclass
class AggregatedLink:
    """A `Link` over an aggregator's desk and a broadcast to clients. `ledger_head` is the last one seen, for the checkpoint.

    told: the public arrays of the question before, which clients have. bytes_down: `wire.invitation_bytes` of the last question.
    """

    terms: Terms
    plan: Plan
    desk: ReleaseDesk
    clients: Broadcast
    patience: Patience = field(default_factory=Patience)
    ledger_head: str = ""
    watch: Watch | None = None
    told: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    bytes_down: int = 0

    def answer(self, question: Question) -> Release:
        """One round, begun again where it must be. Raises ProtocolError when patience ends, with what was lost and what it cost."""
        header = question_header(question, run=self.terms.run, plan=self.plan.digest())
        opening = Opening(self.terms.run, question.round, header, question_digest(header), self.patience.round_s, self.ledger_head)
        invitation = Invitation(self.terms.run, self.plan, question, coded(question.public, self.told))
        last: ProtocolError | None = None
        for attempt in range(self.patience.attempts):
            if attempt:
                self.patience.sleep(self.patience.pause_s * 2.0 ** (attempt - 1))
            try:
                status, answers = self._collect(opening, invitation)
                if status.phase is Phase.RELEASED:
                    self.told, self.bytes_down = question.public, invitation_bytes(invitation)
                    return self._fetched(status, answers, question)
                last = RefusedError(Refusal.TOO_FEW.value, *_too_few(status, answers))
            except UnreachableError as failure:
                last = failure
            except RefusedError as failure:
                if failure.code not in {Refusal.ROUND_UNKNOWN, Refusal.RUN_UNKNOWN, Refusal.BUSY}:
                    raise
                last = failure
        assert last is not None
        raise last

    def _collect(self, opening: Opening, invitation: Invitation) -> tuple[RoundStatus, Sequence[Answer]]:
        self.desk.open_run(self.terms.run, self.plan)
        status, answers = self.desk.open_round(opening), list[Answer]()
        if status.phase is Phase.OPEN:
            answers = list(self.clients.ask(invitation))
            if any(answer.refusal == Refusal.RUN_UNKNOWN for answer in answers):  # a client lost its notes
                self.clients.join(self.terms)
                answers = list(self.clients.ask(invitation))
            status = self.desk.close(opening.run, opening.round)
        if status.phase is Phase.RELEASING:
            status = self.desk.status(opening.run, opening.round, wait_s=self.patience.round_s)
        return status, answers

    def _fetched(self, status: RoundStatus, answers: Sequence[Answer], question: Question) -> Release:
        content = self.desk.release(status.run, status.round)
        release = unpack_release(content, question.releases)
        self.ledger_head = status.ledger_head
        if self.watch:
            self.watch(status, answers)
        return release


def _too_few(status: RoundStatus, answers: Sequence[Answer]) -> tuple[str, str]:
    refusals = "; ".join(f"{answer.client}: {answer.refusal} ({answer.cause})" for answer in answers if answer.refusal)
    turned_away = ", ".join(f"{count} {code}" for code, count in sorted(status.rejected.items()) if count)
    said = " | ".join(part for part in (refusals, turned_away) if part) or "the others did not answer"
    cause = f"round {status.round}: {status.reported} of {status.enrolled} users reported, too few to release ({said})"
    return cause, "Nothing was released or spent in this round; start the missing clients and run the server again."
