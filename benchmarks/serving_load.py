"""The load generator of serving: callers that each ask again as soon as they are
answered, in a process of their own.

Over gRPC all callers share a connection, as stubs of one program do; over HTTP/1.1 each has its
own. Queries are made before the clock starts and answers read after it has stopped: an answer that
cannot be read, or lacks items, is an error and not a figure.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from fedrec.arrays import Float64s
from fedrec.errors import RunError
from fedrec.transport.serving_api import serving_pb2 as pb

Door = Literal["grpc", "http"]
Ask = Callable[[bytes], Awaitable[bytes]]

RECOMMEND, GET_MODEL = (
    f"/fedrec.serving.v1.Recommender/{name}" for name in ("Recommend", "GetModel")
)
_QUERIES = 256
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Job:
    """What the generator does: `callers` for `seconds` and at least `least` queries, after
    `warm_up` queries of each that do not count."""

    door: Door
    address: str
    version: str
    coefficients: int
    callers: int
    seconds: float
    least: int = 0
    warm_up: int = 20
    k: int = 10


@dataclass(frozen=True)
class Seen:
    """latency_s: of every query that counts; took_s: from the first question to the last answer;
    cpu_s: the generator's own."""

    latency_s: Float64s
    took_s: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        """Queries."""
        return len(self.latency_s) / self.took_s


class Generator:
    """A process that does one job after another."""

    def __enter__(self) -> Generator:
        self._here, there = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_work, args=(there,), daemon=True)
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def __call__(self, job: Job) -> Seen:
        """Raises RunError where a query failed."""
        self._here.send(job)
        seen = self._here.recv()
        if isinstance(seen, str):
            raise RunError(
                f"{job.callers} callers over {job.door}: {seen}", "The server's log says more."
            )
        assert isinstance(seen, Seen)
        return seen


def _work(there: Any) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while True:
            job = there.recv()
            try:
                there.send(runner.run(_done(job)))
            except Exception as failure:
                there.send(f"{type(failure).__name__}: {failure}"[:500])


async def _done(job: Job) -> Seen:
    messages = queries(job)
    answers = list[bytes]()
    latency = list[float]()
    async with AsyncExitStack() as stack:
        asks = await _asks(job, stack)
        await asyncio.gather(
            *(_some(ask, messages, number, job.warm_up) for number, ask in enumerate(asks))
        )
        start = time.perf_counter()
        cpu = time.process_time()
        each = -(-job.least // job.callers)
        end = start + job.seconds

        async def caller(ask: Ask, place: int) -> None:
            done = 0
            now = time.perf_counter()
            while done < each or now < end:
                answers.append(await ask(messages[(place + done) % _QUERIES]))
                before = now
                now = time.perf_counter()
                latency.append(now - before)
                done += 1

        await asyncio.gather(*(caller(ask, number * 7) for number, ask in enumerate(asks)))
        took = time.perf_counter() - start
        cpu = time.process_time() - cpu
    _require(job, answers)
    return Seen(np.array(latency), took, cpu)


async def _some(ask: Ask, messages: list[bytes], place: int, count: int) -> None:
    for number in range(count):
        await ask(messages[(place + number) % _QUERIES])


async def _asks(job: Job, stack: AsyncExitStack) -> list[Ask]:
    """One for each caller."""
    if job.door == "grpc":
        import grpc

        channel = await stack.enter_async_context(grpc.aio.insecure_channel(job.address))
        return [channel.unary_unary(RECOMMEND)] * job.callers
    lines = [await connected(job.address) for _ in range(job.callers)]
    for line in lines:
        stack.callback(line.close)
    return [line.ask for line in lines]


def queries(job: Job) -> list[bytes]:
    """Messages of standard normal coefficients, as they lie on the line."""
    numbers = (
        np.random.default_rng(0)
        .standard_normal((_QUERIES, job.coefficients))
        .astype(np.float32)
        .tolist()
    )
    return [message(job.door, job.version, row, job.k) for row in numbers]


def message(
    door: Door,
    version: str,
    coefficients: list[float],
    k: int,
    categories: int = 0,
    names: list[str] | None = None,
) -> bytes:
    """One query. categories: bits, for gRPC; their names, for HTTP."""
    if door == "grpc":
        asked = pb.RecommendRequest(
            version=int(version, 16), coefficients=coefficients, k=k, categories=categories
        )
        return asked.SerializeToString()
    body = json.dumps(
        {"version": version, "coefficients": coefficients, "k": k}
        | ({"categories": names} if names else {})
    ).encode()
    return framed(body)


def framed(body: bytes) -> bytes:
    """A body as an HTTP request."""
    head = (
        "POST /v1/recommend HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        f"application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def answer(door: Door, content: bytes) -> tuple[str, list[int], list[float]]:
    """Version, rows and scores of an answer."""
    if door == "grpc":
        reply = pb.RecommendReply.FromString(content)
        return f"{reply.version:016x}", list(reply.items), list(reply.scores)
    read = json.loads(content)
    return read["version"], read["items"], read["scores"]


def _require(job: Job, answers: list[bytes]) -> None:
    for content in answers:
        version, items, scores = answer(job.door, content)
        if (version, len(items), len(scores)) != (job.version, job.k, job.k):
            raise ValueError(f"an answer of version {version} with {len(items)} items")


class RefusedHttpError(Exception):
    """An answer with another status than 200; `body` as it came."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}: {body[:200]!r}")
        self.body = body


class Line(asyncio.Protocol):
    """One HTTP/1.1 connection that carries one request at a time: only what a benchmark needs, so
    that it measures the server."""

    def __init__(self) -> None:
        self._got = b""
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        """Implement `asyncio.Protocol.connection_made`."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol.data_received`."""
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found or self._answer is None:
            return
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        if len(body) < size:
            return
        waiting = self._answer
        self._got = b""
        self._answer = None
        if waiting.done():
            return
        if (status := int(head.split(b" ", 2)[1])) == 200:
            waiting.set_result(body)
        else:
            waiting.set_exception(RefusedHttpError(status, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement `asyncio.Protocol.connection_lost`."""
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server hung up"))

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """The body of the answer. Raises RefusedHttpError."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def close(self) -> None:
        """End it; `abort` would cut it."""
        self.transport.close()


async def connected(url: str, kind: type[Line] = Line) -> Line:
    """A line to a server."""
    place = urlsplit(url)
    _, line = await asyncio.get_running_loop().create_connection(
        kind, place.hostname or "", place.port or 80
    )
    return line
