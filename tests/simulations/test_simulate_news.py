"""`fedrec simulate` for news, from the command line to the JSON line, the folder and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.main import guarded
from fedrec.errors import SettingsError
from fedrec.settings import load
from fedrec.storage import read_json

KEYS = [
    "recipe=privaterec",
    "news.variant=additive",
    "data.format=planted-news",
    "data.preset=small",
    "privacy.unit=click",
    "news.history=20",
    "privacy.noise=seeded",
]


def simulate(
    capsys: pytest.CaptureFixture[str], folder: Path, *more: str, code: int = 0
) -> tuple[dict[str, Any], str]:
    own = any(key.startswith("data.path=") for key in more)
    keys = [key for key in KEYS if not (own and key.startswith("data.preset="))]
    words = [word for key in [*keys, f"run.directory={folder}", *more] for word in ("--set", key)]
    capsys.readouterr()
    assert guarded(["simulate", *words, "--json"]) == code
    said = capsys.readouterr()
    return (json.loads(said.out.splitlines()[-1]) if said.out else {}), said.err


def test_the_json_line_holds_metrics_the_history_swap_and_a_guarantee_with_its_unit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result, err = simulate(capsys, tmp_path, "compare.epsilons=[1]")
    assert err == ""
    assert {"auc", "mrr", "ndcg@5", "ndcg@10"} <= set(result["metrics"])
    assert 0 < result["controls"]["history_swap_auc"] < 1
    promised = result["guarantee"]
    assert (
        promised["epsilon"],
        promised["unit"],
        promised["neighbours"],
        promised["established"],
    ) == (5.0, "click", "replace", True)
    assert result["spent_epsilon"] == pytest.approx(5.0)
    assert [answer["epsilon"] for answer in result["serving"]["answers"]] == ["inf", 10.0, 5.0, 1.0]
    assert [point["epsilon"] for point in result["curve"]] == [5.0, 1.0]
    directions = "untrained public directions"
    noised = {f"{directions}, served at {epsilon}" for epsilon in (10, 5, 1)}
    assert {"popularity", "untrained public topics", directions} | noised == set(
        result["baselines"]
    )
    folder = Path(result["run_dir"])
    page = (folder / "report.html").read_text()
    assert "per click (replace)" in page
    assert "another’s history" in page
    assert read_json(folder / "result.json")["metrics"] == result["metrics"]
    assert read_json(folder / "model" / "manifest.json")["guarantee"]["unit"] == "click"
    assert not list(folder.rglob("*.part"))


def test_a_run_says_what_it_means_for_a_person(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """User-level epsilon at the run's own numbers of clicks and labels, and linkage measured with
    the bundle that it serves."""
    result, _ = simulate(
        capsys, tmp_path, "news.epochs=1", 'news.serving_epsilons=["inf", 10, 0.01]'
    )
    found = result["person"]
    assert (found["unit"], found["neighbours"], found["delta"]) == ("user", "replace", 1e-5)
    median, most = found["training"]
    assert most["clicks"] == 20
    assert 5 < median["epsilon"] < most["epsilon"]
    served, hidden = found["linkage"]
    assert served["low"] > 3 * served["chance"]
    assert served["low"] <= served["rate"] <= served["high"]
    assert hidden["low"] <= hidden["chance"]
    assert read_json(Path(result["run_dir"]) / "result.json")["person"] == found
    page = (Path(result["run_dir"]) / "report.html").read_text()
    assert "What this means for a person" in page
    assert "ε per user (replace)" in page
    assert f"{served['rate']:.1%}" in page


def test_a_limit_per_user_is_refused_before_training_by_public_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, err = simulate(capsys, tmp_path, "news.max_user_epsilon=50", code=2)
    assert "20 clicks" in err
    assert "news.max_user_epsilon is 50" in err
    assert not list(tmp_path.rglob("model"))
    fits = err.split("privacy.epsilon = ")[1].split()[0]
    simulate(
        capsys, tmp_path, "news.max_user_epsilon=50", f"privacy.epsilon={fits}", "news.epochs=1"
    )


@pytest.mark.slow
def test_the_same_scenario_gives_the_same_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one, two = (simulate(capsys, tmp_path / name)[0] for name in "ab")
    assert one["serving"] == two["serving"]
    models = [(Path(r["run_dir"]) / "model" / "model.safetensors").read_bytes() for r in (one, two)]
    assert models[0] == models[1]


@pytest.mark.slow
def test_central_states_users_and_printed_says_not_established(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    central, _ = simulate(capsys, tmp_path, "news.variant=central", "privacy.unit=user")
    assert (central["guarantee"]["unit"], central["guarantee"]["neighbours"]) == (
        "user",
        "add/remove",
    )
    printed, _ = simulate(capsys, tmp_path, "news.variant=printed")
    assert not printed["guarantee"]["established"]
    assert "not established" in (Path(printed["run_dir"]) / "report.html").read_text()


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("privacy.unit=user", "protects a click"),
        ("news.variant=central", "protects a user"),
        ("news.variant=fedrec", 'privacy.epsilon = "inf"'),
        ("news.padding=0.2", "news.padding"),
        ("data.format=mind", "data.path"),
        ("data.format=auto", "data.format"),
        ("model.dimension=8", "model.*"),
        ("recipe=default", 'recipe = "privaterec"'),
        ("news.serving_epsilons=[]", "news.serving_epsilons"),
        ("news.variant=secret", "news.variant"),
    ],
)
def test_wrong_combinations_are_named(override: str, named: str) -> None:
    with pytest.raises(SettingsError) as failure:
        load(None, [*KEYS, override])
    assert named in failure.value.cause


def test_an_unknown_size_and_collecting_clicks_over_flower_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, err = simulate(capsys, tmp_path, "data.preset=enormous", code=2)
    assert "small, demo, mind-small" in err
    keys = [*KEYS, "news.variant=centralized", "privacy.epsilon=inf", f"run.directory={tmp_path}"]
    assert (
        guarded(
            ["simulate", *(word for key in keys for word in ("--set", key)), "--runtime", "parties"]
        )
        == 2
    )
    assert "has no devices" in capsys.readouterr().err


@pytest.mark.slow
def test_a_click_log_of_films_reaches_the_targets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, real_data: Path
) -> None:
    words = [
        "data.format=click-log",
        f"data.path={real_data / 'ml-1m'}",
        "news.history=50",
        "news.epochs=2",
    ]
    result, _ = simulate(capsys, tmp_path, *words)
    served = {
        answer["epsilon"]: answer["metrics"]["auc"] for answer in result["serving"]["answers"]
    }
    assert result["metrics"]["auc"] > 0.72
    assert served["inf"] > served[10.0] > served[5.0] > served[1.0] > 0.58
    assert result["controls"]["history_swap_auc"] < result["metrics"]["auc"] - 0.1
