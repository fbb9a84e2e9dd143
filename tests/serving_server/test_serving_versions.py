"""A new bundle takes over without a failed request; what it replaced answers until it is retired,
and downloads go on."""

import os
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec_server.serving.settings import ModelsTable
from fedrec_server.serving.store import ModelStore, ServedModel, load
from tests.serving_server.conftest import planted
from tests.waiting import until

NUMBERS = [1.0, 0.0, -1.0, 0.5, 0.0, 2.0]


def model(folder: Path, seed: int) -> ServedModel:
    planted(folder / f"{seed}.safetensors", seed=seed)
    return load(folder / f"{seed}.safetensors")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_replaced_versions_answer_until_they_are_too_old_or_too_many(tmp_path: Path) -> None:
    clock = Clock()
    run = Path("run")
    store = ModelStore(ModelsTable(kept=2, retire_s=100.0), clock=clock)
    models = [model(tmp_path, seed) for seed in range(5)]
    for number, one in enumerate(models[:4]):
        clock.now_s = 10.0 * number
        store.put(run, one)
    assert next(one.version for one, _ in store.all()) == store.newest.version == models[3].version
    # two are kept
    assert {one.version for one, retiring in store.all() if retiring} == {
        models[1].version,
        models[2].version,
    }
    with pytest.raises(RefusedError, match=models[3].version) as failure:
        store.get(models[0].version)
    assert failure.value.code == "wrong-version"
    clock.now_s = 120.0  # the first of them was replaced at 20, the second at 30
    assert store.retire() == [models[1].version]
    assert store.get(models[2].version) is models[2]
    store.put(run, models[2])  # back again: it is not retired any more, what it replaced is
    assert [retiring for one, retiring in store.all() if one is models[2]] == [False]
    clock.now_s = 10_000.0
    store.retire()
    assert [one.version for one, _ in store.all()] == [models[2].version]


def test_what_stands_at_a_path_is_never_retired(tmp_path: Path) -> None:
    clock = Clock()
    store = ModelStore(ModelsTable(kept=0, retire_s=0.0), clock=clock)
    first = model(tmp_path, 1)
    second = model(tmp_path, 2)
    store.put(Path("a"), first)
    store.put(Path("b"), second)
    clock.now_s = 1e9
    assert store.retire() == []
    assert {one.version for one, _ in store.all()} == {first.version, second.version}


def test_a_model_that_nobody_holds_closes_its_file(tmp_path: Path) -> None:
    one = model(tmp_path, 1)
    descriptor = one.descriptor
    os.fstat(descriptor)
    del one
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("content", [None, b"", b"not a bundle", b"\x08" + b"\0" * 7 + b"{}      "])
def test_a_server_does_not_start_on_what_is_no_bundle(
    start: Any, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "bad.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunError, match=r"bad\.safetensors"):
        start([path])


def test_a_new_bundle_takes_over_and_the_old_one_still_answers(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "serving.safetensors"
    old = planted(path, seed=1)
    running = start([tmp_path])  # a run folder
    before = running.recommend(old, NUMBERS)
    content = path.read_bytes()
    new = planted(path, seed=2)
    until(lambda: running.http.get("/v1/models").json()["newest"] == new)
    assert running.recommend(old, NUMBERS) == before != running.recommend(new, NUMBERS)
    told = {
        one["version"]: one["retiring"] for one in running.http.get("/v1/models").json()["models"]
    }
    assert told == {new: False, old: True}
    assert (
        running.model(int(old, 16))
        == running.http.get(f"/v1/models/{old}/bundle").content
        == content
    )
    assert running.model() == path.read_bytes() != content


def test_a_broken_bundle_leaves_the_old_one_in_place_and_is_counted(
    start: Any, tmp_path: Path
) -> None:
    path = tmp_path / "serving.safetensors"
    old = planted(path)
    running = start([path])
    path.write_bytes(path.read_bytes()[:100])
    until(lambda: 'fedrec_model_swaps_total{result="failed"} 1.0' in running.metrics())
    assert running.http.get("/health/ready").status_code == 200
    assert running.recommend(old, NUMBERS)
    planted(path, seed=3)
    until(lambda: running.http.get("/v1/models").json()["newest"] != old)


def test_several_runs_answer_side_by_side(start: Any, tmp_path: Path) -> None:
    first, second = (
        planted(tmp_path / name / "serving.safetensors", seed=seed)
        for name, seed in (("a", 1), ("b", 2))
    )
    os.utime(tmp_path / "a" / "serving.safetensors", (1, 1))
    running = start([tmp_path / "b", tmp_path / "a"], models={"kept": 0})
    assert running.told.newest == second
    assert running.recommend(first, NUMBERS) != running.recommend(second, NUMBERS)
