"""`compare.published`: the papers' recipe beside a run, with settings by rule and verdicts of its
own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.cli.main import guarded
from fedrec.run.outcomes import BY_RULE
from fedrec.storage import read_json

KEYS = [
    "data.preset=small",
    "privacy.noise=seeded",
    "compare.als=false",
    "compare.published=true",
    "evaluation.ranking=false",
]


def simulate(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> dict[str, Any]:
    words = [word for key in [*KEYS, f"run.directory={folder}", *more] for word in ("--set", key)]
    capsys.readouterr()
    assert guarded(["simulate", *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


@pytest.mark.slow
def test_both_have_verdicts_beside_simple_methods_and_ours_beside_theirs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = simulate(capsys, tmp_path, "compare.epsilons=[1]")
    assert [point["epsilon"] for point in result["published"]] == [5.0, 1.0]
    for point in result["published"]:
        assert {verdict["control"] for verdict in point["verdicts"]} >= {
            "global mean",
            "item mean",
            "item + user bias",
        }
    assert [
        verdict["outcome"] for verdict in result["verdicts"] if verdict["control"] == BY_RULE
    ] == ["better"]
    assert all(
        BY_RULE in {verdict["control"] for verdict in point["verdicts"]}
        for point in result["curve"]
    )
    page = (Path(result["run_dir"]) / "report.html").read_text()
    # worse than item + user bias, and says so
    assert f"{BY_RULE}, epsilon 1 per user (add/remove, number of users public): RMSE" in page


@pytest.mark.slow
def test_without_features_it_is_ada_dpals_whose_settings_are_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = simulate(capsys, tmp_path, "data.features=false")
    plan = read_json(Path(result["run_dir"]) / "published" / "epsilon-5" / "plan.json")
    # six outer steps with features
    assert sum(release["name"].startswith("gram/") for release in plan["releases"]) == 3


def test_on_clicks_it_is_refused_before_anything_is_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "clicks.csv").write_text(
        "user,item\n" + "".join(f"{k},{(k * 7 + j) % 30}\n" for k in range(40) for j in range(8))
    )
    for more in (["data.kind=clicks"], [f"data.path={tmp_path / 'clicks.csv'}", "data.preset="]):
        words = [
            word
            for key in [*KEYS, *more, f"run.directory={tmp_path / 'runs'}"]
            for word in ("--set", key)
        ]
        assert guarded(["simulate", *words, "--json"]) != 0
        assert "compare.published is for ratings" in capsys.readouterr().err
    assert not list(tmp_path.rglob("plan.json"))
