"""Habits of users of scikit-learn, implicit and LensKit, and of whoever starts with a file."""

from __future__ import annotations

import json
from pathlib import Path

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
