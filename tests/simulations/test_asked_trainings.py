"""No training that was not asked for: people's own data in the place of a scenario's is trained once,
by every way to start a run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedrec
import fedrec_app
from fedrec.cli.main import guarded
from fedrec.run import simulate
from fedrec.run.training import epsilons_of
from fedrec.settings import load
from fedrec.shipped import shipped
from fedrec_app.server_app import scenario_of

RECIPE = "dp-bias"
SCALE = "data.rating_range=[1, 5]"


def by_command(table: Path, folder: Path, words: tuple[str, ...]) -> None:
    """`fedrec simulate` with its flags."""
    own = ["--data", str(table), "--epsilon", "2"]
    sets = [f"run.directory={folder}", f"recipe={RECIPE}", SCALE, *words]
    assert guarded(["simulate", "planted", *own, *(f"--set={one}" for one in sets)]) == 0


def by_set(table: Path, folder: Path, words: tuple[str, ...]) -> None:
    """`fedrec simulate` with --set alone."""
    sets = [f"data.path={table}", "privacy.epsilon=2", f"run.directory={folder}"]
    sets += [f"recipe={RECIPE}", SCALE, *words]
    assert guarded(["simulate", "planted", *(f"--set={one}" for one in sets)]) == 0


def by_flower(table: Path, folder: Path, words: tuple[str, ...]) -> None:
    """`flwr run` with -c; the scenario is what its ServerApp trains."""
    pyproject = Path(fedrec_app.__file__).with_name("pyproject.toml").read_text()
    config = tomllib.loads(pyproject)["tool"]["flwr"]["app"]["config"]
    sets = " ".join(f"'{one}'" for one in (f"recipe={RECIPE}", SCALE, *words))
    own = {"data": str(table), "epsilon": 2.0, "folder": str(folder), "set": sets}
    simulate.run(scenario_of(config | own), name="flower", quiet=True)


def by_python(table: Path, folder: Path, words: tuple[str, ...]) -> None:
    """`fedrec.simulate` with a data set in memory."""
    data = fedrec.Dataset.from_file(table, rating_range=(1, 5))
    fedrec.simulate("planted", data, epsilon=2, directory=folder, settings=keys(words))


def by_python_settings(table: Path, folder: Path, words: tuple[str, ...]) -> None:
    """`fedrec.simulate` with the path in settings, as a key or as a table."""
    settings = {"data": {"path": str(table), "rating_range": [1, 5]}, **keys(words)}
    fedrec.simulate("planted", epsilon=2, directory=folder, settings=settings)


def keys(words: tuple[str, ...]) -> dict[str, Any]:
    split = [one.partition("=") for one in words]
    return {"recipe": RECIPE, **{key: json.loads(value) for key, _, value in split}}


WAYS: tuple[Callable[[Path, Path, tuple[str, ...]], None], ...] = (
    by_command, by_set, by_flower, by_python, by_python_settings,
)  # fmt: skip


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    draw = np.random.default_rng(1)
    rows = {"user": draw.integers(0, 60, 600), "item": draw.integers(0, 30, 600)}
    frame = pl.DataFrame({**rows, "rating": draw.integers(1, 6, 600)}).unique(["user", "item"])
    frame.sort("user", "item").write_csv(tmp_path / "ratings.csv")
    return tmp_path / "ratings.csv"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_own_data_is_trained_once_and_oftener_only_where_that_is_asked_for(
    way: Callable[[Path, Path, tuple[str, ...]], None], table: Path, tmp_path: Path
) -> None:
    found = {}
    for name, words in (("once", ()), ("asked", ("compare.epsilons=[2, 3]",))):
        way(table, tmp_path / name, words)
        found[name] = len(list((tmp_path / name).glob("*/epsilon-*")))
    assert found == {"once": 1, "asked": 2}


@pytest.mark.parametrize("name", shipped())
def test_no_scenario_that_comes_with_fedrec_trains_own_people_to_compare(name: str) -> None:
    mind = ["data.format=mind"] if load(shipped()[name]).learns_news else []
    scenario = load(shipped()[name], ["data.path=of-people", *mind])
    trained = epsilons_of(scenario.privacy, scenario.compare)
    assert scenario.privacy.noise == "seeded" or trained == [scenario.privacy.epsilon]
    assert scenario.privacy.noise == "seeded" or not scenario.compare.published
