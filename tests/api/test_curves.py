"""Curves and comparisons: frames with every seed, intervals that are Student's, pictures as
files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

import fedrec
from fedrec.report import comparison
from fedrec.report.comparison import different_data


@pytest.fixture(scope="module")
def curve() -> fedrec.PrivacyCurve:
    train, test = fedrec.Dataset.planted("small").split()
    return fedrec.privacy_curve(
        fedrec.ItemBias(noise="seeded"), train, test, epsilons=[0.5, 5], seeds=range(3)
    )


@pytest.mark.slow
def test_every_epsilon_and_seed_has_a_row_and_every_control_one(curve: fedrec.PrivacyCurve) -> None:
    frame = curve.to_frame()
    ours = frame.filter(frame["method"] == "ItemBias")
    assert list(zip(ours["epsilon"], ours["seed"], strict=True)) == [
        (0.5, 0),
        (0.5, 1),
        (0.5, 2),
        (5.0, 0),
        (5.0, 1),
        (5.0, 2),
    ]
    assert ours["rmse"].n_unique() > 3
    assert {"global mean", "item + user bias", "non-private ALS"} <= set(frame["method"])
    assert set(ours["unit"]) == {"user"}


def test_intervals_are_students_over_the_seeds_and_the_peoples_beside_them(
    curve: fedrec.PrivacyCurve,
) -> None:
    frame = curve.to_frame().filter(curve.to_frame()["epsilon"] == 0.5)
    values = frame["rmse"].to_numpy()
    low, high = stats.t.interval(0.95, 2, loc=values.mean(), scale=values.std(ddof=1) / np.sqrt(3))
    people = stats.norm.ppf(0.975) * np.sqrt((frame["rmse_stderr"].to_numpy() ** 2).mean())
    row = curve.summary().row(0, named=True)
    half = np.hypot((high - low) / 2, people)
    assert (row["low"], row["high"]) == pytest.approx((values.mean() - half, values.mean() + half))
    assert "people, 3 draws of noise; one split, which varies too" in curve.intervals
    assert curve.intervals in repr(curve)
    assert curve.intervals in curve._repr_html_()


def test_splits_are_drawn_too_and_their_means_are_the_draws() -> None:
    data = fedrec.Dataset.planted("small")
    curve = fedrec.privacy_curve(
        fedrec.ItemBias(noise="seeded"),
        data,
        epsilons=[5],
        seeds=[1, 2],
        splits=[1, 2, 3],
        controls=False,
    )
    frame = curve.to_frame()
    means = frame.group_by("split").agg(pl.col("rmse").mean())["rmse"].to_numpy()
    row = curve.summary().row(0, named=True)
    assert (row["seeds"], row["splits"]) == (2, 3)
    assert row["std"] == pytest.approx(means.std(ddof=1))
    assert row["high"] - row["low"] > 2 * stats.t.ppf(0.975, 2) * row["std"] / np.sqrt(3)
    assert curve.intervals.endswith("people, 3 random splits, 2 draws of noise")
    assert frame["rmse"].n_unique() == 6
    with pytest.raises(fedrec.SettingsError, match="holds the test rows too"):
        fedrec.privacy_curve(fedrec.ItemBias(), data, data.split()[1])


def test_the_picture_is_written_with_its_unit_and_its_numbers(
    curve: fedrec.PrivacyCurve, tmp_path: Path
) -> None:
    chart = curve.plot()
    drawn = chart.save(tmp_path / "curve.svg").read_text()
    assert drawn == chart._repr_svg_()
    assert "per user (add/remove" in drawn
    kept = pl.read_csv(chart.save(tmp_path / "curve.csv"), schema_overrides={"rmse": pl.Float64})
    mine = kept.filter(pl.col("line") == "ItemBias")
    summary = curve.summary()
    assert mine["rmse"].to_list() == pytest.approx(summary["mean"].to_list())
    half = (summary["high"] - summary["mean"]).to_list()
    assert mine["half width of the bar"].to_list() == pytest.approx(half)
    assert {"global mean", "non-private ALS"} < set(kept["line"])
    with pytest.raises(fedrec.SettingsError, match="format"):
        chart.save(tmp_path / "curve.pdf")


def test_an_unknown_metric_is_refused_with_those_there_are(curve: fedrec.PrivacyCurve) -> None:
    with pytest.raises(fedrec.SettingsError) as failure:
        curve.plot("rsme")
    assert "rmse" in failure.value.remedy


@pytest.mark.slow
def test_runs_are_compared_in_one_frame(tmp_path: Path) -> None:
    settings = {
        "data.preset": "small",
        "compare.als": False,
        "run.examples": 0,
        "evaluation.ranking": False,
    }
    runs = [
        fedrec.simulate(
            {"recipe": "dp-bias"},
            settings=settings,
            epsilon=epsilon,
            noise="seeded",
            directory=tmp_path,
        )
        for epsilon in (1, 5)
    ]
    frame = fedrec.compare(*(run.folder for run in runs))
    ours = frame.filter(frame["method"] == "dp-bias")
    assert ours["epsilon"].to_list() == [1.0, 5.0]
    assert set(ours["unit"]) == {"user (add/remove)"}
    assert "item mean" in set(frame["method"])
    assert frame["scenario"].n_unique() == 1, "another epsilon is no other scenario"
    assert different_data(frame) == ""
    assert runs[0].frame.equals(
        frame.filter(frame["run"] == runs[0].folder.name).select(runs[0].frame.columns)
    )


def _compared(tmp_path: Path, **settings: object) -> pl.DataFrame:
    """A run of a popularity list beside one with these settings, trained the same way."""
    few = {"data.preset": "small", "data.kind": "clicks", "compare.als": False, "run.examples": 0}
    runs = [
        fedrec.simulate(
            {"recipe": "dp-popularity"}, settings=chosen, noise="seeded", directory=tmp_path
        )
        for chosen in (few, {**few, **settings})
    ]
    return fedrec.compare(*(run.folder for run in runs))


@pytest.mark.slow
def test_runs_on_different_data_are_no_seeds_of_one_line(tmp_path: Path) -> None:
    frame = _compared(tmp_path, **{"data.keep_users": 200})
    assert frame["data"].n_unique() == 2
    assert "do not compare" in different_data(frame)
    points = comparison._points(frame, "ndcg@20")
    assert len(points) == 2
    assert all(name.startswith("dp-popularity, ") for name in points)
    assert comparison._levels(frame, "ndcg@20") == {}
    assert "do not compare" in comparison.page(frame, "ndcg@20")


def test_runs_that_differ_in_seeds_alone_are_one_line(tmp_path: Path) -> None:
    frame = _compared(tmp_path, seed=2, **{"split.seed": 2})
    assert list(comparison._points(frame, "ndcg@20")) == ["dp-popularity"]
    assert "popularity" in comparison._levels(frame, "ndcg@20")
