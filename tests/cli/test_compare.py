"""`fedrec compare`: one table of several runs, as text, JSON, page, CSV and figure."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import fedrec
from fedrec.cli.main import guarded


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("runs")
    settings = {"data.preset": "small", "compare.als": False, "run.examples": 0}
    return [
        str(
            fedrec.simulate(
                {"recipe": "dp-bias"},
                settings=settings,
                epsilon=epsilon,
                noise="seeded",
                directory=place,
            ).folder
        )
        for epsilon in (1, 5)
    ]


@pytest.mark.slow
def test_the_table_has_every_method_of_every_run_best_first(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["run", "method", "guarantee", "rmse"]
    assert sum(" dp-bias" in line for line in lines) == 2
    assert all("per user (add/remove)" in line for line in lines if " ε " in line)
    assert "seeded: an experiment" in "".join(lines)


@pytest.mark.parametrize("suffix", [".html", ".csv", ".svg"])
def test_it_is_written_as(
    suffix: str, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"compare{suffix}"
    assert guarded(["compare", *runs, "--output", str(path)]) == 0
    assert path.stat().st_size > 500
    if suffix == ".html":
        assert "Best private method by rmse: dp-bias" in path.read_text()
    if suffix == ".csv":
        assert pl.read_csv(path)["rmse"].drop_nulls().is_sorted()
    capsys.readouterr()


def test_a_folder_of_a_run_that_failed_is_left_out_with_a_note(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failed").mkdir()
    assert guarded(["compare", str(tmp_path / "failed"), *runs]) == 0
    said = capsys.readouterr()
    assert f"note: {tmp_path / 'failed'} holds no finished run and is left out" in said.err
    assert sum(" dp-bias" in line for line in said.out.splitlines()) == 2
    assert guarded(["compare", str(tmp_path / "failed")]) == 6


def test_json_and_an_unknown_metric(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["compare", *runs, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in rows} >= {"dp-bias", "item mean"}
    assert guarded(["compare", *runs, "--metric", "rsme"]) == 2
    assert "rmse" in capsys.readouterr().err
    assert guarded(["compare", *runs, "--output", str(tmp_path / "x.doc")]) == 2
