"""Runs on data that comes with its own training, validation and test rows, of ratings and of
clicks."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from fedrec.cli.main import app
from fedrec.data.planted import PlantedShape, write_parquet
from fedrec.errors import DataError, LeakageError, SettingsError
from fedrec.run.data.datasets import load_dataset, load_split, words_of_data
from fedrec.settings import load

# a part that was held out has items that nobody rated in training: whoever runs it is told
pytestmark = pytest.mark.filterwarnings("ignore::fedrec.errors.UnknownIdsWarning")

QUICK = [
    "compare.als=false",
    "evaluation.ranking=false",
    "run.examples=0",
    "privacy.noise=seeded",
    "recipe=dp-bias",
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_parquet(folder / "whole", PlantedShape(users=80, items=60, events=1_200), seed=1)
    told = ["--set", "data.rating_range=[1,5]", "--set", "data.columns.timestamp=timestamp"]
    done = CliRunner().invoke(
        app, ["data", "split", str(folder / "whole"), "--output", str(folder / "parts"), *told]
    )
    assert done.exit_code == 0, done.output
    return folder / "parts"


def sizes(folder: Path) -> dict[str, int]:
    return {
        name: len(pl.read_parquet(folder / f"{name}.parquet"))
        for name in ("train", "validation", "test")
    }


def test_what_data_split_wrote_is_read_as_the_same_parts(parts: Path) -> None:
    scenario = load(None, [f"data.path={parts}", "data.rating_range=[1,5]", "split.kind=given"])
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    rows = sizes(parts)
    assert (len(split.train), len(split.validation.targets), len(split.test.targets)) == tuple(
        rows.values()
    )
    assert split.test.history is split.train
    assert words_of_data(dataset, split)[-1].endswith(
        f"given training rows; {rows['validation']} validation rows of the data's own"
    )


def test_named_test_rows_say_how_the_data_is_divided(parts: Path) -> None:
    keys = [
        f"data.path={parts / 'train.parquet'}",
        f"data.test={parts / 'test.parquet'}",
        "data.rating_range=[1,5]",
    ]
    scenario = load(None, keys)
    assert scenario.split.kind == "given"
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    assert len(split.train) == sizes(parts)["train"]
    assert len(split.validation.targets) == 0
    assert "; 0 validation rows kept back" in words_of_data(dataset, split)[-1]
    kept = load(None, [*keys, "split.validation_share=0.2"])
    shared = load_split(kept, dataset)
    assert len(shared.train) + len(shared.validation.targets) == len(split.train)
    assert 0.1 < len(shared.validation.targets) / len(split.train) < 0.3
    for wrong in ("split.kind=random", "data.path=''"):
        with pytest.raises(SettingsError, match=r"data\.test"):
            load(None, [*keys, wrong])
    own = load(
        None,
        [*keys, f"data.validation={parts / 'validation.parquet'}", "split.validation_share=0.2"],
    )
    with pytest.raises(SettingsError, match="this data has validation rows"):
        load_split(own, load_dataset(own))
    with pytest.raises(LeakageError):
        load_dataset(load(None, [keys[0], f"data.test={parts / 'train.parquet'}", keys[2]]))


def test_test_users_without_training_rows_are_counted_and_refused_where_there_are_no_others(
    parts: Path, tmp_path: Path
) -> None:
    rows = pl.read_parquet(parts / "test.parquet")
    stranger = rows.head(1).with_columns(pl.lit("nobody").alias("user"))
    train = pl.read_parquet(parts / "train.parquet").with_columns(pl.col("user").cast(pl.String))
    train.write_parquet(tmp_path / "train.parquet")

    def read(test: pl.DataFrame) -> list[str]:
        test.write_parquet(tmp_path / "test.parquet")
        keys = [f"data.path={tmp_path}", "data.rating_range=[1,5]", "split.kind=given"]
        scenario = load(None, keys)
        dataset = load_dataset(scenario)
        return words_of_data(dataset, load_split(scenario, dataset))

    known = rows.with_columns(pl.col("user").cast(pl.String))
    tested = known["user"].n_unique()
    assert not any("no training rows" in words for words in read(known))
    said = f"1 of {tested + 1} test users have no training rows: they get the list for nobody"
    assert read(pl.concat([known, stranger]))[-1].startswith(said)
    with pytest.raises(DataError, match="training names none of the 1 users"):
        read(stranger)


@pytest.mark.parametrize(
    ("more", "validated"), [([], False), (["split.validation_share=0.1"], True)]
)
def test_a_run_without_validation_rows_trains_on_all_and_says_so(
    parts: Path, more: list[str], validated: bool, tmp_path: Path
) -> None:
    keys = [
        f"data.path={parts / 'train.parquet'}",
        f"data.test={parts / 'test.parquet'}",
        "data.rating_range=[1,5]",
    ]
    words = [
        word
        for key in (*keys, *QUICK, *more, f"run.directory={tmp_path}")
        for word in ("--set", key)
    ]
    done = CliRunner().invoke(app, ["simulate", *words])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    train = sizes(parts)["train"]
    assert (
        f"trained on {train:,} of {train:,} given training rows; 0 validation rows" in said
    ) == (not validated)
    [rounds] = tmp_path.glob("*/epsilon-5/rounds.jsonl")
    measured = [json.loads(line)["validation"] for line in rounds.read_text().splitlines()]
    assert all(isinstance(value, float) == validated for value in measured)


@pytest.mark.parametrize("recipe", ["default", "dp-popularity"])
def test_clicks_with_repeats_and_their_own_test_rows_run_and_are_counted(
    recipe: str, parts: Path, tmp_path: Path
) -> None:
    for name in ("train", "test"):
        rows = pl.read_parquet(parts / f"{name}.parquet").select("user", "item")
        more = (
            rows.head(7)
            if name == "train"
            else pl.read_parquet(parts / "train.parquet").select("user", "item").head(5)
        )
        pl.concat([rows, more]).write_csv(tmp_path / f"{name}.csv", separator=";")
    keys = [
        f"recipe={recipe}",
        f"data.path={tmp_path / 'train.csv'}",
        f"data.test={tmp_path / 'test.csv'}",
        f"run.directory={tmp_path / 'runs'}",
    ]
    words = [
        word
        for key in (*keys, "privacy.noise=seeded", "compare.als=false", "run.examples=0")
        for word in ("--set", key)
    ]
    done = CliRunner().invoke(app, ["simulate", *words])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "7 repeated rows of one user and item merged" in said
    assert "5 rows of test.csv repeat a user and item of an earlier part" in said
    assert "separated by semicolon, guessed" in said


def test_als_without_validation_rows_is_its_last_iteration(parts: Path) -> None:
    from fedrec.evaluation.als import als_model

    scenario = load(
        None,
        [
            f"data.path={parts / 'train.parquet'}",
            f"data.test={parts / 'test.parquet'}",
            "data.rating_range=[1,5]",
        ],
    )
    split = load_split(scenario, load_dataset(scenario))
    assert als_model(split.train, split.validation, seed=1).item_vectors.shape[0] > 0


def test_planted_files_have_the_sizes_asked_for(tmp_path: Path) -> None:
    sizes = ["--users", "60", "--items", "50", "--events", "600"]
    done = CliRunner().invoke(app, ["data", "plant", str(tmp_path / "planted"), *sizes])
    assert done.exit_code == 0, done.output
    rows = pl.concat(
        [pl.read_parquet(file) for file in sorted((tmp_path / "planted").glob("*.parquet"))]
    )
    assert (len(rows), rows["user"].n_unique()) == (600, 60)
    for wrong in (sizes[:4], [*sizes, "--preset", "small"]):
        assert isinstance(
            CliRunner().invoke(app, ["data", "plant", str(tmp_path / "x"), *wrong]).exception,
            SettingsError,
        )
