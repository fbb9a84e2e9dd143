"""Frame of finished runs: a row for each run and method."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from fedrec.errors import RunError, SettingsError
from fedrec.run.run_folder import RESULT, SETTINGS
from fedrec.storage import read_json


def compare(*runs: str | Path) -> pl.DataFrame:
    """Rows of runs that `fedrec simulate` or `fedrec.simulate` finished.

    Args:
        runs: Run folders.

    Returns:
        Columns run, data, scenario, method, epsilon, delta, unit, noise, private, and every metric
            that some run has; null where a run lacks it. Runs on the same data have the same data,
            and runs that differ in seeds and epsilon alone the same scenario.

    Raises:
        RunError: A folder holds no finished run.
        SettingsError: There is no run to compare.

    >>> import fedrec, tempfile
    >>> data = fedrec.Dataset.planted("small", kind="clicks")
    >>> options = {"noise": "seeded", "directory": tempfile.mkdtemp()}
    >>> run = fedrec.simulate("dp-popularity", data, epsilon=2, **options)
    >>> fedrec.compare(run.folder)["method"].to_list()[:3]
    ['dp-popularity', 'non-private ALS', 'non-private item-item']
    """
    if not runs:
        raise SettingsError(
            "there is no run to compare",
            "Give run folders, for example fedrec.compare('runs/a', 'runs/b').",
        )
    return pl.DataFrame([row for run in runs for row in _rows(Path(run))], infer_schema_length=None)


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    if not (folder / RESULT).is_file():
        raise RunError(
            f"{folder} holds no finished run: it has no {RESULT}",
            "Give a run folder that `fedrec simulate` finished.",
        )
    result = read_json(folder / RESULT)
    settings = read_json(folder / SETTINGS)
    promised = result["guarantee"]
    about = {
        "delta": promised["delta"],
        "unit": f"{promised['unit']} ({promised['neighbours']})",
        "noise": result.get("noise"),
    }
    of_run = {"run": folder.name, **_identity(folder, settings)}
    for point in result["curve"]:
        found = {
            **of_run,
            "method": settings["recipe"],
            "epsilon": float(point["epsilon"]),
            **about,
        }
        yield {**found, "private": math.isfinite(found["epsilon"]), **_numbers(point["metrics"])}
    for method, metrics in result["baselines"].items():
        without = {
            "epsilon": math.inf,
            "delta": None,
            "unit": None,
            "noise": None,
            "private": False,
        }
        yield {**of_run, "method": method, **without, **_numbers(metrics)}


def _identity(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Digests: of the data and the kind of split, and of all settings but seeds and epsilons."""
    path = folder / "data.json"
    provenance = read_json(path)["provenance"] if path.is_file() else {}
    read = {
        "settings": settings["data"],
        "split": {**settings["split"], "seed": None},
        "files": provenance.get("files"),
        "rows": provenance.get("report", {}).get("rows_kept"),
    }
    tables = {key: settings[key] for key in ("recipe", "own", "model", "collective", "news")}
    privacy = {**settings["privacy"], "epsilon": None, "budget_file": None}
    return {
        "data": _short(read),
        "scenario": _short({"data": read, "privacy": privacy, **tables}),
    }


def _short(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
