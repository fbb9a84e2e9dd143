"""Callbacks: what is told of a curve and of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedrec


@pytest.mark.slow
def test_every_training_of_a_curve_ends_with_its_guarantee() -> None:
    train, test = fedrec.Dataset.planted("small").split("random", seed=1)
    told = list[Mapping[str, Any]]()
    model = fedrec.ItemBias(noise="seeded")
    fedrec.privacy_curve(
        model, train, test, epsilons=[1, 5], controls=False, callbacks=[told.append]
    )
    ends = [event for event in told if event["event"] == "fit"]
    assert [(event["epsilon"], event["unit"]) for event in ends] == [(1.0, "user"), (5.0, "user")]
    rounds = [event for event in told if event["event"] == "round"]
    assert len(rounds) >= 2
    assert all({"seconds", "bytes_up", "validation"} <= event.keys() for event in rounds)


def test_a_simulation_ends_with_its_metrics_on_test(tmp_path: Path) -> None:
    told = list[Mapping[str, Any]]()
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
        callbacks=[told.append],
    )
    assert told[-1]["event"] == "simulate"
    assert told[-1]["recipe"] == "dp-bias"
    assert "rmse" in told[-1]["metrics"]
