"""A model that was trained with seeded noise is served where it is asked for, and everybody is
told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from fedrec.errors import RunError
from fedrec.serving import bundle
from fedrec_server.serving.store import load
from tests.serving_server.conftest import planted
from tests.waiting import until


def rewritten(path: Path, **about: Any) -> None:
    """The bundle at `path` with other words; None takes one out."""
    kept = bundle.read(path).about.model_dump(mode="json") | about
    told = {name: value for name, value in kept.items() if value is not None}
    save_file(load_file(path), path, metadata={"about": json.dumps(told)})


def test_a_bundle_of_seeded_noise_is_refused_without_demo(tmp_path: Path) -> None:
    planted(tmp_path / bundle.FILE, noise="seeded")
    with pytest.raises(
        RunError, match="trained with seeded noise, which whoever knows the seed can remove"
    ) as caught:
        load(tmp_path)
    assert "privacy.noise" in caught.value.remedy
    assert "--demo" in caught.value.remedy
    assert load(tmp_path, demo=True).ranked.about.experiment


def test_a_server_does_not_start_on_an_experiment_and_with_demo_it_says_so_everywhere(
    start: Any, tmp_path: Path
) -> None:
    path = tmp_path / bundle.FILE
    planted(path, noise="seeded")
    with pytest.raises(RunError, match="experiment"):
        start([path])
    running = start([path], demo=True)
    assert running.told.training.startswith("EXPERIMENT")
    (model,) = running.http.get("/v1/models").json()["models"]
    assert model["about"]["noise"] == "seeded"
    assert '"event":"experiment"' in (tmp_path / "log.jsonl").read_text()


def test_an_experiment_does_not_take_over_from_a_model_for_release(
    start: Any, tmp_path: Path
) -> None:
    path = tmp_path / bundle.FILE
    version = planted(path)
    running = start([path])
    planted(path, seed=2, noise="seeded")
    failed = 'fedrec_model_swaps_total{result="failed"} 1.0'
    until(lambda: failed in running.metrics(), "a swap that failed")
    assert running.http.get("/v1/models").json()["newest"] == version
    planted(path, seed=3)
    until(
        lambda: running.http.get("/v1/models").json()["newest"] != version, "the model for release"
    )


def test_a_server_says_everywhere_whether_its_models_are_verified(
    start: Any, tmp_path: Path
) -> None:
    """Of each bundle that takes over, and never of one whose place another took meanwhile."""
    path = tmp_path / bundle.FILE
    first = planted(path)
    words = {first: "verified, certificate sha256 12"}

    def verify(place: Path) -> str:
        version = bundle.sha256_of(place)[:16]
        if version not in words:
            return "not verified: it holds no certificate"
        return words[version]

    def told() -> dict[str, str]:
        models = running.http.get("/v1/models").json()["models"]
        return {model["version"]: model["verified"] for model in models}

    running = start([path], verify=verify, state=str(tmp_path))
    until(lambda: told() == words, "the first model")
    second = planted(path, seed=2)
    both = {**words, second: "not verified: it holds no certificate"}
    until(lambda: told() == both, "the second model")
    kept = json.loads((tmp_path / "serving.json").read_text())["verified"]
    assert set(kept) == set(both.values())
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    said = {one["version"]: one["level"] for one in lines if one["event"] == "verification"}
    assert said == {first: "info", second: "warning"}


@pytest.mark.parametrize(
    ("about", "cause"),
    [
        ({"noise": None}, "about.noise: field required"),
        (
            {"noise": "unknown"},
            "about.noise: input should be 'seeded' or 'system', found 'unknown'",
        ),
        (
            {"format": "fedrec-serving/7"},
            "its format is 'fedrec-serving/7', this version of fedrec reads 'fedrec-serving/2'",
        ),
        ({"format": None}, "its format is None"),
        ({"colour": "red"}, "about.colour: extra inputs are not permitted, found 'red'"),
    ],
)
def test_a_bundle_that_says_nothing_of_its_noise_or_is_of_another_version_is_refused_in_one_line(
    tmp_path: Path, about: dict[str, Any], cause: str
) -> None:
    path = tmp_path / bundle.FILE
    planted(path)
    rewritten(path, **about)
    with pytest.raises(RunError) as caught:
        load(tmp_path, demo=True)
    assert cause in caught.value.cause
    assert "\n" not in caught.value.cause + caught.value.remedy
    assert "validation error" not in caught.value.cause


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"epsilon": 5.0, "unit": "user"}, "epsilon 5.0 per user"),
        ({"epsilon": "inf"}, "no privacy"),
        ({}, "no privacy"),
        ({"epsilon": 5.0, "unit": "click", "established": False}, "no established privacy"),
        ({"epsilon": ["?"]}, "no privacy"),
    ],
)
def test_what_is_promised_of_training_is_said_in_words(
    tmp_path: Path, training: dict[str, Any], words: str
) -> None:
    path = tmp_path / bundle.FILE
    planted(path)
    about = bundle.read(path).about.model_copy(update={"training": training})
    assert words in about.trained
    assert "EXPERIMENT" in about.model_copy(update={"noise": "seeded"}).trained
