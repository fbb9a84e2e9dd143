"""Comparison of finished runs: one frame, a row for each run and method; and of one scenario run
with several seeds, `fedrec simulate --seeds N`: the means of its metrics with their intervals.

Every run is a whole run with a folder of its own. Runs differ in `seed` alone: initialisation and
noise vary, and planted data, which the seed draws too. The division of a data set into training and
test does not vary: intervals say how much a result owes to the noise, not how much it owes to the
rows that were drawn for the test.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from fedrec.errors import RunError, SettingsError
from fedrec.report import comparison
from fedrec.run import simulate
from fedrec.run.job import LOOPBACK, RuntimeChoice
from fedrec.run.run_folder import RESULT, SETTINGS
from fedrec.settings import Scenario
from fedrec.storage import finite, read_json, write_json


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


SUMMARY = "seeds.json"
FRAME = "seeds.csv"
PAGE = "report.html"


def run(
    scenario: Scenario,
    *,
    seeds: int,
    name: str,
    choice: RuntimeChoice = LOOPBACK,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the scenario with seeds s, s + 1, ... from its own `seed` s on, and return what `--json`
    prints.

    Keys: seeds, runs (their folders), methods (a mapping for each method and epsilon: mean, half
    and number by metric; half is the half width of the 95% interval by Student's t, None for what
    was measured once), guarantee of one model, report and run_dir. Raises FedRecError as
    `simulate.run`.
    """
    if seeds < 2:
        raise SettingsError(
            f"an interval needs at least 2 seeds, found {seeds}",
            "Give --seeds a larger number, or leave it out.",
        )
    asked = [
        scenario.model_copy(update={"seed": scenario.seed + offset}) for offset in range(seeds)
    ]
    results = [simulate.run(each, name=name, quiet=quiet, choice=choice) for each in asked]
    folders = [Path(result["run_dir"]) for result in results]
    frame = comparison.over_runs(compare(*folders))
    digest = hashlib.sha256(f"{scenario.digest()} {seeds}".encode()).hexdigest()[:10]
    folder = Path(scenario.run.directory) / f"{name}-seeds-{digest}{choice.suffix}"
    folder.mkdir(parents=True, exist_ok=True)
    metric = comparison.metric_of(frame, "")
    notes = notes_of(results[0], seeds)
    comparison.write(frame, metric, folder / FRAME)
    comparison.write(frame, metric, folder / PAGE, notes=notes, runs=folders)
    content = {
        "seeds": [each.seed for each in asked],
        "runs": [str(path) for path in folders],
        "methods": methods(frame),
        "guarantee": results[0]["guarantee"],
        "report": str(folder / PAGE),
        "run_dir": str(folder),
    }
    kept = dict(finite(content))
    write_json(folder / SUMMARY, kept)
    if not quiet:
        Console().print(comparison.table(frame, metric), soft_wrap=True, highlight=False)
        Console().print(
            "\n".join([*notes, f"report  {folder / PAGE}"]), soft_wrap=True, highlight=False
        )
    return kept


def methods(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of `comparison.over_runs` as mappings: about the method, then mean and half width of
    every metric it has."""
    metrics = comparison.metrics_of(frame)
    rows = list[dict[str, Any]]()
    for row in frame.iter_rows(named=True):
        about = {
            key: row[key]
            for key in ("method", "epsilon", "delta", "unit", "noise", "private", "runs")
        }
        found = {
            m: {"mean": row[m], "half": row[comparison.half(m)]}
            for m in metrics
            if row[m] is not None
        }
        rows.append(about | {"metrics": found})
    return rows


def notes_of(result: Mapping[str, Any], seeds: int) -> Sequence[str]:
    """What must be said under the table."""
    about = (
        f"Means over {seeds} seeds, ± the half width of the 95% interval (Student's t); data "
        "from files is divided the same way each time."
    )
    if result.get("noise") == "seeded":
        return [
            about,
            "The noise is seeded: these are experiments, and no model of them may be released.",
        ]
    return [
        about,
        (
            "Each guarantee covers one model. Whoever publishes several of them spends more: "
            "privacy.max_total_epsilon limits the sum."
        ),
    ]
