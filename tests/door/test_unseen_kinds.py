"""Mistakes of the same kinds as those of the other files here: an index for a column, a column
that is another role's, an id written as a number with a gap, a history that turned out empty."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import fedrec
from fedrec.errors import (
    DataError,
    GenericListWarning,
    RunError,
    SettingsError,
    UnusedColumnsWarning,
)

LOG = pd.DataFrame(
    {
        "user": [f"u{n // 4}" for n in range(40)],
        "item": [f"{n % 10:03d}" for n in range(40)],
        "rating": [n % 5 + 1 for n in range(40)],
    }
)


def test_the_names_of_an_index_are_columns() -> None:
    columns = fedrec.Dataset.from_frame(LOG, rating_range=(1, 5))
    indexed = fedrec.Dataset.from_frame(LOG.set_index("user"), rating_range=(1, 5))
    grouped = LOG.groupby(["user", "item"])["rating"].mean().to_frame()
    both = fedrec.Dataset.from_frame(grouped, rating_range=(1, 5))
    assert indexed.to_frame().equals(columns.to_frame())
    assert sorted(both.to_frame().rows()) == sorted(columns.to_frame().rows())


@pytest.mark.parametrize("other", ["rating", "timestamp", "thumb"])
def test_of_two_columns_the_one_that_is_another_roles_holds_no_users(other: str) -> None:
    with pytest.raises((DataError, SettingsError), match=r"no column 'user'|no rating_range"):
        fedrec.Dataset.from_frame(LOG[["item", "rating"]].rename(columns={"rating": other}))


def test_two_columns_of_one_name_are_refused_by_name() -> None:
    twice = pd.concat([LOG[["user", "item"]], LOG[["item"]]], axis=1)
    with pytest.raises(DataError, match="several columns 'item'"):
        fedrec.Dataset.from_frame(twice)


def test_a_kind_of_event_that_is_not_used_is_said_and_stands_in_the_repr() -> None:
    log = LOG[["user", "item"]].assign(event="view")
    with pytest.warns(UnusedColumnsWarning, match="the column 'event' is not used"):
        data = fedrec.Dataset.from_frame(log)
    assert repr(data).endswith("columns not used: event)")
    quiet = fedrec.Dataset.from_frame(LOG[["user", "item"]].assign(colour="red"))
    assert repr(quiet).endswith("columns not used: colour)")


def test_one_person_written_as_1_and_as_1_0_is_refused() -> None:
    log = pd.DataFrame({"user": ["1", "1.0", "2", "v1.0"], "item": list("abcd")})
    with pytest.raises(DataError, match=r"row 1 .* found '1\.0'"):
        fedrec.Dataset.from_frame(log)
    alone = fedrec.Dataset.from_frame(log[log["user"] != "1.0"])
    assert sorted(alone.to_frame()["user"].to_list()) == ["1", "2", "v1.0"]


def test_a_history_that_turned_out_empty_gets_everybodys_list_with_a_warning() -> None:
    train, _ = fedrec.Dataset.from_frame(LOG, rating_range=(1, 5)).split()
    model = fedrec.ItemBias(noise="seeded").fit(train)
    liked = pd.Series({"001": 5.0})
    with pytest.warns(GenericListWarning, match="history is empty"):
        model.recommend(history=liked[liked > 5], k=2)
    with pytest.warns(GenericListWarning, match="all histories are empty"):
        model.recommend(histories={"ann": [], "bob": []}, k=2)
    model.recommend(histories={"ann": ["001"], "bob": []}, k=2)  # bob is new, and that is known


def test_a_model_that_was_not_trained_says_so_to_whoever_asks_for_a_user() -> None:
    with pytest.raises(RunError, match="ItemBias is not trained"):
        fedrec.ItemBias().recommend("ann")


@pytest.mark.parametrize("suffix", [".xlsx", ".feather", ".pkl", ".sqlite"])
def test_a_table_of_another_program_is_refused_with_what_to_do(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"log{suffix}"
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="is not read") as refused:
        fedrec.Dataset.from_file(file)
    assert "as CSV or Parquet" in refused.value.remedy
