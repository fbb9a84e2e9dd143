"""A real server process: swapped, hung up on, lied to and told to stop under load; no wrong answer,
no lost answer, no leak."""

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest

from fedrec.serving import bundle
from fedrec.transport.serving_api import serving_pb2 as pb
from tests.serving_server.conftest import B, planted, reference
from tests.waiting import HANG_S, until, with_more_time

pytestmark = pytest.mark.slow

SWAPS = 8
ANSWERS = 15
RECOMMEND = "/fedrec.serving.v1.Recommender/Recommend"


class Process:
    def __init__(self, folder: Path, *, watch_s: float = 0.05, **limits: float) -> None:
        lines = [
            'grpc = "127.0.0.1:0"',
            'http = "127.0.0.1:0"',
            f'state = "{folder}"',
            "[models]",
            f"watch_s = {watch_s}",
            "kept = 10",
            "[limits]",
        ]
        (folder / "serving.toml").write_text(
            "\n".join(lines + [f"{name} = {value}" for name, value in limits.items()])
        )
        program = [
            sys.executable,
            "-m",
            "fedrec.cli",
            "serve",
            str(folder),
            "--settings",
            str(folder / "serving.toml"),
        ]
        self.log = folder / "stderr"
        with open(self.log, "wb") as errors:
            self.child = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.child.stdout
        told = dict(self.child.stdout.readline().split() for _ in range(3))
        assert set(told) == {"model", "grpc", "http"}, self.log.read_text()
        self.grpc = told["grpc"]
        self.http = told["http"]

    @property
    def resident(self) -> int:
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        if self.child.stdout:
            self.child.stdout.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started = list[Process]()

    def start(**limits: float) -> Process:
        started.append(Process(tmp_path, **limits))
        return started[-1]

    yield start
    for one in started:
        one.end()


def request(version: str, coefficients: list[float]) -> bytes:
    return pb.RecommendRequest(
        version=int(version, 16), coefficients=coefficients, k=5
    ).SerializeToString()


