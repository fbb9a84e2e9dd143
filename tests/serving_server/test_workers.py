"""Several workers of one server: one restarted, another killed, a model replaced while callers ask
over both protocols; counts and limits are those of all."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from benchmarks.serving_process import Served, Shape, random_bundle, served
from fedrec.errors import SettingsError
from fedrec.serving.bundle import FILE
from fedrec.transport.serving_api import serving_pb2 as pb
from fedrec_server.serving import workers
from fedrec_server.serving.settings import LimitsTable, validated
from tests.waiting import HANG_S, until

SHAPE = Shape(500, 16, 8)
RECOMMEND = "/fedrec.serving.v1.Recommender/Recommend"
WHOLE = ("connections", "connections_per_peer", "waiting", "downloads", "per_peer")


def test_all_workers_together_allow_no_more_than_the_limits() -> None:
    limits = LimitsTable(downloads=7)
    for number in range(1, 8):
        part = limits.divided(number)
        for name in WHOLE:
            assert 1 <= getattr(part, name) * number <= getattr(limits, name)
        assert part.per_second_per_peer * number == pytest.approx(limits.per_second_per_peer)
    with pytest.raises(SettingsError, match="8 workers"):
        limits.divided(8)


def test_memory_that_is_short_and_small_limits_mean_fewer_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 16)
    monkeypatch.setattr(workers, "free_bytes", lambda: 1e12)
    assert workers.chosen(validated({})) == 16
    assert workers.chosen(validated({"workers": 3})) == 3
    assert workers.chosen(validated({"limits": {"downloads": 2}})) == 2
    monkeypatch.setattr(workers, "free_bytes", lambda: 199 * 2.0**20)
    assert workers.chosen(validated({})) == 1


def test_counts_add_up_and_those_of_a_worker_that_ended_stay() -> None:
    told = []
    for count in (3, 4, 5):
        registry = CollectorRegistry()
        Counter("asked", "x", ["code"], registry=registry).labels("a").inc(count)
        Gauge("fedrec_memory_bytes", "x", registry=registry).set(count)
        Gauge("fedrec_phase", "x", registry=registry).set(1)
        told.append(workers.samples(registry))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in workers.merged(told[:2], told[2])
        for sample in metric.samples
    }
    assert found["asked_total", "a"] == 12
    assert found["fedrec_memory_bytes",] == 7
    assert found["fedrec_phase",] == 1


def _workers(server: Served) -> list[int]:
    said = subprocess.run(
        ["pgrep", "-f", "-P", str(server.process.pid), "spawn_main"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(pid) for pid in said.stdout.split()]


class Callers:
    """One over each protocol, who notes what was not answered, and goes on."""

    def __init__(self, server: Served) -> None:
        self.version = server.version
        self.answered = {"http": 0, "grpc": 0}
        self.failed: list[str] = []
        self._server = server
        self._over = threading.Event()
        self._threads = [threading.Thread(target=ask) for ask in (self._http, self._grpc)]
        for thread in self._threads:
            thread.start()

    def more(self) -> None:
        before = dict(self.answered)
        until(lambda: all(self.answered[k] > before[k] + 5 for k in before), "more answers")

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _http(self) -> None:
        with httpx.Client(timeout=HANG_S) as client:

            def ask() -> None:
                told = {"version": self.version, "coefficients": [0.5] * 8, "k": 10}
                answer = client.post(f"{self._server.http}/v1/recommend", json=told)
                assert answer.status_code == 200, answer.text

            self._go_on("http", ask)

    def _grpc(self) -> None:
        with grpc.insecure_channel(self._server.grpc) as channel:
            call: Any = channel.unary_unary(RECOMMEND)

            def ask() -> None:
                told = pb.RecommendRequest(
                    version=int(self.version, 16), coefficients=[0.5] * 8, k=10
                )
                call(told.SerializeToString(), wait_for_ready=True)

            self._go_on("grpc", ask)

    def _go_on(self, protocol: str, ask: Any) -> None:
        while not self._over.is_set():
            try:
                ask()
                self.answered[protocol] += 1
            except Exception as failure:
                self.failed.append(f"{protocol}: {failure}"[:300])
                time.sleep(0.05)  # a library that connects again does not do so at once


@pytest.mark.processes
@pytest.mark.slow
def test_no_query_is_refused_while_a_worker_restarts_or_a_model_is_replaced(
    tmp_path: Path,
) -> None:
    random_bundle(tmp_path / FILE, SHAPE, seed=1)
    with served(tmp_path, tmp_path, workers=2) as server:
        first = _workers(server)
        assert len(first) == 2
        callers = Callers(server)
        try:
            callers.more()
            os.kill(first[0], signal.SIGTERM)
            until(lambda: first[0] not in (now := _workers(server)) and len(now) == 2, "another")
            callers.more()
            callers.version = random_bundle(tmp_path / FILE, SHAPE, seed=2)
            until(lambda: _newest(server) == callers.version or callers.failed, "the new model")
            callers.failed.clear()  # asked for before anybody announced it
            for _ in range(5):
                callers.more()
            assert callers.failed == []
            os.kill(first[1], signal.SIGKILL)
            until(lambda: first[1] not in (now := _workers(server)) and len(now) == 2, "another")
            callers.more()
            # what was on its way to the one that was killed, or waited in its socket
            assert len(callers.failed) <= 4, callers.failed
        finally:
            callers.end()
        counted = _counted(server)
        assert 0 < counted <= sum(callers.answered.values()) + 2
        assert _counted(server) >= counted
        assert server.stop() == 0
        assert server.errors() == []


def _newest(server: Served) -> str:
    return str(httpx.get(f"{server.http}/v1/models").json()["newest"])


def _counted(server: Served) -> float:
    lines = urlopen(f"http://{server.metrics}/metrics").read().decode().splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("fedrec_query_seconds_count"))
