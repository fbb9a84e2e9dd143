"""The serving server offered more than it can answer.

An open loop: queries arrive at fixed times whether or not earlier ones were answered, at 1, 2 and 5
times the capacity, which is what 64 callers that wait for their answers get in the same run.
200,000 items of 64 over HTTP, on 1,000 connections that stay open. Meanwhile slow readers ask and
do not take their answers, slow writers send a byte of a request a second, and others connect some
hundred times a second and hang up. The server has one core and the generator another one, for the
capacity too: what the generator does for a query that is refused takes nothing from the server.
Goodput is answers within five seconds, over the capacity. The rest is refused with 429 and
Retry-After, or answered later. A query for which no connection is free is not sent. Memory is the
server's resident set. `--seconds 3600` is the hour.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.measuring import memory_mb, processor_s
from benchmarks.results import Row, Tables
from benchmarks.serving_load import Generator, Job, Line, RefusedHttpError, connected, queries
from benchmarks.serving_process import Served, Shape, random_bundle, served
from fedrec.serving.bundle import FILE

TIMES = (1, 2, 5)
DEADLINE_S = 5.0
_SLOW = 20
_ENDED = (OSError, RuntimeError)
"""By the server; uvloop raises the second one."""
_FATES = ("answered", "refused", "failed", "not sent")
_SETTINGS = ("[limits]", "waiting = 512", "connections = 1200")


@dataclass
class Bout:
    """What happened at one rate; in_time: answers within the deadline, while queries were sent."""

    done: Counter[str] = field(default_factory=Counter)
    latency_s: list[float] = field(default_factory=list)
    in_time: int = 0


def run(*, quick: bool, seconds: float = 60.0) -> Tables:
    """One row for each rate. quick: a small catalogue, a second for each."""
    shape = Shape(2_000, 16, 8) if quick else Shape(200_000)
    each_s = 1.0 if quick else seconds / len(TIMES)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, _on(cores[:1]):
        folder = Path(name)
        random_bundle(folder / FILE, shape, seed=1)
        with (
            served(folder, folder, _SETTINGS) as server,
            _on(cores[1:] or cores),
            Generator() as ask,
        ):
            job = Job("http", server.http, server.version, shape.coefficients, 64, each_s / 2)
            before_s = processor_s(server.process.pid)
            seen = ask(job)
            at_capacity_ms = (
                1e3 * (processor_s(server.process.pid) - before_s) / len(seen.latency_s)
            )
            before_mb = memory_mb(server.process.pid)
            rows = [
                _row(server, job, times, seen.per_second, each_s, before_mb)
                | {"server_ms_an_answer_at_capacity": at_capacity_ms}
                for times in TIMES
            ]
            alive = server.process.poll() is None
    return {"Overload": [row | {"server_lives": alive} for row in rows]}


@contextmanager
def _on(cores: list[int]) -> Iterator[None]:
    """Where this thread, and each process that it starts, runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _row(
    server: Served, job: Job, times: int, capacity: float, each_s: float, before_mb: float
) -> Row:
    bout = Bout()
    before_s = processor_s(server.process.pid), time.process_time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_offered(job, bout, times * capacity, each_s))
    server_s = processor_s(server.process.pid) - before_s[0]
    generator_s = time.process_time() - before_s[1]
    p50, p99 = (1e3 * np.percentile(bout.latency_s or [np.nan], (50, 99))).tolist()
    return {
        "times_capacity": times,
        "capacity_a_second": capacity,
        "offered": sum(bout.done[kind] for kind in _FATES),
        "answered_in_time": bout.in_time,
        "goodput_over_capacity": bout.in_time / each_s / capacity,
        "refused": bout.done["refused"],
        "refused_with_retry_after": bout.done["told when"],
        "not_sent": bout.done["not sent"],
        "failed": bout.done["failed"],
        "p50_ms": p50,
        "p99_ms": p99,
        "server_ms_an_answer": 1e3 * server_s / max(1, len(bout.latency_s)),
        "generator_s": generator_s,
        "memory_grown_mb": memory_mb(server.process.pid) - before_mb,
    }


