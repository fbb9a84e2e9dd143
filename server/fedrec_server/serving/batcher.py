"""Batcher of queries: what is wrong with a query is said before it costs anything; those that wait
are ranked together.

No query waits for others: what arrives while a batch is ranked is the next batch. Small catalogues
are ranked on the event loop, since a thread would cost more than the ranking; large ones in one
thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedrec.arrays import Float32s
from fedrec.serving.ranking import Best, Query
from fedrec_server.serving.counts import ServingCounts
from fedrec_server.serving.refusals import Code, busy, refused
from fedrec_server.serving.settings import ServingSettings
from fedrec_server.serving.store import ServedModel

_SMALL_BYTES = 2**23
"""Item vectors of a catalogue that is ranked on the event loop: about .3 ms a query."""

LARGEST = 1e9
"""Of a coefficient; scores stay finite in single precision."""

Waiting = tuple[ServedModel, Query, "asyncio.Future[Best]"]


class Batcher:
    """Made and used on the event loop. `clock` in seconds."""

    def __init__(
        self,
        settings: ServingSettings,
        counts: ServingCounts,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._most_items = settings.limits.most_items
        self._most_waiting = settings.limits.waiting
        self._most_wait_s = settings.limits.wait_s
        self._each_s = 0.0  # of a query of late
        self._together = settings.ranking.together
        self._counts = counts
        self._waiting = deque[Waiting]()
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "ranking")
        self._busy = False

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def check(self, model: ServedModel, query: Query) -> None:
        """Raises RefusedError with the code of what is wrong."""
        if len(query.coefficients) != model.coefficients:
            cause = (
                f"this version takes {model.coefficients} coefficients, the query has "
                f"{len(query.coefficients)}"
            )
            raise refused(
                Code.WRONG_LENGTH, cause, "Make the coefficients with this version's bundle."
            )
        # false for what is not a number, too
        if not np.abs(query.coefficients).max(initial=0.0) <= LARGEST:
            raise refused(
                Code.NOT_FINITE,
                f"a coefficient is not a number of size up to {LARGEST:g}",
                "Send finite numbers.",
            )
        if not 1 <= query.k <= self._most_items:
            raise refused(
                Code.K_OUT_OF_RANGE,
                f"k is 1 to {self._most_items}",
                "Ask for a number of items in that range.",
            )
        if query.categories >> len(model.categories):
            raise refused(
                Code.UNKNOWN_CATEGORY,
                "a category that this version does not have",
                "/v1/models lists its categories.",
            )

    def require_place(self) -> None:
        """Raises RefusedError (`BUSY`): before a query is read, so that one which is refused costs
        little, and where its answer would come when nobody waits for it any more."""
        waiting = len(self._waiting)
        if waiting >= self._most_waiting or waiting * self._each_s > self._most_wait_s:
            raise busy("too many queries are waiting")

    def answer(self, model: ServedModel, query: Query) -> asyncio.Future[Best]:
        """The answer to a query that was checked. Raises RefusedError (`BUSY`)."""
        self.require_place()
        future = self._loop.create_future()
        self._waiting.append((model, query, future))
        self._call()
        return future

    def _call(self) -> None:
        """Rank what waits after this turn of the loop, unless a batch is being ranked."""
        if self._waiting and not self._busy:
            self._busy = True
            self._loop.call_soon(self._rank)

    def _rank(self) -> None:
        batch = self._batch()
        self._began_s = self._clock()
        if batch and batch[0][0].ranked.items.nbytes > _SMALL_BYTES:
            self._loop.run_in_executor(self._thread, _ranked, batch).add_done_callback(
                lambda done: self._tell(batch, done.result())
            )
        else:
            self._tell(batch, _ranked(batch))

    def _batch(self) -> list[Waiting]:
        """The longest wait, and all that can be ranked with it.

        Callers that gave up are left out."""
        batch = list[Waiting]()
        others = list[Waiting]()
        while self._waiting and len(batch) < self._together:
            one = self._waiting.popleft()
            if not one[2].done():
                (batch if not batch or one[0] is batch[0][0] else others).append(one)
        self._waiting.extendleft(reversed(others))
        return batch

    def _tell(self, batch: list[Waiting], answers: list[Best] | Exception) -> None:
        for place, (_, _, future) in enumerate(batch):
            if future.done():
                continue
            if isinstance(answers, Exception):
                future.set_exception(answers)
            else:
                future.set_result(answers[place])
        self._counts.batch(len(batch))
        if batch:
            took_s = self._clock() - self._began_s
            self._each_s += (took_s / len(batch) - self._each_s) / 8
        self._busy = False
        self._call()


def _ranked(batch: list[Waiting]) -> list[Best] | Exception:
    try:
        return batch[0][0].rank([query for _, query, _ in batch]) if batch else []
    except Exception as failure:  # every caller is told; the endpoint goes on
        return failure


def coefficients_of(numbers: list[float]) -> Float32s:
    """(B,) float32; what single precision cannot hold becomes infinite, and is refused as such."""
    exact = np.array(numbers, np.float64)
    if np.abs(exact).max(initial=0.0) <= LARGEST:
        return exact.astype(np.float32)
    with np.errstate(over="ignore"):  # takes longer than all of the rest
        return exact.astype(np.float32)
