"""Over partitions, in one process or on Ray, a training gives the model of the loopback, and its
evaluation the same numbers."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedrec.errors import DataError, SettingsError
from fedrec.run.data.describing import partition
from fedrec.run.job import RuntimeChoice
from fedrec.run.partitions.run import run as run_over
from fedrec.run.simulate import run
from fedrec.settings import Scenario, load

pytestmark = pytest.mark.slow

QUICK = ["data.preset=small", "privacy.noise=seeded", "compare.als=false", "evaluation.cutoffs=[5]"]
PARTITIONS = RuntimeChoice("partitions")
WAYS = {
    "ratings": [],
    "clicks of ratings": ["data.kind=clicks", "data.click_threshold=4"],
    "held-out users": ["split.kind=held-out-users"],
    "last left out": ["split.kind=leave-last-out"],
    "cuts in time": ["split.kind=temporal", "split.cuts=[1060000000, 1080000000]"],
    "published": ["recipe=published"],
    "three-party": ["privacy.aggregation=three-party"],
    "limits of their own": ["privacy.personal_epsilons={1=0.7, 5=0.3}"],
}


def _parts(tmp_path: Path, parts: int = 3) -> str:
    partition(load(None, ["data.preset=small"]), str(tmp_path / "parts"), parts=parts, resume=False)
    return f'data.path="{tmp_path / "parts"}"'


def _model(result: dict[str, Any]) -> bytes:
    return (Path(result["run_dir"]) / "model" / "model.safetensors").read_bytes()


def _stated(result: dict[str, Any]) -> dict[str, Any]:
    (path,) = Path(result["run_dir"]).rglob("guarantee.json")
    return dict(json.loads(path.read_text()))


def _settings(tmp_path: Path, *more: str) -> Scenario:
    return load(
        None,
        [
            *(word for word in QUICK if not word.startswith("data.preset")),
            f'run.directory="{tmp_path / "runs"}"',
            *more,
        ],
    )


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=[pytest.mark.slow] if number > 1 else [])
        for number, way in enumerate(WAYS)
    ],
)
def test_partitions_give_the_model_and_the_errors_of_the_whole(tmp_path: Path, way: str) -> None:
    chosen = _settings(tmp_path, _parts(tmp_path), *WAYS[way])
    whole = run(chosen, name="r", quiet=True)
    apart = run_over(chosen, name="r", choice=PARTITIONS, quiet=True)
    assert _model(apart) == _model(whole)
    assert apart["guarantee"] == whole["guarantee"]
    assert _stated(apart)["not_covered"] == _stated(whole)["not_covered"]
    assert apart["bytes_up_per_client"] == pytest.approx(whole["bytes_up_per_client"])
    for name, value in whole["metrics"].items():
        assert apart["metrics"][name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
    for baseline in whole["baselines"]:
        for name, value in whole["baselines"][baseline].items():
            # whose biases the whole learns from their histories too
            known = value is None or way == "held-out users"
            assert known or apart["baselines"][baseline][name] == pytest.approx(
                value, rel=1e-5, abs=1e-5
            ), (baseline, name)


def test_a_run_goes_on_over_partitions_to_the_same_bytes(tmp_path: Path) -> None:
    chosen = _settings(tmp_path, _parts(tmp_path))
    whole = run_over(chosen, name="r", choice=PARTITIONS, quiet=True)
    before = _model(whole)
    kept = Path(whole["run_dir"])
    rounds = sorted((kept / "epsilon-5" / "checkpoints").iterdir())
    rounds[-1].unlink()
    (kept / "model" / "model.safetensors").unlink()
    assert _model(run_over(chosen, name="r", choice=PARTITIONS, resume=True, quiet=True)) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["split.kind=temporal"], "cuts off all events"),
        (["data.keep_users=20"], "chooses among all users"),
        (["split.kind=given"], "no test rows of its own"),
        (["privacy.shares=real", "privacy.aggregation=three-party"], "privacy.shares"),
    ],
)
def test_what_needs_all_users_at_once_is_refused(
    tmp_path: Path, words: list[str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        run_over(
            _settings(tmp_path, _parts(tmp_path), *words), name="r", choice=PARTITIONS, quiet=True
        )


def test_data_that_is_not_partitioned_is_refused_with_the_command_that_divides_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="needs data in partitions") as refused:
        run_over(load(None, QUICK), name="r", choice=PARTITIONS, quiet=True)
    assert "fedrec data partition" in refused.value.remedy


def test_a_damaged_part_ends_the_run(tmp_path: Path) -> None:
    chosen = _settings(tmp_path, _parts(tmp_path))
    (tmp_path / "parts" / "part-00002.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="part-00002"):
        run_over(chosen, name="r", choice=PARTITIONS, quiet=True)


@pytest.mark.parametrize("more", ["of another part", "twice"])
def test_nobody_is_counted_twice_whoever_wrote_the_parts(tmp_path: Path, more: str) -> None:
    """Two folders put together, or a part appended to itself, each digest made anew."""
    data = _parts(tmp_path)
    folder = tmp_path / "parts"
    parts = sorted(folder.glob("part-*.parquet"))
    frames = [pl.read_parquet(path) for path in parts]
    first = frames[1] if more == "twice" else frames[0]
    pl.concat([frames[1], first.head(1)]).write_parquet(parts[1])
    manifest = json.loads((folder / "partitions.json").read_text())
    content = parts[1].read_bytes()
    sizes = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    manifest["parts"][1] |= sizes | {"users": manifest["parts"][1]["users"] + 1}
    manifest["users"] += 1
    (folder / "partitions.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="counted twice"):
        run(_settings(tmp_path, data), name="twice", choice=PARTITIONS)


def test_flags_of_ray_are_refused_elsewhere() -> None:
    with pytest.raises(SettingsError, match="--address has no effect"):
        RuntimeChoice("partitions", address="auto")
    with pytest.raises(SettingsError, match="--ship-package has no effect"):
        RuntimeChoice("loopback", ship=True)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'fedrec[cluster]'"
)
def test_ray_gives_the_same_model(tmp_path: Path) -> None:
    chosen = _settings(tmp_path, _parts(tmp_path))
    whole = run(chosen, name="r", quiet=True)
    words = [
        f"--set={word}"
        for word in [
            *QUICK[1:],
            f'run.directory="{tmp_path / "runs"}"',
            f'data.path="{tmp_path / "parts"}"',
        ]
    ]
    command = [sys.executable, "-m", "fedrec.cli", "simulate", *words, "--runtime", "ray", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert _model(json.loads(done.stdout)) == _model(whole)