class _Heard(Line):
    """A connection that also sees whether a refusal says when to come back."""

    told_when = False

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """The body of the answer. Raises RefusedHttpError."""
        self.told_when = False
        return super().ask(request)

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol.data_received`."""
        self.told_when = self.told_when or b"retry-after:" in data.lower()
        super().data_received(data)


class _Lines:
    """All connections, of which some wait for an answer."""

    def __init__(self, address: str, bout: Bout) -> None:
        self._address = address
        self._bout = bout
        self.end_s = math.inf
        self.free = list[_Heard]()
        self.running = 0

    async def more(self) -> None:
        """Another one."""
        with suppress(OSError):
            line = await connected(self._address, _Heard)
            assert isinstance(line, _Heard)
            self.free.append(line)

    def ask(self, message: bytes) -> None:
        """One query, if a connection is free; one that the server has ended is opened anew."""
        while self.free and self.free[-1].transport.is_closing():
            self.free.pop()
            self._opening = asyncio.ensure_future(self.more())
        if not self.free:
            self._bout.done["not sent"] += 1
            return
        self.running += 1
        line = self.free.pop()
        line.ask(message).add_done_callback(partial(self._told, line, time.perf_counter()))

    def _told(self, line: _Heard, began: float, answer: asyncio.Future[bytes]) -> None:
        self.running -= 1
        failure = answer.exception()
        if isinstance(failure, OSError):
            self._bout.done["failed"] += 1
            self._opening = asyncio.ensure_future(self.more())
            return
        self.free.append(line)
        if failure is None:
            now = time.perf_counter()
            self._bout.latency_s.append(now - began)
            self._bout.in_time += now - began <= DEADLINE_S and now <= self.end_s
            self._bout.done["answered"] += 1
            return
        assert isinstance(failure, RefusedHttpError), failure
        kind = "refused" if b'"busy"' in failure.body else "failed"
        self._bout.done[kind] += 1
        self._bout.done["told when"] += line.told_when


async def _offered(job: Job, bout: Bout, rate: float, seconds: float) -> None:
    """Queries at a rate."""
    messages = queries(job)
    lines = _Lines(job.address, bout)
    async with AsyncExitStack() as stack:
        for _ in range(1_000):
            await lines.more()
        for kind in (_reads_slowly, _writes_slowly, _hangs_up):
            for _ in range(_SLOW):
                stack.push_async_callback(_ended, asyncio.create_task(kind(job, messages[0])))
        begun = time.perf_counter()
        lines.end_s = begun + seconds
        number = 0
        while (now := time.perf_counter() - begun) < seconds:
            while number < now * rate:
                number += 1
                lines.ask(messages[number % len(messages)])
            await asyncio.sleep(0.002)
        while lines.running and time.perf_counter() - begun < seconds + DEADLINE_S:
            await asyncio.sleep(0.002)
        for line in lines.free:
            line.close()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _reads_slowly(job: Job, message: bytes) -> None:
    """Ask again and again, and take nothing."""
    while True:
        with suppress(*_ENDED):
            reader, writer = await asyncio.open_connection(*_place(job), limit=1)
            try:
                for _ in range(50):
                    writer.write(message)
                    await asyncio.sleep(0.5)
            finally:
                writer.close()
                del reader


async def _writes_slowly(job: Job, message: bytes) -> None:
    """A request of which one byte comes a second."""
    while True:
        with suppress(*_ENDED):
            _, writer = await asyncio.open_connection(*_place(job))
            try:
                for byte in message:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(1.0)
            finally:
                writer.close()
        await asyncio.sleep(1.0)


async def _hangs_up(job: Job, message: bytes) -> None:
    """A handshake, and nothing else."""
    while True:
        with suppress(*_ENDED):
            _, writer = await asyncio.open_connection(*_place(job))
            writer.close()
        await asyncio.sleep(0.05)


def _place(job: Job) -> tuple[str, int]:
    host, _, port = job.address.rpartition("/")[2].rpartition(":")
    return host, int(port)
