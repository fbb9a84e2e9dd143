"""Callback that writes a training as a run of MLflow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedrec.errors import require


class MLflow:
    """Writes each training as a run of MLflow (`pip install 'fedrec[mlflow]'`): guarantee as
    parameters, numbers of rounds as metrics.

    A run begins with the first round and ends with the training, so that a curve has one run for
    each epsilon and seed. Metrics are measured on the data without noise: the run's tag
    "fedrec.not_private" says so.

    Args:
        experiment: Name of the experiment, which is made if needed.
        tracking_uri: MLflow's server or folder; its own default without one.
        run_name: Of every run; MLflow makes one up without it.

    >>> import fedrec
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> tracker = fedrec.MLflow("books", tracking_uri="http://127.0.0.1:5000")  # doctest: +SKIP
    >>> model = fedrec.Popularity().fit(data, callbacks=[tracker])  # doctest: +SKIP
    """

    def __init__(
        self,
        experiment: str = "fedrec",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
    ) -> None:
        require("mlflow", "fedrec.MLflow")
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(tracking_uri)
        self._name = run_name
        known = self._client.get_experiment_by_name(experiment)
        self._experiment: str = (
            known.experiment_id if known else self._client.create_experiment(experiment)
        )
        self._run: str | None = None

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Write one event."""
        if self._run is None:
            tags = {
                "fedrec.not_private": (
                    "metrics are measured on the data without noise; a guarantee covers the "
                    "model alone"
                )
            }
            self._run = str(
                self._client.create_run(
                    self._experiment, run_name=self._name, tags=tags
                ).info.run_id
            )
        numbers = event.get("metrics", {}) if event["event"] != "round" else event
        for name, value in numbers.items():
            if (
                name not in {"round", "epsilon"}
                and isinstance(value, int | float)
                and math.isfinite(value)
            ):
                key = name.replace("@", "_at_")  # MLflow refuses the sign
                self._client.log_metric(
                    self._run, key, float(value), step=int(event.get("round", 0))
                )
        if event["event"] != "round":
            for name, value in event.items():
                if isinstance(value, str | int | float) and name != "event":
                    self._client.log_param(self._run, name, value)
            self._client.set_terminated(self._run)
            self._run = None
