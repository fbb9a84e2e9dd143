"""Metrics and log of the server while it waits for the aggregator: an endpoint around another.

It is put around where the process is wired, so that rounds and their tests know nothing of metrics.
A call that is tried again says so at its first pause, not when its patience has ended.

Record of what was seen of the aggregator's ledger, kept over runs: one that was put back to an
earlier state is refused in any run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import LedgerHead, Opening, Phase, ReleaseEndpoint, RoundStatus
from fedrec.operations import logs
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_state import Awaited, Doing, PartyState
from fedrec.privacy.calibration import Plan
from fedrec.storage import read_json, write_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeenLedger:
    """A `HeadMemory` in a file."""

    path: Path

    def ledger_head(self) -> LedgerHead:
        """Implements `HeadMemory.ledger_head`. Raises RunError where the file is there and cannot
        be read."""
        if not self.path.exists():
            return LedgerHead()
        content = read_json(self.path)
        try:
            return LedgerHead(int(content["number"]), str(content["head"]))
        except (KeyError, TypeError, ValueError):
            raise RunError(
                f"{self.path} does not say what was seen of the aggregator's ledger",
                "Put back the file as it was.",
            ) from None

    def keep_ledger_head(self, head: LedgerHead) -> None:
        """Implements `HeadMemory.keep_ledger_head`."""
        write_json(self.path, {"number": head.number, "head": head.head})

    def forget(self) -> None:
        """Take the aggregator's next ledger for a new one."""
        self.path.unlink(missing_ok=True)


@dataclass
class WatchedEndpoint:
    """The endpoint of an aggregator, or of three.

    A round that ends in an error counts as failed, one that is not released as short."""

    endpoint: ReleaseEndpoint
    metrics: Metrics
    _open: tuple[str, int] | None = field(default=None, init=False)

    def enrolled(self) -> int:
        """Implements `ReleaseEndpoint.enrolled`."""
        with self._calling():
            users = self.endpoint.enrolled()
        self._state.enrolled(users)
        return users

    def open_run(self, run: str, plan: Plan) -> None:
        """Implements `ReleaseEndpoint.open_run`; gathering is over."""
        if self._state.awaited in {Awaited.CLIENTS, Awaited.USERS}:
            self._state.waiting(Awaited.NOTHING)
        with self._calling():
            self.endpoint.open_run(run, plan)

    def open_round(self, opening: Opening) -> RoundStatus:
        """Implements `ReleaseEndpoint.open_round`."""
        self._open = opening.run, opening.round
        self._state.doing(Doing.COLLECTING)
        self._state.round(opening.round, opening.run)
        with self._calling():
            return self._seen(self.endpoint.open_round(opening))

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Implements `ReleaseEndpoint.status`."""
        with self._calling():
            return self._seen(self.endpoint.status(run, round, wait_s=wait_s))

    def close(self, run: str, round: int) -> RoundStatus:
        """Implements `ReleaseEndpoint.close`; nobody's report is waited for any more."""
        self._state.doing(Doing.RELEASING)
        if self._state.awaited is Awaited.REPORTS:
            self._state.waiting(Awaited.NOTHING)
        with self._calling():
            return self._seen(self.endpoint.close(run, round))

    def release(self, run: str, round: int) -> bytes:
        """Implements `ReleaseEndpoint.release`."""
        self._state.doing(Doing.RELEASING)
        with self._calling():
            content = self.endpoint.release(run, round)
        self._open = None
        self._state.doing(Doing.LEARNING)
        return content

    @property
    def _state(self) -> PartyState:
        return self.metrics.state

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """What follows a wait for the aggregator, however it ends."""
        try:
            yield
        except Exception as failure:
            # what it says, it says; that it is away stays true until it answers
            if isinstance(failure, RefusedError):
                self._answered()
            if self._open is not None:
                self._open = None
                self.metrics.decided("failed")
            raise
        self._answered()

    def _answered(self) -> None:
        if self._state.awaited is Awaited.AGGREGATOR:
            self._state.waiting(Awaited.NOTHING)
            logs.say(log, "aggregator-answers")

    def _seen(self, status: RoundStatus) -> RoundStatus:
        self._state.enrolled(status.enrolled)
        self._state.quorum(needed=status.quorum or None, there=status.reported)
        if (
            status.phase in {Phase.RELEASING, Phase.RELEASED}
            and self._state.awaited is Awaited.QUORUM
        ):
            self._state.waiting(Awaited.NOTHING)
        elif (
            status.phase is Phase.OPEN
            and self._state.awaited is Awaited.REPORTS
            and status.reported < status.quorum
        ):
            self._state.waiting(Awaited.QUORUM)  # clients have answered, and it goes on waiting
        elif status.phase is Phase.SHORT:
            self._state.waiting(Awaited.QUORUM)
            if self._open is not None:
                self._open = None
                self.metrics.decided("short")
        return status
