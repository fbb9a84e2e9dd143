"""The serving server under everything at once.

Load, a new version every five seconds, callers that hang up, malformed messages, for `--seconds`
(60 unsaid). Callers ask the newest version or the one before, with any k and filter, and every
answer is compared with a plain NumPy ranking, to a bit; malformed queries must be refused with the
code of what is wrong; bundles that are taken whole must have the SHA-256 that the version names.
The server must live, keep no memory, log no defect, and stop with code 0. Memory: resident set,
median of the last tenth of the time less that of a tenth after it has settled, when versions have
begun to be retired. Allowed are 8 MB, what cycles that wait for the collector and a fragmented heap
move by; in a minute at the default shape a version that stays would be 2.6 MB a swap.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np

from benchmarks.measuring import memory_mb
from benchmarks.results import Row, Tables
from benchmarks.serving_load import (
    GET_MODEL,
    RECOMMEND,
    Ask,
    Door,
    RefusedHttpError,
    answer,
    connected,
    framed,
    message,
)
from benchmarks.serving_process import CATEGORIES, Served, Shape, random_bundle, served
from fedrec.numerics.segments import tie_keys
from fedrec.serving import bundle
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving.refusals import CODE_KEY, Code

MARGIN_MB = 8.0
EVERY_S = 5.0
_SETTINGS = ("[models]", "watch_s = 0.1", "kept = 3")
_QUERIES = 40
_WRONG = 7
_WAIT_S = 20.0
_SETTLED = 0.4


@dataclass(frozen=True)
class Known:
    """A query with its right answer, for one version."""

    coefficients: list[float]
    k: int
    categories: int
    items: list[int]
    scores: list[float]

    def message(self, door: Door, version: str) -> bytes:
        """Return the message as it is sent over the network."""
        names = [name for bit, name in enumerate(CATEGORIES) if self.categories >> bit & 1]
        return message(door, version, self.coefficients, self.k, self.categories, names)


@dataclass
class Bout:
    """One run: the server, bundles in the order they are put up, what is known of each, and what
    happened."""

    server: Served
    place: Path
    bundles: Sequence[Path]
    known: dict[str, list[Known]]
    end_s: float
    every_s: float
    rng: np.random.Generator
    live: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """No new requests."""
        return time.monotonic() >= self.end_s

    def drawn(self) -> tuple[str, Known]:
        """A query for the newest version that is known to answer, or for the one before."""
        version = self.live[-int(self.rng.integers(1, min(2, len(self.live)) + 1))]
        return version, self.known[version][int(self.rng.integers(_QUERIES))]

    def check(self, door: Door, version: str, known: Known, content: bytes) -> None:
        """An answer, to a bit."""
        self.done[f"{door} answers"] += 1
        if answer(door, content) != (version, known.items, known.scores):
            self.wrong.append(f"a wrong answer over {door} from {version}")


def run(*, quick: bool, seconds: float = 60.0) -> Tables:
    """One bout, `passed` above all. quick: a small catalogue, four seconds, swapped often."""
    shape, every_s = (Shape(400, 16, 8), 0.7) if quick else (Shape(), EVERY_S)
    seconds = 4.0 if quick else seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = folder / bundle.FILE
        bundles = [folder / f"{n}.safetensors" for n in range(int(seconds / every_s) + 1)]
        known = {
            random_bundle(path, shape, seed=seed): list(known_of(path, shape, seed=seed))
            for seed, path in enumerate(bundles)
        }
        shutil.copy(bundles[0], place)
        with served(folder, folder, _SETTINGS) as server:
            end_s = time.monotonic() + seconds
            rng = np.random.default_rng(0)
            bout = Bout(server, place, bundles, known, end_s, every_s, rng, [server.version])
            asyncio.run(_fight(bout))
            alive = server.process.poll() is None
            refused = _refused(server) if alive else {}
            peak_mb = memory_mb(server.process.pid, peak=True)
            exit_code = server.stop()
            errors = server.errors()
    grown_mb = _grown(bout)
    sound = alive and not exit_code and not errors and not bout.wrong and "failed" not in refused
    verdict: Row = {
        "passed": bool(sound and grown_mb <= MARGIN_MB),
        "items_x_width": shape.name,
        "seconds": seconds,
        "swaps": len(bout.live) - 1,
        "wrong_or_failed": len(bout.wrong),
        "first_wrong": "; ".join(bout.wrong[:3]) or "none",
        "errors_logged": len(errors),
        "exit_code": exit_code,
        "grown_mb": grown_mb,
        "peak_mb": peak_mb,
    }
    done: list[Row] = [{"what": what, "count": count} for what, count in sorted(bout.done.items())]
    refusals: list[Row] = [{"code": code, "count": count} for code, count in refused.items()]
    return {"Verdict": [verdict], "Done": done, "Refused": refusals}


def known_of(path: Path, shape: Shape, *, seed: int) -> Iterator[Known]:
    """Random queries with answers by a plain ranking: every score in double precision, rounded to
    float32, sorted."""
    found = bundle.read_ranked(path)
    rng = np.random.default_rng((1, seed))
    items = found.items.astype(np.float64)
    for _ in range(_QUERIES):
        coefficients = rng.standard_normal(shape.coefficients).astype(np.float32)
        k = int(rng.integers(1, 50))
        categories = int(rng.choice([0, int(rng.integers(1, 2 ** len(CATEGORIES)))]))
        u = (coefficients[None] @ found.users.linear + found.users.offset)[0]
        scores = ((items * u).sum(1) + found.bias).astype(np.float32)
        order = np.lexsort((tie_keys(np.arange(len(scores))), -scores))
        fitting = [int(j) for j in order if not categories or int(found.categories[j]) & categories]
        best = fitting[:k]
        yield Known(coefficients.tolist(), k, categories, best, scores[best].tolist())


async def _fight(bout: Bout) -> None:
    async with AsyncExitStack() as stack:
        good, bad, cut = [await stack.enter_async_context(_channel(bout)) for _ in range(3)]
        kinds: list[Callable[[], Awaitable[None]]] = [
            *[lambda: _ask(bout, "grpc", good.unary_unary(RECOMMEND))] * 4,
            *[lambda: _ask_http(bout)] * 4,
            lambda: _malformed(bout, "grpc", bad.unary_unary(RECOMMEND)),
            lambda: _malformed(bout, "http", lambda content: _once(bout, content)),
            lambda: _cut_grpc(bout, cut),
            lambda: _cut_lines(bout),
            lambda: _take(bout, bad),
            lambda: _swap(bout),
            lambda: _watch(bout),
        ]
        await asyncio.gather(*(_kept(bout, kind) for kind in kinds))


def _channel(bout: Bout) -> Any:
    """With a connection of its own: gRPC turns away some streams of a connection on which too many
    are reset, good ones too."""
    return grpc.aio.insecure_channel(
        bout.server.grpc, options=(("grpc.use_local_subchannel_pool", 1),)
    )


async def _kept(bout: Bout, kind: Callable[[], Awaitable[None]]) -> None:
    try:
        await kind()
    except Exception as failure:  # of any caller: the bout goes on and is lost
        bout.wrong.append(f"{type(failure).__name__}: {failure}"[:300])


async def _ask(bout: Bout, door: Door, ask: Ask) -> None:
    while not bout.over:
        version, known = bout.drawn()
        content = await asyncio.wait_for(ask(known.message(door, version)), _WAIT_S)
        bout.check(door, version, known, content)


async def _ask_http(bout: Bout) -> None:
    line = await connected(bout.server.http)
    await _ask(bout, "http", line.ask)
    line.close()


async def _once(bout: Bout, content: bytes) -> bytes:
    """Over a line of its own: the server ends one that carried nonsense."""
    line = await connected(bout.server.http)
    try:
        return await line.ask(content)
    finally:
        line.close()


def _wrongs(bout: Bout, door: Door) -> list[tuple[bytes, Code]]:
    version = bout.live[-1]
    numbers = bout.known[version][0].coefficients
    k = bout.known[version][0].k
    none = bout.rng.bytes(int(bout.rng.integers(1, 60)))
    return [
        (message(door, "0" * 15 + "1", numbers, k), Code.WRONG_VERSION),
        (message(door, version, numbers[1:], k), Code.WRONG_LENGTH),
        (message(door, version, numbers, 0), Code.K_OUT_OF_RANGE),
        (message(door, version, numbers, 10**6), Code.K_OUT_OF_RANGE),
        (message(door, version, numbers, k, 1 << 40, ["nothing"]), Code.UNKNOWN_CATEGORY),
        (message(door, version, [1e30, *numbers[1:]], k), Code.NOT_FINITE),
        (b"\xff" + none if door == "grpc" else framed(b"{" + none), Code.MALFORMED),
    ]


async def _malformed(bout: Bout, door: Door, ask: Ask) -> None:
    while not bout.over:
        for number in range(_WRONG):
            content, code = _wrongs(bout, door)[number]  # of the version that is newest now
            try:
                await asyncio.wait_for(ask(content), _WAIT_S)
                told = "an answer"
            except grpc.aio.AioRpcError as failure:
                told = str(dict(failure.trailing_metadata() or ()).get(CODE_KEY, failure.code()))
            except RefusedHttpError as failure:
                told = str(json.loads(failure.body).get("code"))
            bout.done[f"{door} malformed"] += 1
            if told != code:
                bout.wrong.append(f"{code.value} was answered with {told} over {door}")
        await asyncio.sleep(0.02)


async def _cut_grpc(bout: Bout, channel: Any) -> None:
    ask = channel.unary_unary(RECOMMEND)
    while not bout.over:
        version, known = bout.drawn()
        call = ask(known.message("grpc", version), timeout=_WAIT_S)
        await asyncio.sleep(bout.rng.uniform(0, 0.004))
        call.cancel()
        bout.done["grpc cut"] += 1


async def _cut_lines(bout: Bout) -> None:
    """Part of a request, all of it, or anything, over a line that is then reset, at either door."""
    places = [bout.server.http, f"http://{bout.server.grpc}"]
    while not bout.over:
        line = await connected(places[int(bout.rng.integers(2))])
        version, known = bout.drawn()
        whole = known.message("http", version)
        sent = [
            whole[: int(bout.rng.integers(1, len(whole)))],
            whole,
            bout.rng.bytes(100),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + whole[:50],
        ]
        line.transport.write(sent[int(bout.rng.integers(len(sent)))])
        await asyncio.sleep(bout.rng.uniform(0, 0.004))
        line.transport.abort()
        bout.done["lines cut"] += 1


async def _take(bout: Bout, channel: Any) -> None:
    take = channel.unary_stream(GET_MODEL)
    while not bout.over:
        version = bout.live[-1]
        whole = bool(bout.rng.integers(2))
        digest = hashlib.sha256()
        asked = pb.GetModelRequest(version=int(version, 16)).SerializeToString()
        call = take(asked, timeout=_WAIT_S)
        async for piece in call:
            digest.update(pb.ModelPiece.FromString(piece).data)
            if not whole:
                call.cancel()
                break
        if whole and digest.hexdigest()[:16] != version:
            bout.wrong.append(f"the bundle of {version} has other bytes")
        bout.done["bundles taken" if whole else "bundles cut"] += 1
        await asyncio.sleep(0.2)


async def _swap(bout: Bout) -> None:
    line = await connected(bout.server.http)
    begin = time.monotonic()
    for number, path in enumerate(bout.bundles[1:], 1):
        await asyncio.sleep(max(0.0, begin + number * bout.every_s - time.monotonic()))
        if bout.over:
            break
        beside = bout.place.with_suffix(".next")
        shutil.copy(path, beside)
        os.replace(beside, bout.place)
        expected = list(bout.known)[number]
        late_s = time.monotonic() + _WAIT_S
        while await _newest(line) != expected:
            if time.monotonic() > late_s:
                raise TimeoutError(f"version {expected} is not served after {_WAIT_S:g} s")
            await asyncio.sleep(0.02)
        bout.live.append(expected)
    line.close()


async def _newest(line: Any) -> str:
    asked = line.ask(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return str(json.loads(await asyncio.wait_for(asked, _WAIT_S))["newest"])


async def _watch(bout: Bout) -> None:
    while not bout.over:
        bout.memory_mb.append(memory_mb(bout.server.process.pid))
        await asyncio.sleep(0.1)


def _grown(bout: Bout) -> float:
    """MB, as the module says."""
    seen = bout.memory_mb
    tenth = max(1, len(seen) // 10)
    settled = int(_SETTLED * len(seen))
    return statistics.median(seen[-tenth:]) - statistics.median(seen[settled : settled + tenth])


def _refused(server: Served) -> dict[str, float]:
    """By code, as the server counted."""
    lines = httpx2.get(f"http://{server.metrics}/metrics").text.splitlines()
    found = [line.split('"') for line in lines if line.startswith("fedrec_requests_refused_total{")]
    return {parts[1]: float(parts[2].strip("} ")) for parts in found}
