"""Experiment tracking: a training as a run of MLflow.

Run where MLflow is installed; what it is told is tested without it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedrec
from fedrec.api import mlflow_callback


class Client:
    """Keeps what MLflow's client is asked for."""

    runs: list[SimpleNamespace]

    def __init__(self, tracking_uri: str | None) -> None:
        self.uri = tracking_uri
        self.runs = []

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"id of {name}"

    def create_run(
        self, experiment: str, *, run_name: str | None, tags: dict[str, str]
    ) -> SimpleNamespace:
        self.runs.append(
            SimpleNamespace(
                info=SimpleNamespace(run_id=str(len(self.runs))),
                params={},
                metrics=[],
                tags=tags,
                ended=False,
            )
        )
        return self.runs[-1]

    def log_metric(self, run: str, key: str, value: float, step: int) -> None:
        self.runs[int(run)].metrics.append((key, step))

    def log_param(self, run: str, key: str, value: Any) -> None:
        self.runs[int(run)].params[key] = value

    def set_terminated(self, run: str) -> None:
        self.runs[int(run)].ended = True


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mlflow")
    module.MlflowClient = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setattr(mlflow_callback, "require", lambda extra, what: None)


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_every_training_of_a_curve_is_a_run_with_its_guarantee() -> None:
    train, test = fedrec.Dataset.planted("small").split("random", seed=1)
    tracker = fedrec.MLflow("mine")
    model = fedrec.ItemBias(noise="seeded")
    fedrec.privacy_curve(model, train, test, epsilons=[1, 5], controls=False, callbacks=[tracker])
    runs = tracker._client.runs
    assert [run.params["epsilon"] for run in runs] == [1.0, 5.0]
    assert all(
        run.ended
        and run.params["unit"] == "user"
        and "without noise" in run.tags["fedrec.not_private"]
        for run in runs
    )
    assert all(
        {"seconds", "bytes_up", "validation"} <= {name for name, _ in run.metrics} for run in runs
    )


@pytest.mark.usefixtures("pretended")
def test_a_simulation_has_metrics_on_test_by_names_that_mlflow_takes(tmp_path: Path) -> None:
    tracker = fedrec.MLflow()
    settings = {
        "data.preset": "small",
        "compare.als": False,
        "compare.epsilons": [],
        "run.examples": 0,
    }
    fedrec.simulate(
        {"recipe": "dp-bias"},
        settings=settings,
        noise="seeded",
        directory=tmp_path,
        callbacks=[tracker],
    )
    (run,) = tracker._client.runs
    assert run.ended
    assert run.params["recipe"] == "dp-bias"
    assert "rmse" in {name for name, _ in run.metrics}
    assert not any("@" in name for name, _ in run.metrics)


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="MLflow is installed")
def test_without_mlflow_the_extra_is_named() -> None:
    with pytest.raises(fedrec.SettingsError, match="mlflow, which is not installed") as caught:
        fedrec.MLflow()
    assert "fedrec[mlflow]" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages that MLflow brings
def test_mlflow_itself_keeps_a_training(tmp_path: Path) -> None:
    mlflow = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: pip install 'fedrec[mlflow]'"
    )
    train = fedrec.Dataset.planted("small").split("random", seed=1)[0]
    uri = (
        f"sqlite:///{tmp_path / 'tracked.db'}"
        if find_spec("sqlalchemy")
        else (tmp_path / "tracked").as_uri()
    )
    fedrec.ItemBias(epsilon=5, noise="seeded").fit(
        train, callbacks=[fedrec.MLflow("kept", tracking_uri=uri, run_name="bias")]
    )
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("kept").experiment_id])
    assert run.info.status == "FINISHED"
    assert float(run.data.params["epsilon"]) == 5.0
    assert run.data.metrics["validation"] > 0
