"""What ships as a demo shows training that is worth something: its verdicts, at the settings of its
file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.main import guarded
from fedrec.cli.recommend_demo import served_run

pytestmark = pytest.mark.slow

SCENARIOS = Path(__file__).parents[2] / "simulations"


def verdicts(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str, *more: str
) -> dict[tuple[str, str], str]:
    """Of each metric and control."""
    words = [
        word
        for key in ["privacy.noise=seeded", f"run.directory={folder}", *more]
        for word in ("--set", key)
    ]
    capsys.readouterr()
    assert guarded(["simulate", str(SCENARIOS / name), *words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return {
        (verdict["metric"], verdict["control"]): verdict["outcome"]
        for verdict in result["verdicts"]
    }


def test_the_demo_of_ratings_is_ahead_of_item_and_user_biases_at_epsilon_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = verdicts(
        capsys,
        tmp_path,
        "planted.toml",
        "privacy.epsilon=1",
        "compare.epsilons=[]",
        "compare.als=false",
    )
    rated = {control: outcome for (metric, control), outcome in found.items() if metric == "RMSE"}
    assert rated.keys() >= {"global mean", "item mean", "item + user bias"}
    assert set(rated.values()) == {"better"}


def test_the_demo_of_news_is_ahead_of_public_rows_without_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = verdicts(capsys, tmp_path, "privaterec_planted.toml", 'news.serving_epsilons=["inf"]')
    assert {control for _, control in found} >= {
        "popularity",
        "shuffled history",
        "untrained public directions",
    }
    assert set(found.values()) == {"better"}


def test_the_demo_runs_in_an_empty_folder_and_leaves_what_make_recommend_serves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["data.preset=small", "compare.epsilons=[]", "compare.als=false"]
    assert guarded(["demo", "--json", *(word for key in few for word in ("--set", key))]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / result["run_dir"] / "report.html").is_file()
    assert served_run(None) == Path(result["run_dir"])
