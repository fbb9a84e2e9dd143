"""Odd inputs of further kinds: containers, public tables, numbers that are marks, flags said twice.
Each is refused, or warned of, by name."""

from __future__ import annotations

import datetime
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedrec
from fedrec.cli.main import guarded
from fedrec.errors import DataWarning, FedRecError

U = [n // 5 for n in range(100)]
I = [(n * 3 + n // 5) % 11 for n in range(100)]  # noqa: E741
ALL = [*range(11)]
DAYS = [datetime.date(2026, 1, 1 + item) for item in I]


def log(**changed: Any) -> dict[str, Any]:
    return {"user": U, "item": I, **changed}


def frame(table: Any, **said: Any) -> Callable[[], Any]:
    return lambda: fedrec.Dataset.from_frame(table, **said)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "a lazy frame that fails": (frame(pl.LazyFrame(log()).select("who")), "cannot be read"),
    "marks for ids": (frame(log(user=[bool(u % 2) for u in U])), "'user' holds true and false"),
    "days for ids": (frame(log(item=DAYS)), "'item' holds times"),
    "a mark for a threshold": (
        frame(log(stars=U), rating="stars", click_threshold=True),
        "click_threshold = True is no number",
    ),
    "marks for times": (frame(log(when=[True] * 100), time="when"), "holds true and false"),
    "links of items to themselves": (
        frame(log(), similar_items={"item": ALL, "similar": ALL}),
        "links every item to itself alone",
    ),
    "links without an item": (
        frame(log(), similar_items={"item": [None, *ALL[1:]], "similar": ALL}),
        "line 0: expected an item",
    ),
    "vectors without an item": (
        frame(log(), item_vectors={"item": [None, *ALL[1:]], "x": ALL}),
        "'None' in the place of an id",
    ),
    "records for features": (
        frame(log(), items={"item": ALL, "about": [{"genre": "x"}] * 11}),
        "'about' of items holds records",
    ),
    "bytes for features": (
        frame(log(), items={"item": ALL, "cover": [b"x"] * 11}),
        "'cover' of items holds records, bytes",
    ),
    "a test of the training's rows": (frame(log(), test=log()), "none is left"),
    "a mark for epsilon": (
        lambda: fedrec.Popularity(epsilon=True).fit(fedrec.Dataset.from_frame(log())),
        "epsilon is a number, found True",
    ),
    "one text for epsilons": (
        lambda: fedrec.privacy_curve(
            fedrec.Popularity(noise="seeded"),
            fedrec.Dataset.from_frame(log()),
            epsilons="10",  # type: ignore[arg-type]
        ),
        "a curve needs a list",
    ),
    "arrays of no dimension": (
        frame({"user": np.array(3), "item": np.array(4)}),
        "the frame cannot be read",
    ),
    "an address that became a path": (
        lambda: fedrec.Dataset.from_file(Path("https://example.org/log.csv")),
        "is an address",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_by_name(case: str) -> None:
    act, said = CASES[case]
    with pytest.raises(FedRecError, match=said) as refused:
        act()
    assert refused.value.remedy


IDS: dict[str, Callable[[Any, Any], Any]] = {
    "users": lambda model, id: model.recommend(id),
    "items": lambda model, id: model.recommend(history=[1], items=id),
    "exclude": lambda model, id: model.recommend(history=[1], exclude=id),
    "history": lambda model, id: model.recommend(history=id),
    "histories": lambda model, id: model.recommend(histories=id),
    "similar": lambda model, id: model.similar_items(id),
    "predict": lambda model, id: model.predict(history=[1], items=id),
    "vectors": lambda model, id: model.user_factors(users=id),
}


def test_an_array_of_no_dimension_is_no_list_of_ids() -> None:
    model = fedrec.Popularity(noise="seeded").fit(fedrec.Dataset.from_frame(log()))
    for ask in IDS.values():
        with pytest.raises(FedRecError, match=r"no list|array of shape|not a mapping"):
            ask(model, np.array(1))


def test_a_download_that_broke_off_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Polars would print a panic of its own."""
    whole = gzip.compress(pl.DataFrame(log()).write_csv().encode())
    (tmp_path / "log.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(FedRecError, match="cannot be read: Compressed file ended"):
        fedrec.Dataset.from_file(tmp_path / "log.csv.gz")
    assert capfd.readouterr() == ("", "")


def test_vectors_that_are_all_the_same_are_warned_of() -> None:
    with pytest.warns(DataWarning, match="tell nothing"):
        frame(log(), item_vectors={"item": ALL, "x": [1.0] * 11})()


@pytest.mark.parametrize("verb", ["train", "simulate"])
def test_a_key_that_a_flag_and_set_say_is_refused(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log.csv"
    pl.DataFrame(log()).write_csv(file)
    where = [str(file), "-o", str(tmp_path / "m")] if verb == "train" else ["--data", str(file)]
    for word in ("privacy.epsilon=2", f"data.path={file}"):
        assert guarded([verb, *where, "--epsilon", "5", "--set", word]) == 2
        assert f"--set {word} says what a flag says" in capsys.readouterr().err


def test_a_number_of_a_scenario_is_no_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("[privacy]\nepsilon = true\n")
    assert guarded(["account", str(scenario)]) == 2
    assert "epsilon is a number, found True" in capsys.readouterr().err
