"""`fedrec data split` writes what a run with the same settings trains on and is tested on, by the
ids of the source."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from fedrec.cli.main import app
from fedrec.data.planted import PlantedShape, write_parquet
from fedrec.errors import RunError, SettingsError
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.data.split_files import write_split
from fedrec.settings import load
from fedrec.storage import read_json

OPTIONS = [
    "data.rating_range=[1,5]",
    "data.columns.rating=rating",
    "data.columns.timestamp=timestamp",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_parquet(folder, PlantedShape(users=80, items=60, events=1_200), seed=1)
    return folder


@pytest.mark.parametrize("kind", ["random", "held-out-users", "temporal", "leave-last-out"])
def test_the_three_files_hold_every_row_of_the_source_once_as_a_run_divides_them(
    source: Path, tmp_path: Path, kind: str
) -> None:
    overrides = [word for option in [*OPTIONS, f"split.kind={kind}"] for word in ("--set", option)]
    done = CliRunner().invoke(
        app, ["data", "split", str(source), "--output", str(tmp_path / "parts"), *overrides]
    )
    assert done.exit_code == 0, done.output
    parts = {
        name: pl.read_parquet(tmp_path / "parts" / f"{name}.parquet")
        for name in ("train", "validation", "test")
    }
    columns = ["user", "item", "rating", "timestamp"]
    whole = pl.concat([part.select(columns) for part in parts.values()]).sort(columns)
    rows = pl.concat([pl.read_parquet(file) for file in sorted(source.glob("*.parquet"))])
    assert whole.equals(
        rows.select(pl.col("user", "item").cast(pl.String), "rating", "timestamp").sort(columns)
    )
    scenario = load(None, [f'data.path="{source}"', *OPTIONS, f"split.kind={kind}"])
    split = load_split(scenario, load_dataset(scenario))
    assert len(parts["train"]) == len(split.train)
    assert parts["train"]["rating"].to_list() == split.train.values.tolist()
    for name, fold in (("validation", split.validation), ("test", split.test)):
        targets = parts[name].filter(pl.col("target")) if kind == "held-out-users" else parts[name]
        assert targets["rating"].to_list() == fold.targets.values.tolist()
    if kind == "held-out-users":
        assert not set(parts["train"]["user"]) & (
            set(parts["validation"]["user"]) | set(parts["test"]["user"])
        )
    assert (
        read_json(tmp_path / "parts" / "split.json")["split"]["sha256"]
        == split.describe()["sha256"]
    )
    assert ("the cuts in time" in done.output) == (kind == "temporal")


def test_for_programs_it_prints_what_split_json_says(source: Path, tmp_path: Path) -> None:
    words = [word for option in OPTIONS for word in ("--set", option)]
    done = CliRunner().invoke(
        app, ["data", "split", str(source), "--output", str(tmp_path / "parts"), "--json", *words]
    )
    assert json.loads(done.output) == {
        "folder": str(tmp_path / "parts"),
        **read_json(tmp_path / "parts" / "split.json"),
    }


def test_a_folder_that_holds_something_is_not_written_into_unless_told(
    source: Path, tmp_path: Path
) -> None:
    scenario = load(None, [f'data.path="{source}"', *OPTIONS])
    (tmp_path / "mine.txt").write_text("keep me")
    for overwrite in (False, True):
        with pytest.raises(RunError, match=r"something else: mine.txt"):
            write_split(scenario, tmp_path, overwrite=overwrite)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    for overwrite in (False, True):
        write_split(scenario, tmp_path / "parts", overwrite=overwrite)
    with pytest.raises(RunError, match="overwrite"):
        write_split(scenario, tmp_path / "parts")
    with pytest.raises(RunError, match="is a file"):
        write_split(scenario, tmp_path / "mine.txt")


def test_news_have_no_such_files(tmp_path: Path) -> None:
    words = [
        "recipe=privaterec",
        "privacy.unit=click",
        "data.format=planted-news",
        "data.preset=small",
    ]
    with pytest.raises(SettingsError, match="no table"):
        write_split(load(None, words), tmp_path / "parts")
