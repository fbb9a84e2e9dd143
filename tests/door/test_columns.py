"""Columns of a table: one rule for frames, text, Parquet and RecBole, and nothing unused unsaid."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time
from pathlib import Path
from typing import Any

import pandas
import polars as pl
import pytest

import fedrec

LOG = {"user": [1, 1, 2], "item": [7, 8, 7]}


def _written(frame: pl.DataFrame, path: Path, suffix: str) -> Path:
    file = path / f"log{suffix}"
    if suffix == ".parquet":
        frame.write_parquet(file)
    else:
        frame.write_csv(file, separator="\t" if suffix == ".tsv" else ",")
    return file


Door = Callable[..., fedrec.Dataset]
DOORS: dict[str, Door] = {
    "polars": lambda frame, path, **said: fedrec.Dataset.from_frame(frame, **said),
    "pandas": lambda frame, path, **said: fedrec.Dataset.from_frame(
        pandas.DataFrame(frame.to_dict(as_series=False)), **said
    ),
    "columns": lambda frame, path, **said: fedrec.Dataset.from_frame(
        frame.to_dict(as_series=False), **said
    ),
    **{
        suffix: lambda frame, path, suffix=suffix, **said: fedrec.Dataset.from_file(
            _written(frame, path, suffix), **said
        )
        for suffix in (".csv", ".tsv", ".parquet")
    },
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["rating", "stars", "Score", "overall", "user_rating"])
def test_a_scale_reads_the_column_that_is_called_as_ratings_are(
    door: str, name: str, tmp_path: Path
) -> None:
    data = DOORS[door](pl.DataFrame({**LOG, name: [5, 1, 3]}), tmp_path, rating_range=(1, 5))
    assert (data.kind, data.source.interactions.values.tolist()) == ("ratings", [5, 1, 3])


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["stars", "score", "thumb", "Likes", "plays", "count", "weight"])
def test_an_opinion_that_is_not_used_is_warned_of_and_noted(
    door: str, name: str, tmp_path: Path
) -> None:
    with pytest.warns(fedrec.UnusedColumnsWarning, match=f"'{name}' is not used") as said:
        data = DOORS[door](pl.DataFrame({**LOG, name: [1, 0, 1], "shop": [1, 1, 1]}), tmp_path)
    assert said[0].filename == __file__
    assert data.notes[0] == f"columns not used: {name}, shop"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("timestamp", [1_700_000_000, 1_700_000_060, 1_700_000_120]),
        ("Date", ["2023-11-14", "2023-11-15", "2023-11-16"]),
    ],
)
def test_times_are_read_from_the_column_that_is_called_so(
    door: str, name: str, values: list[object], tmp_path: Path
) -> None:
    data = DOORS[door](pl.DataFrame({**LOG, name: values}), tmp_path)
    times = data.source.interactions.times
    assert times is not None
    assert times.min() >= 1_699_920_000
    assert data.notes[0] == f"guessed: times in the column {name!r}"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "values",
    [
        ["soon", "late", "now"],
        [None, 1_700_000_000, None],
        [time(9, 30)] * 3,
        [True, False, True],
    ],
)
def test_a_column_of_that_name_without_times_is_not_used(
    door: str, values: list[object], tmp_path: Path
) -> None:
    data = DOORS[door](pl.DataFrame({**LOG, "time": values}), tmp_path)
    assert data.source.interactions.times is None
    assert "columns not used: time" in data.notes


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", ["%d.%m.%Y %H:%M", "%m/%d/%Y", "%d-%m-%Y %H:%M:%S"])
def test_times_that_are_written_otherwise_are_noted_with_the_words_to_say(
    door: str, form: str, tmp_path: Path
) -> None:
    times = [datetime(2024, 1, day, 12, 30).strftime(form) for day in (14, 15, 16)]
    data = DOORS[door](pl.DataFrame({**LOG, "time": times}), tmp_path)
    assert data.source.interactions.times is None
    (note,) = (note for note in data.notes if note.startswith("no times are read from 'time'"))
    assert f"'{form}'" in note


@pytest.mark.parametrize("door", DOORS)
def test_other_columns_are_noted_and_nothing_is_warned_of(door: str, tmp_path: Path) -> None:
    data = DOORS[door](pl.DataFrame({**LOG, "shop": [1, 1, 1]}), tmp_path)
    assert data.notes[0] == "columns not used: shop"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "ratings without a scale": ({"rating": [5, 1, 3]}, {}, "no rating_range"),
    "two columns of ratings": (
        {"stars": [5, 1, 3], "score": [1, 2, 3]},
        {"rating_range": (1, 5)},
        "may be ratings: stars, score",
    ),
    "a scale of nothing": ({"shop": [1, 1, 1]}, {"rating_range": (1, 5)}, "rating"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", REFUSED)
def test_what_may_be_ratings_is_never_guessed_away(door: str, case: str, tmp_path: Path) -> None:
    more, said, cause = REFUSED[case]
    with pytest.raises(fedrec.FedRecError, match=cause):
        DOORS[door](pl.DataFrame({**LOG, **more}), tmp_path, **said)


@pytest.mark.parametrize("door", DOORS)
def test_columns_are_named_alike_for_frames_and_files(door: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"who": [1, 1, 2], "what": [7, 8, 7], "plus": [5, 1, 3], "at": [1, 2, 3]})
    names = {"user": "who", "item": "what", "rating": "plus", "time": "at"}
    data = DOORS[door](frame, tmp_path, **names, rating_range=(1, 5))
    assert data.source.interactions.times is not None
    assert data.source.columns == {"user": "who", "item": "what", "rating": "plus"} | {
        "timestamp": "at"
    }


def test_a_column_of_recbole_is_warned_of_too(tmp_path: Path) -> None:
    (tmp_path / "x.inter").write_text("user_id:token\titem_id:token\tstars:float\n1\ta\t5\n")
    with pytest.warns(fedrec.UnusedColumnsWarning, match="'stars' is not used"):
        assert fedrec.Dataset.from_file(tmp_path / "x.inter").notes == ("columns not used: stars",)
