"""No figure reads a test event before its models are finished: with garbage in their place every
choice and every model is the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fedrec_simulations
from fedrec.data.dataset import Dataset
from fedrec.data.interactions import Interactions
from fedrec.data.splits import Split, random_split
from fedrec.errors import LeakageError
from fedrec.run.data import datasets, sealed
from fedrec.run.data.sealed import SealedSplit, load_sealed
from fedrec.settings import Scenario, load
from fedrec_simulations.bench import quality
from fedrec_simulations.experiments.papers import ada_dpals_tasks, fast_dpmf
from fedrec_simulations.experiments.study import training as study
from fedrec_simulations.experiments.study.systems import Place
from tests.simulations.paper_rows import paper_rows

PLANTED = ["data.preset=small"]
FIGURES = (
    "ada-dpals/figure1",
    "ada-dpals/figure2",
    "ada-dpals/figure5",
    "am-ssp/figure1",
    "convex-ssp/yelp2018",
    "dp-cmf/figure1",
    "fast-dpmf/figure5",
)


def test_a_seal_opens_once_and_lets_nobody_train_afterwards() -> None:
    seal = load_sealed(load(None, PLANTED))[1]
    assert len(seal.train) > len(seal.validation.targets) > 0
    opened = seal.open({"V": np.zeros((2, 3))})
    assert len(opened.split.test.targets) > 0
    for part in (lambda: seal.train, lambda: seal.validation, lambda: seal.open({})):
        with pytest.raises(LeakageError, match="after the test events had been read"):
            part()


def test_another_training_has_a_seal_of_its_own() -> None:
    one, other = (load_sealed(load(None, PLANTED))[1] for _ in range(2))
    one.open({})
    assert len(other.train) == len(one.again().train)


def test_an_opening_keeps_which_model_it_was_for() -> None:
    seal, V = load_sealed(load(None, PLANTED))[1], np.arange(6.0).reshape(2, 3)
    digests = [
        seal.again().open({"V": found}).model_sha256
        for found in (V, V.copy(), V.T, V + 1e-12, V.astype(np.float32))
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[1:])) == 4


@pytest.mark.parametrize(
    ("key", "value"), [("split.seed", 2), ("data.kind", "clicks"), ("seed", 2)]
)
def test_other_data_or_another_division_is_not_taken_from_memory(key: str, value: object) -> None:
    one, other = (
        load_sealed(load(None, [*PLANTED, *more]))[1] for more in ([], [f"{key}={value}"])
    )
    assert not np.array_equal(one.train.items, other.train.items)


def test_no_figure_divides_data_by_itself() -> None:
    """They load it under a seal; whoever may open a split any other way is named here, and puts a
    seal on it first."""
    folder = Path(fedrec_simulations.__file__).parent
    files = [
        *folder.glob("experiments/papers/*.py"),
        *folder.glob("experiments/study/*.py"),
        folder / "bench" / "quality.py",
    ]
    found = {
        file.name
        for file in files
        if "load_split" in file.read_text() or "random_split" in file.read_text()
    }
    assert found == {"training.py", "ada_dpals_tasks.py"}
    for file in (
        folder / "experiments" / "study" / "training.py",
        folder / "experiments" / "papers" / "ada_dpals_tasks.py",
    ):
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
    values, honest = RUNS[name](tmp_path / "honest"), models.copy()
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
            {key: value for key, value in json.loads(p.read_text()).items() if key in CHOICES}
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
    for module in (sealed, study):
        monkeypatch.setattr(module, "load_dataset", load_dataset)
        monkeypatch.setattr(module, "load_split", load_split)
    monkeypatch.setattr(ada_dpals_tasks, "random_split", tasks_split)


def _turned(events: Interactions, targets: Interactions) -> Interactions:
    """The events with the ratings of those that are targets mirrored on their scale."""
    place = events.users.astype(np.int64) * events.num_items + events.items
    tested = np.isin(place, targets.users.astype(np.int64) * targets.num_items + targets.items)
    assert tested.sum() == len(targets)
    low, high = events.value_range
    if not np.isfinite(low + high):
        low, high = float(events.values.min()), float(events.values.max())
    return replace(
        events,
        values=np.where(tested, low + high - events.values, events.values).astype(
            events.values.dtype
        ),
    )
