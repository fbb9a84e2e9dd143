"""Habits of users of scikit-learn, implicit and LensKit, and of whoever starts with a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars as pl
import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.data.splits import SplitKind
from fedrec.errors import RefusedError
from fedrec_server.serving.schemas import question


@pytest.fixture(scope="module")
def parts() -> tuple[fedrec.TrainingSet, fedrec.TestSet]:
    return fedrec.Dataset.planted("small").split()


@pytest.fixture(scope="module")
def model(parts: tuple[fedrec.TrainingSet, fedrec.TestSet]) -> fedrec.Recommender:
    return fedrec.ItemBias(noise="seeded").fit(parts[0])


def test_a_user_is_asked_for_by_id(model: fedrec.Recommender) -> None:
    assert model.recommend("3", k=4).equals(model.recommend(["3"], k=4).drop("user"))
    assert model.recommend(["3", "14"], k=4)["user"].to_list() == ["3"] * 4 + ["14"] * 4
    assert model.recommend(3, k=4).equals(model.recommend("3", k=4))
    with pytest.raises(fedrec.DataError, match="no user 'ann', and ids such as '1'") as refused:
        model.recommend("ann")
    assert "history" in refused.value.remedy


@pytest.mark.parametrize("kind", ["random", "held-out-users", "leave-last-out", "temporal"])
def test_a_test_set_is_predicted_row_by_row(kind: SplitKind) -> None:
    train, test = fedrec.Dataset.planted("small").split(kind)
    model = fedrec.ItemBias(noise="seeded").fit(train)
    found = model.predict(test)
    assert found.columns == ["user", "item", "prediction"]
    assert len(found) == len(test)
    if kind == "random":
        again = model.predict(found.select("user", "item"))
        assert again["prediction"].to_list() == pytest.approx(found["prediction"].to_list())


def test_a_test_set_of_other_items_is_refused(model: fedrec.Recommender) -> None:
    log = {"user": [1, 1, 2, 2] * 20, "item": list(range(80)), "rating": [1, 2, 3, 4] * 20}
    other = fedrec.Dataset.from_frame(log, rating_range=(1, 5)).split()[1]
    with pytest.raises(fedrec.DataError, match="other items"):
        model.predict(other)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.csv.gz", "x.inter", "a.jsonl"])
def test_a_table_for_a_scenario_is_answered_with_the_key(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"user,item\n1,2\n")
    assert guarded(["simulate", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert "is a table, not a scenario" in said
    assert f"fedrec train {tmp_path / name} -o model" in said


@pytest.mark.parametrize("flag", ["--file", "--input"])
def test_a_flag_for_the_data_is_answered_with_its_key(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(["simulate", flag, "log.csv"]) == 2
    assert "--set data.path=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["history", "items", "user", "user_id", "instances"])
def test_a_history_sent_to_the_server_is_answered_with_the_way_to_ask(name: str) -> None:
    with pytest.raises(RefusedError, match="no history is sent to this server") as refused:
        question(json.dumps({name: ["secret", "14"], "k": 5}).encode())
    assert "fedrec recommend" in refused.value.remedy
    assert "secret" not in str(refused.value)


LOG = {
    "reader": [10 + n // 6 for n in range(240)],
    "book": [100 + (n * 7 + n // 6) % 30 for n in range(240)],
    "stars": [1 + n * 3 % 5 for n in range(240)],
}
NAMED: dict[str, Any] = {"user": "reader", "item": "book"}


@pytest.fixture(scope="module")
def numbered() -> fedrec.Dataset:
    return fedrec.Dataset.from_frame(LOG, rating="stars", rating_range=(1, 5), **NAMED)


def test_ids_come_back_in_the_type_they_came_in(numbered: fedrec.Dataset, tmp_path: Path) -> None:
    model = fedrec.MatrixFactorization(noise="seeded").fit(numbered)
    one = model.recommend(10, k=3)
    assert set(one["item"]) <= set(LOG["book"])
    assert set(model.recommend(history={100: 5}, k=3)["item"]) <= set(model.item_ids)
    assert model.recommend([10, 11], k=1)["user"].to_list() == [10, 11]
    assert model.recommend(histories={10: [100], 11: []}, k=1)["user"].to_list() == [10, 11]
    assert model.recommend(histories={"ann": [100]}, k=1)["user"].to_list() == ["ann"]
    assert model.similar_items(100, k=1)["item"].dtype == pl.Int64
    assert model.predict(history={100: 5}, items=[101])["item"].to_list() == [101]
    assert fedrec.load(model.save(tmp_path / "model")).item_ids == model.item_ids
    text = fedrec.Dataset.from_frame({"user": ["1", "2"], "item": ["7", "8"]})
    assert text.item_ids == ("7", "8")


def test_ids_of_a_parquet_file_are_numbers_and_those_of_text_are_text(tmp_path: Path) -> None:
    pl.DataFrame(LOG).write_parquet(tmp_path / "log.parquet")
    pl.DataFrame(LOG).write_csv(tmp_path / "log.csv")
    told: dict[str, Any] = {"rating": "stars", "rating_range": (1, 5), **NAMED}
    assert fedrec.Dataset.from_file(tmp_path / "log.parquet", **told).item_ids[0] == 100
    assert fedrec.Dataset.from_file(tmp_path / "log.csv", **told).item_ids[0] == "100"


def test_items_with_ids_of_text_beside_rows_of_numbers_are_text() -> None:
    items = {"item": ["7", "x"], "title": ["seven", "another"]}
    data = fedrec.Dataset.from_frame({"user": [1, 2], "item": [7, 7]}, items=items)
    assert data.item_ids == ("7", "x")


def test_a_frame_is_predicted_by_the_columns_of_the_data(numbered: fedrec.Dataset) -> None:
    model = fedrec.ItemBias(noise="seeded").fit(numbered)
    found = model.predict(pandas.DataFrame(LOG))
    assert found.columns == ["reader", "book", "stars", "prediction"]
    usual = pl.DataFrame(LOG).rename({"reader": "user_id", "book": "item_id"})
    assert model.predict(usual)["prediction"].equals(found["prediction"])


def test_a_test_set_is_predicted_in_the_columns_of_the_data(numbered: fedrec.Dataset) -> None:
    train, test = numbered.split()
    model = fedrec.ItemBias(noise="seeded").fit(train)
    joined = test.to_frame().join(model.predict(test), on=["reader", "book"])
    rmse = math.sqrt(float(((joined["stars"] - joined["prediction"]) ** 2).mean()))  # type: ignore[arg-type]
    assert rmse == pytest.approx(-model.score(test))


def test_a_data_set_is_written_as_the_frame_it_came_from(numbered: fedrec.Dataset) -> None:
    frame = numbered.to_frame()
    wanted = pl.DataFrame(LOG).sort("reader", "book")
    assert frame.sort("reader", "book").select(wanted.columns).cast(pl.Int64).equals(wanted)
    again = fedrec.Dataset.from_frame(frame, rating="stars", rating_range=(1, 5), **NAMED)
    assert again.to_frame().equals(frame)
    train, test = numbered.split("held-out-users")
    assert train.to_frame().height == len(train)
    assert set(test.to_frame()["reader"]).isdisjoint(train.to_frame()["reader"])
    divided = fedrec.Dataset.from_frame(
        {"user": [1, 2], "item": [7, 8]}, test={"user": [1], "item": [8]}
    )
    assert divided.to_frame()["part"].to_list() == ["train", "train", "test"]


@pytest.mark.parametrize(
    "model", [fedrec.ItemItem(noise="seeded"), fedrec.MatrixFactorization(noise="seeded")]
)
def test_factors_of_users_and_items_make_the_list(model: fedrec.Recommender) -> None:
    model.fit(fedrec.Dataset.planted("small", kind="clicks"))
    scores = model.item_factors @ model.user_factors(["3", "14"])
    listed = model.recommend(history=["3", "14"], k=5)
    rows = [model.item_ids.index(item) for item in listed["item"]]
    assert scores[rows] == pytest.approx(listed["score"].to_numpy(), rel=1e-5)
    assert (
        np.delete(scores, [*rows, *map(model.item_ids.index, ["3", "14"])]).max()
        <= scores[rows].min()
    )
    assert model.user_factors(histories={"ann": ["3"], "bob": []}).shape[0] == 2
    assert model.user_factors(users="3").ndim == 1


@pytest.mark.parametrize(
    "given", [["3", "14"], {"3", "14"}, pl.Series(["3", "14"]), pandas.Series([3, 14])]
)
def test_a_list_leaves_out_what_is_excluded_and_keeps_to_a_filter(given: Any) -> None:
    model = fedrec.Popularity(noise="seeded").fit(fedrec.Dataset.planted("small", kind="clicks"))
    everything = model.recommend(history=["7"], k=200)["item"].to_list()
    left = model.recommend(history=["7"], k=200, exclude=given)["item"].to_list()
    assert left == [item for item in everything if item not in ("3", "14")]
    only = model.recommend(history=["7"], k=200, filter=given)["item"].to_list()
    assert only == [item for item in everything if item in ("3", "14")]
    assert (
        model.recommend(history=["7"], filter=lambda item: item in ("3", "14"))["item"].to_list()
        == only
    )
    with pytest.warns(fedrec.DataWarning, match="the list is empty"):
        assert model.recommend(history=["7"], filter=given, exclude=given).is_empty()


def test_a_model_says_its_epsilon() -> None:
    assert repr(fedrec.ItemItem()) == "ItemItem(epsilon=5.0)"
    assert "epsilon=5.0" in repr(fedrec.NewsRecommender())


def test_users_and_items_are_predicted_as_in_a_frame(numbered: fedrec.Dataset) -> None:
    model = fedrec.ItemBias(noise="seeded").fit(numbered)
    user = LOG["reader"][0]
    items = list(model.item_ids[:3])
    found = model.predict([user] * 3, items)
    assert found.columns == ["user", "item", "prediction"]
    assert found["user"].to_list() == [user] * 3
    assert found["item"].to_list() == items
    frame = pl.DataFrame({"user": [user] * 3, "item": items})
    assert found.equals(model.predict(frame))
    assert found.equals(model.predict(user, items))
    with pytest.raises(fedrec.SettingsError, match="2 users and 3 items"):
        model.predict([user] * 2, items)
    with pytest.raises(fedrec.SettingsError, match="users and a history"):
        model.predict(user, items, history=items)
