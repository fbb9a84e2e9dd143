"""Every source of data makes something of every key, or refuses it by name; so do constructors and
commands of every parameter."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

import fedrec
from fedrec.cli.main import app
from fedrec.data import read as reading
from fedrec.errors import FedRecError
from fedrec.run.data.datasets import load_dataset
from fedrec.settings_tables.data import DataSettings
from fedrec.settings_tables.splitting import SplitSettings
from tests.data import door_table
from tests.data.door_table import DOORS, KEYS, ROWS, TROUBLES, Door, print_of


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_no_key_is_ignored_by_a_source(door: Door) -> None:
    """About a second each: 40 keys by two readings or more."""
    found = door_table.column(door)
    assert {key: said for key, said in found.items() if said not in ("used", "refused")} == {}


def test_the_walk_has_every_key_and_every_format() -> None:
    walked = {key.name for key in KEYS}
    tables = (("data", DataSettings), ("split", SplitSettings))
    asked = {f"{table}.{key}" for table, kind in tables for key in kind.model_fields}
    assert asked - {"data.columns"} <= walked
    known = {*reading.FORMATS} - {"table"}  # five of the doors are tables
    assert known <= {door.name for door in DOORS}


def test_the_page_has_the_table_of_today() -> None:
    assert door_table.page() == door_table.PAGE.read_text()


def _frame(trouble: str) -> pl.DataFrame:
    rows = TROUBLES[trouble](ROWS)
    frame = pl.DataFrame(rows, schema=["user", "item", "rating", "when"], orient="row")
    if trouble in ("", "double", "off"):
        frame = frame.with_columns(pl.col("rating").cast(pl.Float64), pl.col("when").cast(pl.Int64))
    return frame.with_columns(
        who=pl.col("user").reverse(),
        what=pl.col("item").reverse(),
        stars=pl.col("rating").reverse(),
    )


NAMES = [str(j) for j in range(1, 7)]
PART = pl.DataFrame({"user": ["1"], "item": ["3"], "rating": [2.0]})
OF_FRAME: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "frame": ({"user": [1], "item": [2]}, "", {"rating_range": None}),
    "user": ("who", "", {}),
    "item": ("what", "", {}),
    "rating": ("stars", "", {}),
    "time": ("when", "", {}),
    "rating_range": ((0, 9), "", {}),
    "click_threshold": (3, "", {}),
    "items": ({"item": NAMES, "genre": [*"aabbcc"]}, "", {}),
    "similar_items": ({"item": ["1"], "neighbour": ["2"]}, "", {}),
    "item_vectors": ({"item": NAMES, "x": [1.0, 2, 3, 1, 5, 2]}, "", {}),
    "validation": (PART.with_columns(item=pl.lit("3"), user=pl.lit("5")), "", {"test": PART}),
    "test": (PART, "", {}),
    "duplicates": ("last", "double", {}),
    "out_of_range": ("drop", "off", {}),
    "missing": ("drop", "missing", {}),
    "decimal": (",", "comma", {}),
    "time_format": ("%d.%m.%Y", "dates", {"time": "when"}),
}
"""A value of each parameter that changes what is read, the trouble of the rows, what else is
said."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", inspect.signature(fedrec.Dataset.from_frame).parameters)
def test_every_parameter_of_from_frame_changes_what_is_read(name: str) -> None:
    value, trouble, more = OF_FRAME[name]

    def read(**said: Any) -> str:
        base = {"frame": _frame(trouble), "rating_range": (1, 5)}
        try:
            return print_of(fedrec.Dataset.from_frame(**{**base, **more, **said}).source)
        except FedRecError:
            return ""

    assert (found := read(**{name: value}))
    assert found != read()


FLAGS: dict[str, tuple[list[str], str]] = {
    "user": (["--user", "who"], ""),
    "item": (["--item", "what"], ""),
    "rating": (["--rating", "stars"], ""),
    "scale": (["--scale", "1", "9"], ""),
    "clicks_from": (["--clicks-from", "3"], ""),
    "time": (["--time", "at"], ""),
    "decimal": (["--decimal", ","], "comma"),
    "time_format": (["--time-format", "%d.%m.%Y", "--time", "when"], "dates"),
    "items": (["--items", "features.csv"], ""),
    "overrides": (["--set", "data.keep_users=5"], ""),
}
"""Flags of data by the name of their parameter. Others are no part of what is read."""
OTHERS = {
    *("file", "output", "epsilon", "delta", "overwrite", "resume", "verdicts", "as_json"),
    *("scenario", "data", "runtime", "clients", "seeds", "address", "ship"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", ["train", "simulate"])
def test_every_flag_of_data_changes_what_is_read(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = typer.main.get_command(app).get_command(None, verb)  # type: ignore[attr-defined]
    assert {own.name for own in command.params} - {"help"} == {*FLAGS} | (
        OTHERS & {own.name for own in command.params}
    )
    asked = list[Any]()
    monkeypatch.setattr("fedrec.run.simulate.run", lambda scenario, **_: asked.append(scenario))
    (tmp_path / "features.csv").write_text(door_table.FEATURES)
    beside = ["-o", "model"] if verb == "train" else ["--data"]
    for name, (flags, trouble) in FLAGS.items():
        log = tmp_path / f"{name}.csv"
        log.write_text(door_table.FIXED["log.csv"](TROUBLES[trouble](ROWS)))
        scale = [] if name == "scale" else ["--scale", "1", "5"]
        found = []
        for said in (flags, []):
            words = [verb, *beside, str(log), *scale, *said]
            assert CliRunner().invoke(app, words).exit_code == 0
            try:
                found.append(print_of(load_dataset(asked.pop())))
            except FedRecError:
                found.append("")
        assert found[0], name
        assert found[0] != found[1], name
