"""The figures of Ada-DPALS: complete, resumable, and blind to test until the end."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.multitask import TaskShape
from fedrec.data.splits import Split, random_split
from fedrec.errors import SettingsError
from fedrec.settings import validated
from fedrec_simulations.papers import ada_dpals, ada_dpals_runs, ada_dpals_tasks
from fedrec_simulations.papers.ada_dpals_runs import TAIL, UNIFORM, Bench, ada, one_run, scenario_of
from fedrec_simulations.papers.ada_dpals_tasks import Point

SCENARIOS = Path(__file__).parents[2] / "simulations"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.mark.parametrize("name", ada_dpals.FIGURES)
def test_every_figure_is_json_rows_with_their_guarantees(name: str, folder: Path) -> None:
    rows = ada_dpals.figure(name, "planted", True, folder)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert all(row["figure"] == name and len(row["each"]) == 1 and np.isfinite(row["value"]) for row in rows)
    assert len({(row["series"], row["x"]) for row in rows}) == len(rows)
    if name != "figure7":
        assert all("per user (add/remove)" in row["guarantee"] or row["guarantee"] == "no privacy" for row in rows)


def test_every_published_statement_has_its_figure() -> None:
    assert set(ada_dpals.PUBLISHED) <= set(ada_dpals.FIGURES)
    assert all(said["how"] for said in ada_dpals.PUBLISHED.values())


def test_a_figure_is_not_trained_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ada_dpals.figure("figure1", "planted", True, folder)
    monkeypatch.setattr(ada_dpals_runs, "one_run", None)
    assert ada_dpals.figure("figure1", "planted", True, folder) == before


def test_another_name_and_no_data_are_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="figure77"):
        ada_dpals.figure("figure77", "planted", True, folder)
    with pytest.raises(SettingsError, match="data folder"):
        ada_dpals.figure("figure1", "", True, folder)


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_test_events_do_not_show_before_the_end(kind: ada_dpals_runs.Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the targets of test replaced, only what is measured on test changes: not the model, its neighbours, or the choice of ALS."""
    bench = Bench("planted", kind, (1,), tmp_path / "one")
    honest = one_run(bench, ada("1/4"), 5.0, 1)
    dataset, split = ada_dpals_runs._loaded("planted", kind, 1)
    targets = split.test.targets
    half = targets.select(np.arange(len(targets)) % 2 == 0)
    other = half if kind == "clicks" else replace(targets, values=6 - targets.values)
    blind = replace(split, test=replace(split.test, targets=other))
    monkeypatch.setattr(ada_dpals_runs, "_loaded", lambda *_: (dataset, blind))
    changed = one_run(replace(bench, folder=tmp_path / "two"), ada("1/4"), 5.0, 1)
    assert all(honest[name] == changed[name] for name in ("neighbours", "overlap", "guarantee"))
    assert honest[bench.metric] != changed[bench.metric]


@pytest.mark.parametrize("algorithm", ["SSP", "noisy gradient"])
def test_the_planted_tasks_say_what_they_take_as_public_and_choose_without_test(
    algorithm: ada_dpals_tasks.Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, point = TaskShape(users=500), Point(algorithm, 1.0, 5.0, 0.5)
    found, estimated = (ada_dpals_tasks.one_run(p, shape, 1) for p in (point, replace(point, estimated=True)))
    assert "public knowledge" in found["guarantee"]
    assert "public knowledge" not in estimated["guarantee"]

    def with_other_test(labels: Interactions, *, seed: int) -> Split:
        split = random_split(labels, seed=seed)
        targets = replace(split.test.targets, values=-split.test.targets.values)
        return replace(split, test=replace(split.test, targets=targets))

    monkeypatch.setattr(ada_dpals_tasks, "random_split", with_other_test)
    changed = ada_dpals_tasks.one_run(point, shape, 1)
    assert changed["chosen"] == found["chosen"]
    assert changed["rmse"] != found["rmse"]


PRESETS = {
    "dpals_uniform_ml1m": ("ratings", UNIFORM),
    "dpals_tail_ml1m": ("ratings", TAIL),
    "ada_dpals_ml1m": ("ratings", ada("1/4")),
    "ada_dpals_ml1m_clicks": ("clicks", ada("1/4")),
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_scenario_file_says_what_the_figure_runs(name: str) -> None:
    kind, method = PRESETS[name]
    written = validated(tomllib.loads((SCENARIOS / f"{name}.toml").read_text()), source=name)
    assert written.model_dump() == scenario_of("ml-1m", kind, method, 5.0, 1).model_dump()  # type: ignore[arg-type]