class Load:
    """Threads that ask until they are told to stop; what one of them finds wrong is kept."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.wrong = list[str]()
        self.answers = 0
        self._threads = list[threading.Thread]()

    def add(self, ask: Callable[[random.Random], None], *, seed: int) -> None:
        def work() -> None:
            rng = random.Random(seed)
            while not self.over.is_set():
                try:
                    ask(rng)
                    self.answers += 1
                except Exception as failure:
                    self.wrong.append(repr(failure)[:300])
                    return

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def end(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(HANG_S)


def hang_up(address: tuple[str, int], rng: random.Random) -> None:
    """Part of a request over a line that is then cut, or what is no request at all."""
    whole = (
        b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: 400\r\n\r\n"
        + b'{"version": "'
        + b"0" * 300
    )
    with socket.create_connection(address, timeout=HANG_S) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.sendall(
            rng.choice(
                [
                    whole[: rng.randrange(1, len(whole))],
                    rng.randbytes(200),
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50),
                ]
            )
        )
    time.sleep(0.002)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_swaps_under_load_lose_no_request_and_give_no_wrong_answer(
    process: Callable[..., Process], tmp_path: Path
) -> None:
    path = tmp_path / bundle.FILE
    other = tmp_path / "other"
    versions = list[str]()
    expected = dict[str, list[tuple[list[float], Any]]]()
    numbers = np.random.default_rng(1).standard_normal((20, B)).astype(np.float32).tolist()
    for seed in range(3):
        version = planted(other, seed=seed)
        expected[version] = [(row, reference(bundle.read_ranked(other), row, 5)) for row in numbers]
    versions.append(planted(path, seed=0))
    server = process()
    load = Load()
    host, port = server.http.removeprefix("http://").split(":")
    channel = grpc.insecure_channel(server.grpc)
    http = httpx2.Client(base_url=server.http, timeout=HANG_S)

    def over_grpc(rng: random.Random) -> None:
        version = rng.choice(versions)
        row, right = rng.choice(expected[version])
        reply = pb.RecommendReply.FromString(
            channel.unary_unary(RECOMMEND)(request(version, row), timeout=HANG_S)
        )
        assert (list(reply.items), list(reply.scores)) == right

    def over_http(rng: random.Random) -> None:
        version = rng.choice(versions)
        row, right = rng.choice(expected[version])
        told = http.post(
            "/v1/recommend", content=json.dumps({"version": version, "coefficients": row, "k": 5})
        ).json()
        assert (told["items"], told["scores"]) == right, told

    def malformed(rng: random.Random) -> None:
        try:
            channel.unary_unary(RECOMMEND)(rng.randbytes(rng.randrange(1, 60)), timeout=HANG_S)
        except grpc.RpcError as failure:
            assert failure.code() in {  # noqa: PT017
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.FAILED_PRECONDITION,
            }, failure

    try:
        for seed, ask in enumerate([over_grpc, over_http, malformed]):
            load.add(ask, seed=seed)
        load.add(lambda rng: hang_up((host, int(port)), rng), seed=8)
        load.add(
            lambda rng: hang_up((server.grpc.split(":")[0], int(server.grpc.split(":")[1])), rng),
            seed=9,
        )
        for seed in range(1, SWAPS + 1):
            version = planted(path, seed=seed % 3)
            until(
                lambda version=version: http.get("/v1/models").json()["newest"] == version,
                "the new bundle is taken",
            )
            versions.append(version)
            enough = load.answers + ANSWERS
            until(
                lambda enough=enough: load.answers >= enough or load.wrong, "answers after the swap"
            )
    finally:
        load.end()
        channel.close()
        http.close()
    assert not load.wrong
    assert server.child.poll() is None
    assert '"level":"error"' not in server.log.read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_thousands_of_requests_leave_no_memory_behind(
    process: Callable[..., Process], tmp_path: Path
) -> None:
    version = planted(tmp_path / bundle.FILE, m=2_000)
    server = process()
    with (
        grpc.insecure_channel(server.grpc) as channel,
        httpx2.Client(base_url=server.http, timeout=HANG_S) as http,
    ):
        ask = channel.unary_unary(RECOMMEND)
        good = request(version, [1.0] * B)
        bad = request(version, [1.0])
        content = json.dumps({"version": version, "coefficients": [1.0] * B, "k": 5})

        def some() -> None:
            for _ in range(400):
                ask(good)
                ask.future(good).cancel()
                http.post("/v1/recommend", content=content)
                http.post("/v1/recommend", content=content[:-4])
                with pytest.raises(grpc.RpcError):
                    ask(bad)

        some()
        before = server.resident
        for _ in range(3):
            some()
    # 6,000 requests; a leak of one body each would be .9 MB over HTTP, one of a task and its frames
    # 12 MB
    assert server.resident - before < 6 * 2**20


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_server_that_is_told_to_stop_answers_what_it_has_begun(
    process: Callable[..., Process], tmp_path: Path
) -> None:
    def attempt(notice_s: float) -> None:
        version = planted(tmp_path / bundle.FILE)
        server = process(notice_s=notice_s, grace_s=HANG_S, request_s=HANG_S)
        body = json.dumps({"version": version, "coefficients": [1.0] * B, "k": 5}).encode()
        host, port = server.http.removeprefix("http://").split(":")
        assert json.loads((tmp_path / "serving.json").read_text())["pid"] == server.child.pid
        with (
            grpc.insecure_channel(server.grpc) as channel,
            httpx2.Client(base_url=server.http, timeout=HANG_S) as http,
            socket.create_connection((host, int(port))) as half,
        ):
            channel.unary_unary(RECOMMEND)(request(version, [1.0] * B), timeout=HANG_S)
            half.sendall(
                b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
                + body[:10]
            )
            server.child.send_signal(signal.SIGTERM)
            until(lambda: http.get("/health/ready").status_code != 200, "it is not ready any more")
            # not ready, and still answering
            assert http.post("/v1/recommend", content=body).status_code == 200
            assert channel.unary_unary(RECOMMEND)(request(version, [1.0] * B), timeout=HANG_S)
            half.sendall(body[10:])
            assert half.recv(12) == b"HTTP/1.1 200"
            assert server.child.wait(HANG_S) == 0
            with pytest.raises(grpc.RpcError) as failure:
                channel.unary_unary(RECOMMEND)(request(version, [1.0] * B), timeout=HANG_S)
            assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not (tmp_path / "serving.json").exists()
        assert server.log.read_text().splitlines()[-1].endswith('"event":"stopped"}')

    with_more_time(attempt, 1.0, 10.0, 60.0)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals")
def test_hangup_makes_it_look_at_once(process: Callable[..., Process], tmp_path: Path) -> None:
    planted(tmp_path / bundle.FILE)
    server = process(watch_s=0)
    version = planted(tmp_path / bundle.FILE, seed=2)
    server.child.send_signal(signal.SIGHUP)
    until(
        lambda: httpx2.get(f"{server.http}/v1/models", timeout=HANG_S).json()["newest"] == version,
        "the new bundle is taken",
    )


def test_a_metrics_address_that_is_taken_ends_serving_with_its_cause_alone(tmp_path: Path) -> None:
    """Nothing listens before all addresses are had, so that nothing is left to stop."""
    planted(tmp_path / "serving.safetensors")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = tmp_path / "serving.toml"
        settings.write_text(
            'grpc = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
            f'metrics = "127.0.0.1:{taken.getsockname()[1]}"\n'
        )
        program = [sys.executable, "-m", "fedrec.cli", "serve", str(tmp_path)]
        done = subprocess.run(
            [*program, "--settings", str(settings)], capture_output=True, text=True, timeout=HANG_S
        )
    assert done.returncode == 2, done.stderr
    assert "metrics on 127.0.0.1" in done.stderr
    assert "Exception" not in done.stderr
    assert "listening" not in done.stdout
