"""`fedrec simulate` from end to end, in real processes that are killed, continued and repeated."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load as load_arrays

from fedrec.cli.main import guarded
from fedrec.errors import BudgetExceededError
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.default_ratings.model import DefaultModel
from fedrec.factorization.facts import predict, public_facts
from fedrec.federation.messages import Release
from fedrec.federation.wire import pack_release
from fedrec.run import outcomes
from fedrec.run.account import describe
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import Carried, Job, loopback
from fedrec.run.training import Training
from fedrec.settings import Scenario, load
from fedrec.storage import Checkpoints, read_arrays, read_json
from tests.waiting import HANG_S

ENTRY = "from fedrec.cli.main import main; main()"
DIES = """
import os, signal
real, left = os.replace, [{left}]
def replace(source, target):
    if str(target) == {mark!r} or left[0] < {left}:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
    real(source, target)
os.replace = replace
"""
"""Killed by -9 between two of the writes that follow the one of `mark`, counted and not timed."""
KEYS = [
    "data.preset=small",
    "privacy.noise=seeded",
    "compare.als=false",
    "compare.epsilons=[1]",
    "run.examples=2",
]


def arguments(directory: Path, *more: str) -> list[str]:
    told = {key.partition("=")[0] for key in more}
    keys = [key for key in KEYS if key.partition("=")[0] not in told]
    keys.append(f"run.directory={directory}")
    return ["simulate", *(word for key in keys for word in ("--set", key)), "--json", *more]


def start(directory: Path, *more: str, before: str = "") -> subprocess.Popen[str]:
    line = [sys.executable, "-c", before + ENTRY, *arguments(directory, *more)]
    return subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert err == ""
    result = json.loads(out.splitlines()[-1])
    assert len(out.splitlines()) == 1
    return dict(result)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an uninterrupted run prints."""
    return finish(start(tmp_path_factory.mktemp("uninterrupted")))


def model_bytes(result: dict[str, Any]) -> bytes:
    return (Path(result["run_dir"]) / "model" / "model.safetensors").read_bytes()


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """Everything that must not depend on when a run was stopped, or where it was kept."""
    return {
        key: value
        for key, value in result.items()
        if key not in {"seconds", "training_seconds", "peak_rss_mb", "run_dir"}
    }


def test_the_json_line_holds_what_a_program_needs(finished: dict[str, Any]) -> None:
    assert 0.5 < finished["metrics"]["rmse"] < 1.2
    promised = finished["guarantee"]
    assert (promised["epsilon"], promised["delta"], promised["unit"], promised["neighbours"]) == (
        5.0,
        1e-5,
        "user",
        "add/remove",
    )
    assert promised["established"]
    assert finished["second_opinion"]["pld"] == pytest.approx(5.0, rel=1e-3)
    assert finished["second_opinion"]["rdp"] >= 5.0
    assert [point["epsilon"] for point in finished["curve"]] == [5.0, 1.0]
    assert 0 < finished["training_seconds"] < finished["seconds"]
    assert finished["peak_rss_mb"] > 50
    assert finished["noise"] == "seeded"
    assert {"global mean", "item mean", "item + user bias"} <= set(finished["baselines"])


