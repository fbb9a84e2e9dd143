"""Long polling for SuperNodes: a request for messages waits at the proxy until there may be one.

A SuperNode asks every three seconds, each time through the proxy, Flower's checks and its database;
a thousand of them would keep a core busy with answers that say nothing. The server tells when it
has sent a message to a node; until then the request is held here, where it costs a connection, and
it is passed on after a while all the same: a message that was not told of is late, never lost. The
first request after a message is passed on at once, and held where nothing was there: a SuperNode
sleeps for three seconds over an answer without a message, and the next round would begin that much
later.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from fedrec_server.nodes import MOST_NODES

WAIT_HEADER = b"fedrec-wait-s"
"""How long a node that knows of this proxy may be held; Flower's own gives a request up after 30
s."""

_STOCK_WAIT_S, _LONGEST_WAIT_S = 25.0, 240.0
"""Flower takes a request's signature for five minutes."""

_MOST_QUIET = 100_000
_EMPTY_BYTES = 16
"""An answer without a message is not longer."""


class GoneError(Exception):
    """Who asked has hung up, or the proxy is closing."""


@dataclass
class HeldPulls:
    """Requests for messages that one proxy holds back, in its event loop. on: whether somebody will
    `wake`; else nothing is held.

    quiet: nodes for which nothing was there when they last asked, and nothing was sent since.
    at_once: requests that are passed on at the same time, so that a message to all nodes is fetched
    as the SuperLink can give it.
    """

    on: bool
    stock_wait_s: float = _STOCK_WAIT_S
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(32))
    quiet: set[int] = field(default_factory=set)
    _woken: dict[int, asyncio.Event] = field(default_factory=dict)
    _held: Counter[str] = field(default_factory=Counter)
    _closing: bool = False

    @property
    def held(self) -> int:
        """Requests that wait."""
        return self._held.total()

    def wake(self, nodes: Iterable[int]) -> None:
        """There may be a message for these nodes."""
        for node in nodes:
            self.quiet.discard(node)
            if node in self._woken:
                self._woken[node].set()

    def close(self) -> None:
        """Hold nobody any more."""
        self._closing = True
        for event in self._woken.values():
            event.set()

    def holds(self, client: str, asked_s: float | None) -> bool:
        """Whether a request of this client would wait.

        A client has room for one of each of its nodes; more are passed on at once."""
        return (
            self.on
            and not self._closing
            and self._held[client] < MOST_NODES
            and self._wait_s(asked_s) > 0
        )

    async def until_due(
        self, node: int, client: str, asked_s: float | None, gone: Callable[[], Awaitable[object]]
    ) -> bool:
        """Until the node's request is to be passed on; whether it waited. asked_s: how long the
        node would wait. Raises GoneError.

        gone: ends when who asks has hung up: what is fetched for nobody would be lost.
        """
        if node not in self.quiet or not self.holds(client, asked_s):
            return False
        wait_s = self._wait_s(asked_s)
        event = self._woken.setdefault(node, asyncio.Event())
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(gone())]
        self._held[client] += 1
        try:
            done, _ = await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            self._held[client] -= 1
            self._held += Counter()  # forgets clients at zero
            if self._woken.get(node) is event:
                del self._woken[node]
                event.set()  # a second request of the node waits for the same
        if waits[1] in done or self._closing:
            raise GoneError
        return True

    def _wait_s(self, asked_s: float | None) -> float:
        return (
            self.stock_wait_s
            if asked_s is None or not math.isfinite(asked_s)
            else min(max(asked_s, 0.0), _LONGEST_WAIT_S)
        )

    def asking(self, node: int) -> None:
        """The node's request is passed on: what is sent from here on wakes it again."""
        self.quiet.add(node)

    def answered(self, node: int, num_bytes: int | None) -> bool:
        """What came back, None where it is not known or no answer; whether that was no message.

        After a message there may be another."""
        nothing = num_bytes is not None and num_bytes <= _EMPTY_BYTES
        if not nothing:
            self.quiet.discard(node)
        if len(self.quiet) > _MOST_QUIET:
            self.quiet.clear()
        return nothing
