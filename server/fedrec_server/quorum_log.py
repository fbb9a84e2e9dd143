"""Log of who was missing from a round's quorum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedrec.federation.protocol import Answer, RoundStatus
from fedrec.operations import logs
from fedrec_server.cohorts import log, missing


@dataclass
class QuorumLog:
    """Warnings of a run of `num_users`, of whom `quorum` must report in every round. A wait is told
    once, and again when it changes.

    tell: gets the same in words, for a terminal.
    """

    quorum: int
    num_users: int
    tell: Callable[[str], None] = lambda words: None
    _said: tuple[int, int, int] | None = field(default=None)

    def waiting(self, status: RoundStatus, answers: Sequence[Answer]) -> None:
        """The round is open, and too few have reported yet."""
        now = (status.round, status.attempt, status.reported)
        if now != self._said:
            self._said = now
            self._warn("waiting-for-quorum", status, answers)
            self.tell(f"round {status.round} waits: {self._words(status, answers)}")

    def short(self, status: RoundStatus, answers: Sequence[Answer]) -> None:
        """The round is over without a release: nothing is spent, and it is tried again."""
        self._warn("round-short", status, answers)
        self.tell(
            f"round {status.round} is short and was not released, nothing was spent: "
            f"{self._words(status, answers)}"
        )

    def _words(self, status: RoundStatus, answers: Sequence[Answer]) -> str:
        counted = (
            f"{status.reported:,} of {self.num_users:,} users reported, "
            f"{max(self.quorum, status.quorum):,} must"
        )
        return f"{counted} ({said})" if (said := missing(answers)) else counted

    def _warn(self, event: str, status: RoundStatus, answers: Sequence[Answer]) -> None:
        logs.say(
            log,
            event,
            level=logging.WARNING,
            run=status.run,
            round=status.round,
            attempt=status.attempt,
            accepted=status.reported,
            joined=self.num_users,
            quorum=max(self.quorum, status.quorum),
            missing=missing(answers),
            rejected=status.rejected or None,
        )
