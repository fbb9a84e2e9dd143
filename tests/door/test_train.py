"""`fedrec train`: from a table to a folder that is served, with the next command at the end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.serving.bundle import FILE, read

FEW = ["--set", "compare.als=false"]


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    """10,000 clicks of 1,000 people on 30 books of two tastes."""
    rng = np.random.default_rng(1)
    readers = np.repeat(np.arange(1000), 10)
    books = 2 * rng.integers(0, 15, len(readers)) + readers % 2
    return pl.DataFrame({"reader": readers, "book": books, "shop": 1})


def written(table: pl.DataFrame, folder: Path, suffix: str) -> Path:
    path = folder / f"clicks{suffix}"
    if suffix == ".parquet":
        table.write_parquet(path)
    elif suffix == ".jsonl":
        table.write_ndjson(path)
    else:
        table.write_csv(path, separator="\t" if suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_a_table_becomes_a_folder_that_is_served_and_guesses_are_said(
    suffix: str,
    table: pl.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(table, tmp_path, suffix)
    assert guarded(["train", str(file), "-o", "my model", "--epsilon", "3", *FEW]) == 0
    said = capsys.readouterr().out
    assert "guessed: users in the column 'reader', items in the column 'book'" in said
    assert "columns not used: shop" in said
    assert said.splitlines()[-1] == "next       fedrec serve 'my model' --page"
    assert said.count("ε = 3 per user (add/remove, number of users public)") == 1
    assert read(tmp_path / "my model" / FILE).about.training["epsilon"] == 3
    assert fedrec.load(tmp_path / "my model" / "model").guarantee.epsilon == 3


@pytest.mark.slow
def test_a_trained_model_is_kept_unless_it_is_to_be_overwritten(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(table, tmp_path, ".csv")
    ask = ["train", str(file), "-o", str(tmp_path / "model"), "--json", *FEW]
    assert guarded(ask) == 0
    before = (tmp_path / "model" / FILE).read_bytes()
    assert guarded(ask) == 6
    assert "--overwrite" in capsys.readouterr().err
    assert guarded([*ask, "--user", "nobody", "--overwrite"]) == 3
    assert (tmp_path / "model" / FILE).read_bytes() == before, "a wrong column costs no model"
    assert guarded([*ask, "--overwrite"]) == 0
    assert (tmp_path / "model" / FILE).read_bytes() != before
    (tmp_path / "model" / "result.json").unlink()
    assert guarded(ask) == 6
    assert "--resume continues it" in capsys.readouterr().err
    assert guarded([*ask, "--resume"]) == 0


@pytest.mark.slow
def test_ratings_need_their_scale_and_a_scenario_takes_the_same_flags(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rated = table.unique(["reader", "book"]).with_columns(stars=pl.col("book") % 5 + 1)
    file = written(rated, tmp_path, ".csv")
    where = ["--set", f"run.directory={json.dumps(str(tmp_path / 'runs'))}", "--json"]
    own = ["--data", str(file), "--rating", "stars", "--scale", "1", "5", "--epsilon", "2"]
    assert guarded(["simulate", *own, *where, "--set", "evaluation.ranking=false", *FEW]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["guarantee"]["epsilon"] == 2
    assert "rmse" in found["metrics"]
    assert guarded(["train", str(file), "--rating", "stars", "-o", str(tmp_path / "m")]) == 2
    assert "--scale 1 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (("reviewerID", "asin"), {}),
        (("customer_id", "product_id"), {}),
        (("user", "book"), {}),
        (("uid", "thing"), {}),  # of two columns the other one
        (("a", "b"), None),
        (("user_id", "member", "item"), None),
    ],
)
def test_columns_are_guessed_where_one_alone_is_meant(
    header: tuple[str, ...], named: dict[str, str] | None
) -> None:
    frame = pl.DataFrame({name: ["1", "2"] for name in header})
    if named is None:
        with pytest.raises(fedrec.DataError):
            fedrec.Dataset.from_frame(frame)
        return
    data = fedrec.Dataset.from_frame(frame)
    assert (data.source.columns["user"], data.source.columns["item"]) == header
