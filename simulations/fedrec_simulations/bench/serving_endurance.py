"""A server under everything at once: load, versions swapped, callers that hang up, messages that
are none. Every answer is checked.

Each line: a caller; what it does; what it must see.

- asks: the newest version or the one before, any k and filter; a plain NumPy ranking's answer, to a
  bit
- malformed: wrong version, length, k, category; not finite; no message at all; the code of what is
  wrong
- cuts: hangs up within a request or before its answer, sends what is no message; nothing
- takes: the newest bundle over gRPC, some of it or all; bytes of the SHA-256 the version names

The server must live, keep no memory, log no defect, and stop with code 0. Memory: resident set,
median of the last tenth of the time less that of a tenth after it has settled, when versions have
begun to be retired. `MARGIN_MB` is what cycles that wait for the collector and a fragmented heap
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
import numpy as np

from fedrec.serving import bundle
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving.refusals import CODE_KEY, Code
from fedrec_simulations.bench.serving_load import (
    GET_MODEL,
    RECOMMEND,
    Door,
    RefusedHttpError,
    answer,
    connected,
    framed,
    message,
)
from fedrec_simulations.bench.serving_process import (
    CATEGORIES,
    Served,
    Shape,
    random_bundle,
    served,
)

MARGIN_MB, EVERY_S = 8.0, 5.0
_SETTINGS = ("[models]", "watch_s = 0.1", "kept = 2")
_QUERIES, _WAIT_S, _SETTLED = 40, 20.0, 0.4


@dataclass(frozen=True)
class Known:
    """A query with its right answer, for one version."""

    coefficients: list[float]
    k: int
    categories: int
    items: list[int]
    scores: list[float]

    def message(self, door: Door, version: str) -> bytes:
        """As it lies on the line."""
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
    memory_mb: list[tuple[float, float]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """No new requests."""
        return time.monotonic() >= self.end_s


def run(seconds: float, *, quick: bool = False) -> dict[str, Any]:
    """One bout as a JSON-able dict, `passed` above all. quick: a small catalogue, swapped often."""
    shape, every_s = (Shape(400, 16, 8), seconds / 6) if quick else (Shape(), EVERY_S)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place, bundles = (
            folder / bundle.FILE,
            [folder / f"{number}.safetensors" for number in range(int(seconds / every_s) + 1)],
        )
        known = {
            random_bundle(path, shape, seed=seed): list(_known(path, shape, seed=seed))
            for seed, path in enumerate(bundles)
        }
        shutil.copy(bundles[0], place)
        with served(folder, folder, _SETTINGS) as server:
            bout = Bout(
                server,
                place,
                bundles,
                known,
                time.monotonic() + seconds,
                every_s,
                np.random.default_rng(0),
                [server.version],
            )
            asyncio.run(_fight(bout))
            alive, refused = (
                server.process.poll() is None,
                _refused(server) if server.process.poll() is None else {},
            )
            peak_mb, exit_code, errors = server.memory_mb("VmHWM"), server.stop(), server.errors()
    grown_mb, allowed_mb = _grown(bout), MARGIN_MB
    sound = alive and not exit_code and not errors and not bout.wrong and "failed" not in refused
    return {
        "passed": bool(sound and grown_mb <= allowed_mb),
        "seconds": seconds,
        "shape": shape.name,
        "swaps": len(bout.live) - 1,
        "done": dict(sorted(bout.done.items())),
        "failed_or_wrong": bout.wrong[:20],
        "errors_logged": errors[:5],
        "exit_code": exit_code,
        "refused": refused,
        "grown_mb": grown_mb,
        "allowed_mb": allowed_mb,
        "peak_mb": peak_mb,
    }


def _known(path: Path, shape: Shape, *, seed: int) -> Iterator[Known]:
    """Random queries with answers by a plain ranking: every score in double precision, rounded to
    float32, sorted, lower rows first."""
    found, rng = bundle.read_ranked(path), np.random.default_rng((1, seed))
    items, users = found.items.astype(np.float64), found.users
    for _ in range(_QUERIES):
        coefficients = rng.standard_normal(shape.coefficients).astype(np.float32)
        k, categories = (
            int(rng.integers(1, 50)),
            int(rng.choice([0, int(rng.integers(1, 2 ** len(CATEGORIES)))])),
        )
        u = (coefficients[None] @ users.linear + users.offset)[0]
        scores = ((items * u).sum(1) + found.bias).astype(np.float32)
        order = np.argsort(-scores, kind="stable")
        best = [int(j) for j in order if not categories or int(found.categories[j]) & categories][
            :k
        ]
        yield Known(coefficients.tolist(), k, categories, best, scores[best].tolist())


async def _fight(bout: Bout) -> None:
    async with AsyncExitStack() as stack:
        good, bad, cut = [await stack.enter_async_context(_channel(bout)) for _ in range(3)]
        kinds: list[Callable[[], Awaitable[None]]] = [
            *[lambda: _ask_grpc(bout, good)] * 4,
            *[lambda: _ask_http(bout)] * 4,
            lambda: _malformed_grpc(bout, bad),
            lambda: _malformed_http(bout),
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


def _drawn(bout: Bout) -> tuple[str, Known]:
    """A query for the newest version that is known to answer, or for the one before."""
    version = bout.live[-int(bout.rng.integers(1, min(2, len(bout.live)) + 1))]
    return version, bout.known[version][int(bout.rng.integers(_QUERIES))]


async def _ask_grpc(bout: Bout, channel: Any) -> None:
    ask = channel.unary_unary(RECOMMEND)
    while not bout.over:
        version, known = _drawn(bout)
        _check(
            bout, "grpc", version, known, await ask(known.message("grpc", version), timeout=_WAIT_S)
        )


async def _ask_http(bout: Bout) -> None:
    line = await connected(bout.server.http)
    while not bout.over:
        version, known = _drawn(bout)
        _check(
            bout,
            "http",
            version,
            known,
            await asyncio.wait_for(line.ask(known.message("http", version)), _WAIT_S),
        )
    line.close()


def _check(bout: Bout, door: Door, version: str, known: Known, content: bytes) -> None:
    bout.done[f"{door} answers"] += 1
    if answer(door, content) != (version, known.items, known.scores):
        bout.wrong.append(f"a wrong answer over {door} from {version}")


def _wrongs(bout: Bout, door: Door) -> list[tuple[bytes, Code]]:
    version, known = bout.live[-1], bout.known[bout.live[-1]][0]
    numbers, k = known.coefficients, known.k
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


async def _malformed_grpc(bout: Bout, channel: Any) -> None:
    ask = channel.unary_unary(RECOMMEND)
    while not bout.over:
        for content, code in _wrongs(bout, "grpc"):
            try:
                await ask(content, timeout=_WAIT_S)
                told = "an answer"
            except grpc.aio.AioRpcError as failure:
                told = str(dict(failure.trailing_metadata() or ()).get(CODE_KEY, failure.code()))
            _expect(bout, "grpc", told, code)
        await asyncio.sleep(0.02)


async def _malformed_http(bout: Bout) -> None:
    while not bout.over:
        for content, code in _wrongs(bout, "http"):
            line = await connected(bout.server.http)
            try:
                await asyncio.wait_for(line.ask(content), _WAIT_S)
                told = "an answer"
            except RefusedHttpError as failure:
                told = str(json.loads(failure.body).get("code"))
            line.close()
            _expect(bout, "http", told, code)
        await asyncio.sleep(0.02)


def _expect(bout: Bout, door: Door, told: str, code: Code) -> None:
    bout.done[f"{door} malformed"] += 1
    if told != code:
        bout.wrong.append(f"{code.value} was answered with {told} over {door}")


async def _cut_grpc(bout: Bout, channel: Any) -> None:
    ask = channel.unary_unary(RECOMMEND)
    while not bout.over:
        version, known = _drawn(bout)
        call = ask(known.message("grpc", version), timeout=_WAIT_S)
        await asyncio.sleep(bout.rng.uniform(0, 0.004))
        call.cancel()
        bout.done["grpc cut"] += 1


async def _cut_lines(bout: Bout) -> None:
    """Part of a request, all of it, or anything, over a line that is then reset, at either door."""
    places = [bout.server.http, f"http://{bout.server.grpc}"]
    while not bout.over:
        line = await connected(places[int(bout.rng.integers(2))])
        version, known = _drawn(bout)
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
        version, whole = bout.live[-1], bool(bout.rng.integers(2))
        call, digest = (
            take(pb.GetModelRequest(version=int(version, 16)).SerializeToString(), timeout=_WAIT_S),
            hashlib.sha256(),
        )
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
        expected, late_s = list(bout.known)[number], time.monotonic() + _WAIT_S
        while await _newest(line) != expected:
            if time.monotonic() > late_s:
                raise TimeoutError(f"version {expected} is not served after {_WAIT_S:g} s")
            await asyncio.sleep(0.02)
        bout.live.append(expected)
    line.close()


async def _newest(line: Any) -> str:
    content = await asyncio.wait_for(
        line.ask(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"), _WAIT_S
    )
    return str(json.loads(content)["newest"])


async def _watch(bout: Bout) -> None:
    while not bout.over:
        bout.memory_mb.append((time.monotonic(), bout.server.memory_mb()))
        await asyncio.sleep(0.1)


def _grown(bout: Bout) -> float:
    """MB, as the module says."""
    seen = [mb for _, mb in bout.memory_mb]
    tenth, settled = max(1, len(seen) // 10), int(_SETTLED * len(seen))
    return statistics.median(seen[-tenth:]) - statistics.median(seen[settled : settled + tenth])


def _refused(server: Served) -> dict[str, float]:
    """By code, as the server counted."""
    import httpx

    lines = httpx.get(f"{server.http}/metrics").text.splitlines()
    found = [line.split('"') for line in lines if line.startswith("fedrec_requests_refused_total{")]
    return {parts[1]: float(parts[2].strip("} ")) for parts in found}


def markdown(result: dict[str, Any]) -> str:
    """In words."""
    done = ", ".join(f"{count:,} {name}" for name, count in result["done"].items())
    verdict = (
        "no wrong answer, no failed request, no crash, no leak"
        if result["passed"]
        else "NOT PASSED"
    )
    return (
        f"{result['seconds']:g} seconds at {result['shape']}, {result['swaps']} swaps of the "
        f"version: {done}. Result: {verdict}; "
        f"memory grew by {result['grown_mb']:.1f} MB after it had settled (allowed: "
        f"{result['allowed_mb']:g})."
    )
