"""The load benchmark drives a real server and counts only answers; an endurance run notices what it
is there to notice."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.serving import bundle
from fedrec.serving.ranking import Exact, Query
from fedrec_simulations.bench import serving, serving_endurance
from fedrec_simulations.bench.serving_endurance import _known
from fedrec_simulations.bench.serving_load import Generator, Job, answer, message
from fedrec_simulations.bench.serving_process import Shape, random_bundle, served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SMALL = Shape(300, 8, 4)


def test_the_last_line_has_the_headlines_of_both_doors() -> None:
    program = [sys.executable, "-m", "fedrec.cli", "bench", "serving", "--quick", "--json"]
    result = json.loads(
        subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )
    for door in ("grpc", "http"):
        assert {"p50_ms", "p99_ms", "qps"} <= set(result[door])
        (found,) = result["shapes"].values()
        assert [row["callers"] for row in found[door]] == list(serving.QUICK.callers)
        assert found[door][0]["queries"] >= serving.QUICK.least
    assert found["peak_mb"] >= found["after_mb"] > found["model_mb"]
    assert "500 x 16, http" in serving.markdown(result)


def test_the_headline_is_the_best_rate_and_the_latency_of_one_caller() -> None:
    rows = [
        {"callers": n, "p50_ms": n, "p99_ms": 2.0 * n, "qps": qps}
        for n, qps in ((1, 5.0), (4, 9.0), (8, 7.0))
    ]
    assert serving.headline(rows) == {"p50_ms": 1, "p99_ms": 2.0, "qps": 9.0, "callers": 4}


@pytest.mark.parametrize("door", ["grpc", "http"])
def test_answers_that_lack_items_are_an_error_and_not_a_figure(door: str, tmp_path: Path) -> None:
    random_bundle(tmp_path / bundle.FILE, SMALL, seed=1)
    with served(tmp_path, tmp_path) as server, Generator() as ask:
        job = Job(door, getattr(server, door), server.version, SMALL.coefficients, 2, 0.1)  # type: ignore[arg-type]
        assert len(ask(job).latency_s) > 0
        for wrong in (
            {"k": SMALL.items + 1},
            {"coefficients": SMALL.coefficients + 1},
            {"version": "0" * 16},
        ):
            with pytest.raises(RunError, match="callers over"):
                ask(Job(**{**vars(job), **wrong}))
        assert server.stop() == 0
        assert not server.errors()


@pytest.mark.slow
def test_a_bout_swaps_checks_everything_and_passes() -> None:
    result = serving_endurance.run(4.0, quick=True)
    # each by itself, so that a failure says which; `passed` is all of them
    assert not result["failed_or_wrong"]
    assert not result["errors_logged"]
    assert result["exit_code"] == 0
    assert "failed" not in result["refused"]
    assert result["grown_mb"] <= result["allowed_mb"]
    assert result["passed"], result
    assert result["swaps"] >= 4
    assert {
        "grpc answers",
        "http answers",
        "grpc malformed",
        "http malformed",
        "grpc cut",
        "lines cut",
        "bundles taken",
    } <= set(result["done"])
    assert "no wrong answer" in serving_endurance.markdown(result)


def test_the_plain_ranking_that_answers_are_held_against_is_the_servers(tmp_path: Path) -> None:
    path = tmp_path / bundle.FILE
    random_bundle(path, SMALL, seed=3)
    rank = Exact(bundle.read_ranked(path))
    for known in _known(path, SMALL, seed=3):
        (best,) = rank([Query(np.array(known.coefficients, np.float32), known.k, known.categories)])
        assert (best.items.tolist(), best.scores.tolist()) == (known.items, known.scores)


def test_an_answer_that_is_changed_is_found_wrong(tmp_path: Path) -> None:
    path = tmp_path / bundle.FILE
    version = random_bundle(path, SMALL, seed=3)
    known = next(_known(path, SMALL, seed=3))
    right = json.dumps({"version": version, "items": known.items, "scores": known.scores}).encode()
    bout = serving_endurance.Bout(None, path, [], {}, 0.0, 1.0, np.random.default_rng(0))  # type: ignore[arg-type]
    serving_endurance._check(bout, "http", version, known, right)
    assert not bout.wrong
    for field in ("items", "scores"):
        changed = json.loads(right)
        changed[field][0] += 1
        serving_endurance._check(bout, "http", version, known, json.dumps(changed).encode())
    assert len(bout.wrong) == 2


def test_messages_say_the_same_over_both_doors() -> None:
    from fedrec.transport.serving_api import serving_pb2 as pb

    asked = pb.RecommendRequest.FromString(message("grpc", "00000000000000ff", [0.5, 2.0], 3, 0b10))
    assert (asked.version, list(asked.coefficients), asked.k, asked.categories) == (
        255,
        [0.5, 2.0],
        3,
        2,
    )
    head, _, body = message("http", "00000000000000ff", [0.5, 2.0], 3, 0b10, ["drama"]).partition(
        b"\r\n\r\n"
    )
    assert json.loads(body) == {
        "version": "00000000000000ff",
        "coefficients": [0.5, 2.0],
        "k": 3,
        "categories": ["drama"],
    }
    assert f"content-length: {len(body)}".encode() in head
    reply = pb.RecommendReply(version=255, items=[4], scores=[0.5]).SerializeToString()
    assert answer("grpc", reply) == answer(
        "http", b'{"version":"00000000000000ff","items":[4],"scores":[0.5]}'
    )
