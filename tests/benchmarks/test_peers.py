"""What stands beside ours computes the same, and what watches a server notices what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import serving_endurance
from benchmarks.serving_load import Generator, Job
from benchmarks.serving_process import Shape, random_bundle, served
from fedrec.encoders import items
from fedrec.encoders.items import EncoderParameters
from fedrec.errors import RunError
from fedrec.serving import bundle
from fedrec.serving.ranking import Exact, Query

SMALL = Shape(300, 8, 4)


@pytest.mark.slow
def test_the_peer_of_opacus_computes_the_same_embeddings_and_takes_a_private_step() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    from benchmarks import encoder

    inputs = items.prepare(encoder.generate(encoder.QUICK, rng=np.random.default_rng(0)))
    peer = encoder.peer_of(inputs, 8, batch_size=6)
    module = peer.module._module
    tables = torch.cat([table.weight for table in module.tables]).detach().numpy()
    theta = EncoderParameters(
        tables, module.dense.weight.detach().numpy().T, module.dense.bias.detach().numpy()
    )
    chosen = np.array([3, 1, 4, 1, 5, 9])
    with torch.no_grad():
        theirs = module(*encoder.pad(inputs, chosen)).numpy()
    np.testing.assert_allclose(items.forward(theta, inputs.batch(chosen)), theirs, atol=1e-5)
    before = tables.copy()
    peer.step(chosen, torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), torch.ones(6))
    after = torch.cat([table.weight for table in module.tables]).detach().numpy()
    # noise on every row: DP-SGD has no sparse gradient
    assert bool(np.all(np.any(after != before, axis=1)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
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


def test_the_plain_ranking_that_answers_are_held_against_is_the_servers(tmp_path: Path) -> None:
    path = tmp_path / bundle.FILE
    random_bundle(path, SMALL, seed=3)
    rank = Exact(bundle.read_ranked(path))
    for known in serving_endurance.known_of(path, SMALL, seed=3):
        (best,) = rank([Query(np.array(known.coefficients, np.float32), known.k, known.categories)])
        assert (best.items.tolist(), best.scores.tolist()) == (known.items, known.scores)


def test_an_answer_that_is_changed_is_found_wrong(tmp_path: Path) -> None:
    path = tmp_path / bundle.FILE
    version = random_bundle(path, SMALL, seed=3)
    known = next(serving_endurance.known_of(path, SMALL, seed=3))
    right = {"version": version, "items": known.items, "scores": known.scores}
    bout = serving_endurance.Bout(None, path, [], {}, 0.0, 1.0, np.random.default_rng(0))  # type: ignore[arg-type]
    bout.check("http", version, known, json.dumps(right).encode())
    assert not bout.wrong
    for field in ("items", "scores"):
        changed = json.loads(json.dumps(right))
        changed[field][0] += 1
        bout.check("http", version, known, json.dumps(changed).encode())
    assert len(bout.wrong) == 2
