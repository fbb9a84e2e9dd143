"""No figure reads a test event before its models are finished: with garbage in their place every
choice and every model is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fedrec_research
from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.splits import Split, random_split
from fedrec.run.data import datasets
from fedrec.settings import Scenario
from fedrec_research import sealed
from fedrec_research.papers import ada_dpals_tasks, fast_dpmf
from fedrec_research.quality import quality
from fedrec_research.sealed import SealedSplit
from fedrec_research.study import training as study
from fedrec_research.study.systems import Place
from research.tests.paper_rows import paper_rows

FIGURES = (
    "ada-dpals/figure1",
    "ada-dpals/figure2",
    "ada-dpals/figure5",
    "am-ssp/figure1",
    "convex-ssp/yelp2018",
    "dp-cmf/figure1",
    "fast-dpmf/figure5",
)


def test_no_figure_divides_data_by_itself() -> None:
    """They load it under a seal; whoever may open a split any other way is named here, and puts a
    seal on it first."""
    folder = Path(fedrec_research.__file__).parent
    found = {
        file
        for file in folder.rglob("*.py")
        if re.search(r"\b(load_split|random_split|leave_last_out)\b", file.read_text())
    }
    assert {file.name for file in found} == {
        "simple.py",
        "ada_dpals_tasks.py",
        "clicks.py",
        "sealed.py",  # the seal itself
        "serving_lists.py",
        "serving_utility.py",
    }
    for file in (folder / "quality" / "simple.py", folder / "papers" / "ada_dpals_tasks.py"):
        calls = [
            line
            for line in file.read_text().splitlines()
            if "_split(" in line and "def " not in line
        ]
        assert calls
        assert all("SealedSplit(" in line for line in calls)


def _quality(folder: Path) -> list[Any]:
    found = quality.training_row("planted", quality.Method("published", False, 5.0), 1)
    return [found["rmse"], quality.rival_row("planted", 1)["ALS"]["rmse"]]


def _study(folder: Path) -> list[Any]:
    place = Place("planted", "planted", "ratings")
    return [
        study.study_row(place, name, 5.0 if name != "als" else np.inf, 1)["rmse"]
        for name in ("default", "als")
    ]


def _figure(name: str) -> Callable[[Path], list[Any]]:
    return lambda folder: [row["value"] for row in paper_rows(name, folder)]


RUNS = {name: _figure(name) for name in FIGURES} | {"quality": _quality, "study": _study}


LONG = {"am-ssp/figure1", "fast-dpmf/figure5"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in RUNS]
)
def test_with_garbage_for_test_events_every_choice_and_every_model_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_dpmf, "PASSES", 3)
    models = list[str]()
    monkeypatch.setattr(SealedSplit, "open", _recording(models))
    values = RUNS[name](tmp_path / "honest")
    honest = models.copy()
    models.clear()
    _garble(monkeypatch)
    changed = RUNS[name](tmp_path / "garbled")
    assert honest
    assert models == honest
    assert len(changed) == len(values)
    # what is measured at the end does move
    assert sum(a != b for a, b in zip(values, changed, strict=True)) > len(values) // 2
    _assert_same_choices(tmp_path / "honest", tmp_path / "garbled")


@pytest.fixture(autouse=True)
def _nothing_from_memory() -> Iterator[None]:
    sealed._read.cache_clear()
    yield
    sealed._read.cache_clear()


def _recording(
    models: list[str],
) -> Callable[[SealedSplit, dict[str, npt.NDArray[Any]]], sealed.Opened]:
    real = SealedSplit.open

    def opened(seal: SealedSplit, model: dict[str, npt.NDArray[Any]]) -> sealed.Opened:
        found = real(seal, model)
        models.append(found.model_sha256)
        return found

    return opened


CHOICES = {
    "chosen",
    "settings",
    "collective",
    "validation_rmse",
    "validation",
    "learning_rate",
    "tried",
    "guarantee",
    "model_sha256",
}


def _assert_same_choices(one: Path, other: Path) -> None:
    """In the kept rows of both runs; the files have equal names where the same settings were
    tried."""
    for path in one.rglob("*.json"):
        theirs = next(other.rglob(path.name))
        found = [
            {k: value for k, value in json.loads(p.read_text())["row"].items() if k in CHOICES}
            for p in (path, theirs)
        ]
        assert found[0] == found[1]


def _garble(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratings are turned over at the source, wherever they may be read again; of clicks half of the
    targets go."""

    def load_dataset(scenario: Scenario) -> Dataset:
        dataset = datasets.load_dataset(scenario)
        if dataset.interactions.kind == "clicks":
            return dataset
        return replace(
            dataset,
            interactions=_turned(
                dataset.interactions, datasets.load_split(scenario, dataset).test.targets
            ),
        )

    def load_split(scenario: Scenario, dataset: Dataset) -> Split:
        split = datasets.load_split(scenario, dataset)
        if dataset.interactions.kind == "ratings":
            return split
        targets = split.test.targets
        return replace(
            split,
            test=replace(split.test, targets=targets.select(np.arange(len(targets)) % 2 == 0)),
        )

    def tasks_split(labels: Interactions, *, seed: int) -> Split:
        return random_split(
            _turned(labels, random_split(labels, seed=seed).test.targets), seed=seed
        )

    sealed._read.cache_clear()
    monkeypatch.setattr(sealed, "load_dataset", load_dataset)
    monkeypatch.setattr(sealed, "load_split", load_split)
    monkeypatch.setattr(ada_dpals_tasks, "random_split", tasks_split)


def _turned(events: Interactions, targets: Interactions) -> Interactions:
    """The events with the ratings of those that are targets mirrored on their scale."""
    place = events.users.astype(np.int64) * events.num_items + events.items
    tested = np.isin(place, targets.users.astype(np.int64) * targets.num_items + targets.items)
    assert tested.sum() == len(targets)
    low, high = events.value_range
    if not np.isfinite(low + high):
        low = float(events.values.min())
        high = float(events.values.max())
    return replace(
        events,
        values=np.where(tested, low + high - events.values, events.values).astype(
            events.values.dtype
        ),
    )