def test_the_run_folder_keeps_settings_plan_guarantee_metrics_model_checkpoints_and_report(
    finished: dict[str, Any],
) -> None:
    folder = Path(finished["run_dir"])
    scenario = Scenario.model_validate(read_json(folder / "settings.json"))
    assert scenario.digest() == load(None, KEYS).digest()
    plan = read_json(folder / "epsilon-5" / "plan.json")
    guarantee = read_json(folder / "guarantee.json")
    assert guarantee["epsilon"] == plan["guarantee"]["epsilon"] == 5.0
    assert guarantee["accountants"]["gdp"] == pytest.approx(5.0)
    rounds = [
        json.loads(line)
        for line in (folder / "epsilon-5" / "rounds.jsonl").read_text().splitlines()
    ]
    assert [name for r in rounds for name in r["releases"]] == [
        release["name"] for release in plan["releases"]
    ]
    assert len(Checkpoints(folder / "epsilon-5" / "checkpoints").all()) == len(rounds)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"epsilon 5", "epsilon 1", "item mean"} <= {line["name"] for line in lines}
    manifest = read_json(folder / "model" / "manifest.json")
    assert manifest["noise"] == "seeded"
    assert manifest["plan"] == guarantee["plan"]
    page = (folder / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "per user (add/remove, number of users public)" in page
    assert read_json(folder / "result.json")["metrics"] == finished["metrics"]
    assert not list(folder.rglob("*.part"))


def test_the_released_file_alone_predicts_as_the_run_did(finished: dict[str, Any]) -> None:
    folder = Path(finished["run_dir"])
    a = {
        name: np.asarray(array, np.float64)
        for name, array in read_arrays(folder / "model" / "model.safetensors").items()
    }
    low, high = a["value_range"]
    model = DefaultModel(
        a["phi"], a["bias"], a["variance"], float(a["mean"]), float(a["noise"]), (low, high)
    )
    scenario = load(None, KEYS)
    fold = load_split(scenario, load_dataset(scenario)).test
    rmse = rating_metrics(predict(model, fold.history, fold.targets), fold.targets).rmse
    # the file keeps phi in float32
    assert rmse == pytest.approx(finished["metrics"]["rmse"], abs=1e-5)
    assert len(read_json(folder / "model" / "manifest.json")["items"]) == len(a["phi"])


def training(folder: Path, *more: str) -> Training:
    scenario = load(None, [*KEYS, *more])
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    return Training(
        scenario, public_facts(scenario.seed, dataset, split), split.train, split.validation, folder
    )


@pytest.mark.slow
def test_validation_is_measured_once_where_a_round_changes_no_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[float]()

    def counted(*of: Any) -> Any:
        found = rating_metrics(*of)
        measured.append(found.rmse)
        return found

    monkeypatch.setattr("fedrec.run.training.rating_metrics", counted)
    records = list(training(tmp_path).run())
    names = [record.releases[0] for record in records]
    validations = [record.validation for record in records]
    pairs = names.index("pairs")
    assert validations[pairs] == validations[pairs - 1]
    assert measured == validations[:pairs] + validations[pairs + 1 :]
    assert len(set(measured)) == len(measured) > 3


def test_a_run_whose_releases_state_half_of_the_planned_noise_is_refused(tmp_path: Path) -> None:
    def halved(job: Job) -> Generator[Carried, None, None]:
        for done in loopback(job):
            head = int.from_bytes(done.released[:8], "little")
            stated = json.loads(done.released[8 : 8 + head])["__metadata__"]["noise_std"]
            stds = {name: float.fromhex(std) for name, std in json.loads(stated).items()}
            halves = {name: std / 2 for name, std in stds.items()}
            yield replace(done, released=pack_release(Release(load_arrays(done.released), halves)))

    scenario = load(None, [*KEYS, "data.features=false"])
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    facts = public_facts(scenario.seed, dataset, split)
    with pytest.raises(BudgetExceededError, match="would bring the total"):
        list(
            Training(scenario, facts, split.train, split.validation, tmp_path, runtime=halved).run()
        )


def test_account_prints_the_plan_that_the_run_wrote(finished: dict[str, Any]) -> None:
    said = describe(load(None, KEYS))
    folder = Path(finished["run_dir"])
    assert said["plan"] == read_json(folder / "guarantee.json")["plan"]


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["recipe=published"],
        ["split.kind=held-out-users"],
        ["data.features=false", "privacy.epsilon=20"],
        ["data.kind=clicks"],
    ],
)
def test_account_lists_the_releases_that_training_writes(more: list[str], tmp_path: Path) -> None:
    next(training(tmp_path, *more).run())
    said = describe(load(None, [*KEYS, *more]))["releases"]
    assert [
        {key: release[key] for key in ("name", "share", "mu")} for release in said
    ] == read_json(tmp_path / "plan.json")["releases"]


@pytest.mark.slow
def test_the_same_scenario_gives_the_same_model_bytes_and_numbers_on_one_core(
    finished: dict[str, Any], tmp_path: Path
) -> None:
    again = finish(
        start(
            tmp_path,
            before=f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); ",
        )
    )
    assert model_bytes(again) == model_bytes(finished)
    assert numbers(again) == numbers(finished)


