"""The serving server offered more than it can answer.

An open loop: queries arrive at fixed times whether or not earlier ones were answered, at 1, 2 and 5
times the capacity, which is what 64 callers that wait for their answers get in the same run.
200,000 items of 64 over HTTP, on 1,000 connections that stay open. Meanwhile slow readers ask and
do not take their answers, and slow writers send a byte of a request a second. Goodput is answers
within five seconds, over the capacity. The rest is refused with 429 and Retry-After, or answered
later. A query for which no connection is free is not sent. Memory is the server's resident set.
`--seconds 3600` is the hour.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.measuring import memory_mb
from benchmarks.results import Row, Tables
from benchmarks.serving_load import Generator, Job, Line, RefusedHttpError, connected, queries
from benchmarks.serving_process import Served, Shape, random_bundle, served
from fedrec.serving.bundle import FILE

TIMES = (1, 2, 5)
DEADLINE_S = 5.0
_SLOW = 20
_FATES = ("answered", "refused", "failed", "not sent")
_SETTINGS = ("[limits]", "waiting = 512", "connections = 1200")


@dataclass
class Bout:
    """What happened at one rate."""

    done: Counter[str] = field(default_factory=Counter)
    latency_s: list[float] = field(default_factory=list)


def run(*, quick: bool, seconds: float = 60.0) -> Tables:
    """One row for each rate. quick: a small catalogue, a second for each."""
    shape = Shape(2_000, 16, 8) if quick else Shape(200_000)
    each_s = 1.0 if quick else seconds / len(TIMES)
    with tempfile.TemporaryDirectory() as name, Generator() as ask:
        folder = Path(name)
        random_bundle(folder / FILE, shape, seed=1)
        with served(folder, folder, _SETTINGS) as server:
            job = Job("http", server.http, server.version, shape.coefficients, 64, each_s / 4)
            capacity = ask(job).per_second
            before_mb = memory_mb(server.process.pid)
            rows = [_row(server, job, times, capacity, each_s, before_mb) for times in TIMES]
            alive = server.process.poll() is None
    return {"Overload": [row | {"server_lives": alive} for row in rows]}


def _row(
    server: Served, job: Job, times: int, capacity: float, each_s: float, before_mb: float
) -> Row:
    bout = Bout()
    took_s = asyncio.run(_offered(server, job, bout, times * capacity, each_s))
    late = sum(latency > DEADLINE_S for latency in bout.latency_s)
    in_time = len(bout.latency_s) - late
    p50, p99 = (1e3 * np.percentile(bout.latency_s or [np.nan], (50, 99))).tolist()
    return {
        "times_capacity": times,
        "capacity_a_second": capacity,
        "offered": sum(bout.done[kind] for kind in _FATES),
        "answered_in_time": in_time,
        "goodput_over_capacity": in_time / took_s / capacity,
        "refused": bout.done["refused"],
        "refused_with_retry_after": bout.done["told when"],
        "not_sent": bout.done["not sent"],
        "failed": bout.done["failed"],
        "p50_ms": p50,
        "p99_ms": p99,
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


async def _offered(server: Served, job: Job, bout: Bout, rate: float, seconds: float) -> float:
    """Queries at a rate; seconds from the first to the last answer."""
    messages = queries(job)
    free = list[Line]()
    running = set[asyncio.Task[None]]()
    async with AsyncExitStack() as stack:
        for _ in range(1_000):
            free.append(await connected(job.address, _Heard))
        for kind in (_reads_slowly, _writes_slowly):
            for _ in range(_SLOW):
                stack.push_async_callback(_ended, asyncio.create_task(kind(job, messages[0])))
        begun = time.perf_counter()
        number = 0
        while (now := time.perf_counter() - begun) < seconds:
            while number < now * rate:
                number += 1
                if not free:
                    bout.done["not sent"] += 1
                    continue
                line = free.pop()
                task = asyncio.create_task(
                    _asked(bout, line, messages[number % len(messages)], free, job.address)
                )
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(0.002)
        if running:
            await asyncio.wait(running, timeout=4 * DEADLINE_S)
        took = time.perf_counter() - begun
        for line in free:
            line.close()
    return min(took, seconds + DEADLINE_S)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _asked(bout: Bout, line: Line, message: bytes, free: list[Line], address: str) -> None:
    began = time.perf_counter()
    try:
        await line.ask(message)
        bout.latency_s.append(time.perf_counter() - began)
        bout.done["answered"] += 1
    except RefusedHttpError as refusal:
        kind = "refused" if b'"busy"' in refusal.body else "failed"
        bout.done[kind] += 1
        bout.done["told when"] += isinstance(line, _Heard) and line.told_when
    except OSError:
        bout.done["failed"] += 1
        with suppress(OSError):
            line = await connected(address, _Heard)
    free.append(line)


async def _reads_slowly(job: Job, message: bytes) -> None:
    """Ask again and again, and take nothing."""
    place = job.address.rpartition("/")[2]
    host, _, port = place.rpartition(":")
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port), limit=1)
            try:
                for _ in range(50):
                    writer.write(message)
                    await asyncio.sleep(0.5)
            finally:
                writer.close()
                del reader


async def _writes_slowly(job: Job, message: bytes) -> None:
    """A request of which one byte comes a second."""
    place = job.address.rpartition("/")[2]
    host, _, port = place.rpartition(":")
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            try:
                for byte in message:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(1.0)
            finally:
                writer.close()
        await asyncio.sleep(1.0)
