"""Settings that `search` found, by data set, line and epsilon: the files of the folder beside this
module, with every trial."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from fedrec_simulations.experiments.rows import Row, merged


def best(data: str, line: str, epsilon: float) -> Row:
    """Tables of a scenario. Raises KeyError where the search did not do this line."""
    trials = _file(data)["lines"][line][f"{epsilon:g}"]
    return tables(min(trials, key=lambda trial: float(trial["rmse"]))["settings"])


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
    """Of a data set; empty where nobody searched."""
    file = resources.files(__package__).joinpath("searched", f"{data}.json")
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