@pytest.mark.slow
def test_a_run_killed_again_and_again_continues_to_the_same_bytes(
    finished: dict[str, Any], tmp_path: Path
) -> None:
    rng = random.Random(20261121)
    folder = tmp_path / Path(finished["run_dir"]).name
    marks = [
        folder / "settings.json",
        folder / "epsilon-5" / "checkpoints" / f"round-{rng.randint(2, 4):03d}.safetensors",
        folder / "epsilon-1" / "checkpoints" / f"round-{rng.randint(1, 3):03d}.safetensors",
        folder / "metrics.jsonl",
    ]
    for at, mark in enumerate(marks):
        process = start(
            tmp_path,
            *(["--resume"] if at else []),
            before=DIES.format(mark=str(mark), left=rng.randint(1, 2)),
        )
        process.communicate(timeout=HANG_S)
        assert process.returncode == -signal.SIGKILL
        assert mark.exists()
    resumed = finish(start(tmp_path, "--resume"))
    assert model_bytes(resumed) == model_bytes(finished)
    assert numbers(resumed) == numbers(finished)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert guarded(list(words)) == 6
    cause, remedy = capsys.readouterr().err.splitlines()
    assert remedy.startswith("remedy: ")
    return cause


def test_resuming_without_a_run_or_with_another_scenario_is_refused(
    finished: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "no run to resume" in refusal(capsys, *arguments(tmp_path, "--resume"))
    copy = shutil.copytree(finished["run_dir"], tmp_path / Path(finished["run_dir"]).name)
    assert "no run to resume" in refusal(
        capsys, *arguments(tmp_path, "--resume", "--set", "seed=2")
    )
    settings = copy / "settings.json"
    settings.write_text(settings.read_text().replace('"seed": 1', '"seed": 7'))
    assert "another scenario" in refusal(capsys, *arguments(tmp_path, "--resume"))


def test_a_damaged_checkpoint_is_refused_by_name(
    finished: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy = shutil.copytree(finished["run_dir"], tmp_path / Path(finished["run_dir"]).name)
    newest = sorted((copy / "epsilon-5" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    assert newest.name in refusal(capsys, *arguments(tmp_path, "--resume"))


def test_system_noise_differs_from_run_to_run_and_seeded_noise_does_not(tmp_path: Path) -> None:
    def counts(name: str, noise: str) -> npt.NDArray[np.generic]:
        next(training(tmp_path / name, f"privacy.noise={noise}").run())
        return Checkpoints(tmp_path / name / "checkpoints").all()[0]["counts"]

    assert not np.array_equal(counts("a", "system"), counts("b", "system"))
    assert np.array_equal(counts("c", "seeded"), counts("d", "seeded"))


@pytest.mark.slow
def test_lists_of_ratings_are_measured_at_every_epsilon_beside_all_controls(tmp_path: Path) -> None:
    keys = ["compare.als=true", "run.examples=1"]
    result = finish(start(tmp_path, *(word for key in keys for word in ("--set", key))))
    controls = {"popularity", "non-private item-item", "non-private ALS", "shuffled history"}
    for point in result["curve"]:
        assert {v["control"] for v in point["verdicts"] if v["metric"] == "NDCG@20"} == controls
        assert {v["control"] for v in point["verdicts"] if v["metric"] == "RMSE"} >= {
            "item + user bias",
            "non-private ALS",
            "shuffled history",
        }
        assert point["metrics"]["ranked_users"] > 0
        by = point["verdicts_by_popularity"]
        assert {b["control"] for b in by if b["metric"] == "NDCG@20"} == controls
    assert {
        b["control"] for b in result["verdicts_by_popularity"] if b["metric"] == "NDCG@20"
    } == controls
    assert all(len(b["outcome"]) == 5 for b in result["verdicts_by_popularity"])
    assert controls - {"shuffled history"} <= {
        name for name, metrics in result["baselines"].items() if "ndcg@20" in metrics
    }
    page = (Path(result["run_dir"]) / "report.html").read_text()
    assert "NDCG@20" in page
    assert "by popularity fifth" in page


def test_lists_of_very_many_users_are_measured_on_an_even_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = load(None, KEYS)
    split = load_split(scenario, load_dataset(scenario))
    n = split.test.targets.num_users
    m = split.test.targets.num_items
    assert outcomes.ranked_fold(split.test) is split.test
    monkeypatch.setattr(outcomes, "MOST_SCORES", {"ratings": 50 * m})
    some = outcomes.ranked_fold(split.test)
    assert some.targets.num_users == some.history.num_users == 50 < n
    assert np.diff(some.targets.user_ptr).min() > 0
    assert (
        outcomes.baselines(split.test, split.train, cutoffs=(20,), ranking=True)[
            "popularity"
        ].metrics()["ranked_users"]
        == 50
    )
