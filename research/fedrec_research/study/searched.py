"""Settings that `search` found, by data set, line and epsilon: the files of the folder beside this
module, with every trial."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from fedrec.data.kinds import Kind
from fedrec_research.trials import Row, merged

JUDGES: Mapping[Kind, str] = {"ratings": "rmse", "clicks": "ndcg@20"}
"""What a trial is judged by, on validation."""


def best(data: str, line: str, epsilon: float) -> Row:
    """Tables of a scenario. Raises KeyError where the search did not do this line."""
    trials = _file(data)["lines"][line][f"{epsilon:g}"]
    return tables(min(trials, key=error)["settings"])


def metric_of(trial: Row) -> str:
    """That it was judged by."""
    return next(metric for metric in JUDGES.values() if metric in trial)


def error(trial: Row) -> float:
    """The less the better."""
    metric = metric_of(trial)
    return float(trial[metric]) * (1 if metric == "rmse" else -1)


def worst(metric: str) -> float:
    """Return the score of a training that diverged."""
    return math.inf if metric == "rmse" else 0.0


def trials(data: str, line: str, epsilon: float) -> int:
    """How many settings were tried; 0 for none."""
    return len(_file(data).get("lines", {}).get(line, {}).get(f"{epsilon:g}", ()))


def tables(settings: Row) -> Row:
    """{"model.steps": 3} as {"model": {"steps": 3}}."""
    return merged(
        *(
            {table: {key: value}}
            for name, value in settings.items()
            for table, key in [name.split(".")]
        )
    )


@cache
def _file(data: str) -> dict[str, Any]:
    """Return the searched settings of a data set, of MovieLens 20M's sizes those found under the
    same skew; empty where nobody searched."""
    name = "planted-skewed" if data == "planted-ml20m" else data
    file = resources.files(__package__).joinpath("searched", f"{name}.json")
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
