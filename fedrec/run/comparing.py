"""Comparison of one scenario run with several seeds, `fedrec simulate --seeds N`: the means of its
metrics with their intervals.

Every run is a whole run with a folder of its own. Runs differ in `seed` alone: initialisation and
noise vary, and planted data, which the seed draws too. The division of a data set into training and
test does not vary: intervals say how much a result owes to the noise, not how much it owes to the
rows that were drawn for the test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from fedrec.errors import SettingsError
from fedrec.output_folders import clear, finish
from fedrec.report import comparison
from fedrec.run import simulate
from fedrec.run.comparison_frame import compare
from fedrec.run.job import LOOPBACK, RuntimeChoice
from fedrec.settings import Scenario
from fedrec.storage import finite, write_json

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
    clear(folder, "seeds")
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
    finish(folder, "seeds")
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
