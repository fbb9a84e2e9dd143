"""`fedrec simulate --seeds N`: several whole runs, and the means of what they measured with
intervals."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from scipy import stats

from fedrec.cli.main import guarded
from fedrec.report.comparison import half, over_runs

QUICK = [
    "data.preset=small",
    "recipe=dp-bias",
    "compare.als=false",
    "run.examples=0",
    "privacy.noise=seeded",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("seeds")
    overrides = [word for key in [*QUICK, f"run.directory={place}"] for word in ("--set", key)]
    assert guarded(["simulate", "--seeds", "3", "--json", *overrides]) == 0
    return next(place.glob("run-seeds-*"))


@pytest.mark.slow
def test_every_seed_is_a_run_and_the_mean_and_interval_are_of_all(found: Path) -> None:
    content = json.loads((found / "seeds.json").read_text())
    assert content["seeds"] == [1, 2, 3]
    values = [
        json.loads((Path(run) / "result.json").read_text())["metrics"]["rmse"]
        for run in content["runs"]
    ]
    assert len(set(values)) == 3, "each seed has noise of its own"
    ours = next(method for method in content["methods"] if method["private"])
    assert ours["metrics"]["rmse"]["mean"] == pytest.approx(sum(values) / 3)
    low, high = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    assert ours["metrics"]["rmse"]["half"] == pytest.approx((high - low) / 2)


def test_the_page_and_the_table_show_intervals_and_name_every_run(found: Path) -> None:
    page = (found / "report.html").read_text()
    assert page.count("report.html") == 3
    assert " ± " in page
    assert "no model of them may be released" in page
    frame = pl.read_csv(found / "seeds.csv")
    assert {"rmse", "rmse_half", "runs"} <= set(frame.columns)


def test_a_run_without_a_metric_does_not_lower_its_mean() -> None:
    about = {
        "run": "a",
        "data": "d",
        "scenario": "s",
        "method": "m",
        "epsilon": 5.0,
        "delta": 1e-5,
        "unit": "user",
        "noise": "system",
        "private": True,
    }
    frame = over_runs(
        pl.DataFrame([{**about, "rmse": 1.0}, {**about, "rmse": 2.0}, {**about, "rmse": None}])
    )
    assert (frame["rmse"][0], frame["runs"][0]) == (1.5, 3)
    assert frame[half("rmse")][0] == pytest.approx(stats.t.ppf(0.975, 1) * 0.5)
    same = over_runs(pl.DataFrame([{**about, "rmse": 1.0}, {**about, "rmse": 1.0}]))
    assert same[half("rmse")][0] is None, "what every run measured the same has no interval"


def test_resume_and_seeds_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(["simulate", "--seeds", "2", "--resume"]) == 2
    assert "--resume continues one run" in capsys.readouterr().err
    assert guarded(["simulate", "--seeds", "0"]) == 2
