"""Log of a server that waits: every half minute what it waits for, since when, and which party does
not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedrec.errors import FedRecError
from fedrec.operations import logs
from fedrec.operations.clock import steady
from fedrec.operations.party_state import Awaited, PartyState
from fedrec.transport.aggregator_client import healthy
from fedrec.transport.channel import Access

EVERY_S = 30.0
_TIMEOUT_S = 5.0
_OF_CLIENTS = {Awaited.CLIENTS, Awaited.USERS, Awaited.REPORTS, Awaited.QUORUM}
_EXPECTED = {Awaited.NOTHING, Awaited.SCHEDULE}

log = logging.getLogger(__name__)


@dataclass
class WaitingLog:
    """aggregators: all of them, each asked for its health by a connection of its own."""

    state: PartyState
    aggregators: Collection[Access]

    def say(self, waited_s: float) -> None:
        """One line, unless it waits for nothing or for its schedule."""
        reason = self.state.awaited
        if reason in _EXPECTED:
            return
        silent = [f"aggregator {one.address}" for one in self.aggregators if not _answers(one)]
        if reason in _OF_CLIENTS:
            silent += [f"client {name}" for name in sorted(self.state.unanswered())]
        logs.say(
            log,
            "waiting",
            level=logging.WARNING,
            code=reason.value,
            wait_s=round(waited_s),
            missing=", ".join(silent) or None,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """A thread that says it while the body runs."""
        ended = threading.Event()

        def work() -> None:
            seen = self.state.awaited
            since_s = steady()
            while not ended.wait(EVERY_S):
                if self.state.awaited is not seen:
                    seen = self.state.awaited
                    since_s = steady() - EVERY_S
                self.say(steady() - since_s)

        thread = threading.Thread(target=work, name="waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()


def _answers(access: Access) -> bool:
    try:
        return healthy(access, timeout_s=_TIMEOUT_S)
    except FedRecError:
        return False
