"""Batcher of queries: what is wrong with a query is said before it costs anything; those that wait
are ranked together.

No query waits for others: what arrives while a batch is ranked is the next batch. Small catalogues
are ranked on the event loop, since a thread would cost more than the ranking; large ones in one
thread.

Counts for Prometheus: requests, times, batches, versions.

Never a coefficient, an item, an address.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fedrec.arrays import Float32s
from fedrec.operations.addresses import Address
from fedrec.operations.metrics import Endpoint, served
from fedrec.operations.party_state import Doing, PartyState
from fedrec.serving.ranking import Best, Query
from fedrec_server.serving.refusals import Code, busy, refused
from fedrec_server.serving.settings import ServingSettings
from fedrec_server.serving.store import ServedModel

# edges of histograms: from a ranking of a small catalogue to what callers give up after
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_TOGETHER = (1, 2, 4, 8, 16, 32, 64, 128)
_SMALL_BYTES = 2**23
"""Item vectors of a catalogue that is ranked on the event loop: about .3 ms a query."""
LARGEST = 1e9
"""Of a coefficient; scores stay finite in single precision."""
Waiting = tuple[ServedModel, Query, "asyncio.Future[Best]"]


class ServingCounts:
    """One registry; `protocol` is grpc or http."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        info = Gauge(
            "fedrec_info",
            "Which party this is, and its version",
            ["party", "version"],
            registry=self.registry,
        )
        info.labels("serving", version).set(1)
        seconds = Histogram(
            "fedrec_query_seconds",
            "From a query's arrival to its answer",
            ["protocol"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._seconds = {protocol: seconds.labels(protocol) for protocol in ("grpc", "http")}
        self._refused = Counter(
            "fedrec_requests_refused",
            "Requests turned away, by code",
            ["reason"],
            registry=self.registry,
        )
        self._batch = Histogram(
            "fedrec_batch_queries",
            "Queries ranked together",
            buckets=_TOGETHER,
            registry=self.registry,
        )
        self._bytes = Counter(
            "fedrec_bundle_bytes", "Bytes of bundles sent", registry=self.registry
        )
        self._versions = Gauge(
            "fedrec_model_versions", "Versions that answer", registry=self.registry
        )
        self._swaps = Counter(
            "fedrec_model_swaps", "Bundles loaded", ["result"], registry=self.registry
        )
        self.state = PartyState(self.registry, party="serving")
        self._refused.labels(Code.BUSY)
        for result in ("loaded", "failed"):
            self._swaps.labels(result)

    def answered(self, protocol: str, took_s: float) -> None:
        """One query."""
        self._seconds[protocol].observe(took_s)
        self.state.spans.answer(protocol, took_s)

    def refused(self, code: str) -> None:
        """One request turned away."""
        self._refused.labels(code).inc()

    def batch(self, size: int) -> None:
        """Queries that were ranked together."""
        self._batch.observe(size)

    def sent(self, size: int) -> None:
        """A part of a bundle."""
        self._bytes.inc(size)

    def swapped(self, result: str, versions: int) -> None:
        """A bundle was loaded, or could not be; how many versions answer now."""
        self._swaps.labels(result).inc()
        self._versions.set(versions)
        if result == "loaded":
            self.state.succeeded()
            self.state.doing(Doing.SERVING)

    def served(self, address: Address) -> Endpoint:
        """Answer GET /metrics there. Raises SettingsError."""
        return served(self.registry, address.host, address.port)


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
