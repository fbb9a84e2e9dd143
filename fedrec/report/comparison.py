"""Comparison of runs as a table, a page, a CSV or a figure; of runs that differ in their seed
alone, means with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from fedrec.errors import SettingsError
from fedrec.evaluation.intervals import interval
from fedrec.report import wording
from fedrec.report.charts import lines_against
from fedrec.report.content import LineChart, Point
from fedrec.report.figures import Chart
from fedrec.report.page import TablePage, render_table
from fedrec.storage import write_bytes

_ERRORS = {"rmse", "mae"}
_ABOUT = {
    "run",
    "runs",
    "data",
    "scenario",
    "method",
    "epsilon",
    "delta",
    "unit",
    "noise",
    "private",
}
_HALF = "_half"


def half(metric: str) -> str:
    """The column with the half width of a metric's interval."""
    return metric + _HALF


def metrics_of(frame: pl.DataFrame) -> list[str]:
    """The columns that are metrics."""
    return [
        column
        for column in frame.columns
        if column not in _ABOUT and not column.endswith(_HALF) and "_stderr" not in column
    ]


def over_runs(frame: pl.DataFrame) -> pl.DataFrame:
    """Means over runs of one scenario that differ in their seed alone, a row for each method and
    epsilon.

    Columns: run (how many there were, in words), method, epsilon, delta, unit, noise, private,
    runs, and for each metric its mean and, in the column `half(metric)`, the half width of the 95%
    interval; null where every run measured the same, as methods without a seed do.
    """
    rows = []
    for (method, epsilon), group in frame.group_by("method", "epsilon", maintain_order=True):
        row: dict[str, object] = {
            "run": f"{group.height} seeds",
            "method": method,
            "epsilon": epsilon,
            "runs": group.height,
        }
        row |= {
            name: group[name][0]
            for name in ("data", "scenario", "delta", "unit", "noise", "private")
        }
        for metric in metrics_of(frame):
            values = group[metric].drop_nulls().to_list()
            found = interval(values) if values else None
            row[metric] = found.mean if found else None
            row[half(metric)] = (
                None
                if found is None or math.isnan(found.half) or len(set(values)) == 1
                else found.half
            )
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def different_data(frame: pl.DataFrame) -> str:
    """What must be said of runs on different data or splits; empty of runs on the same."""
    if frame["data"].n_unique() == 1:
        return ""
    return "These runs are on different data or splits: their metrics do not compare."


def metric_of(frame: pl.DataFrame, name: str) -> str:
    """The asked metric, or rmse, or NDCG at the longest cutoff.

    Raises SettingsError on one that no run has."""
    known = metrics_of(frame)
    if name and name not in known:
        raise SettingsError(f"no run has a metric {name!r}", f"There are: {', '.join(known)}.")
    lists = sorted(
        (c for c in known if c.startswith("ndcg@")), key=lambda c: int(c.partition("@")[2])
    )
    return name or ("rmse" if "rmse" in known else lists[-1] if lists else known[0])


def ordered(frame: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Best first; what lacks the metric last."""
    return frame.sort(metric, descending=metric.partition("@")[0] not in _ERRORS, nulls_last=True)


def _shown(frame: pl.DataFrame, metric: str) -> tuple[list[str], list[list[str]]]:
    lists = [
        c
        for c in (
            "rmse",
            "mae",
            *(c for c in metrics_of(frame) if c.startswith(("ndcg@", "recall_capped@"))),
        )
        if c in frame.columns
    ]
    metrics = [metric, *(c for c in lists if c != metric)][:5]
    rows = []
    for row in ordered(frame, metric).iter_rows(named=True):
        promised = (
            "no privacy"
            if math.isinf(row["epsilon"])
            else f"ε\N{NO-BREAK SPACE}{row['epsilon']:g} per {row['unit']}, "
            f"δ\N{NO-BREAK SPACE}{wording.power(row['delta'])}"
        )
        noise = (
            " (seeded: an experiment)"
            if row["noise"] == "seeded" and not math.isinf(row["epsilon"])
            else ""
        )
        rows.append(
            [
                row["run"],
                row["method"],
                promised + noise,
                *(_measured(row.get(m), row.get(half(m))) for m in metrics),
            ]
        )
    return ["run", "method", "guarantee", *metrics], rows


def _measured(value: float | None, half_width: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if half_width is None else f"{value:.4f} ± {half_width:.4f}"


def table(frame: pl.DataFrame, metric: str) -> str:
    """Return a table of the methods for a terminal, best first."""
    return wording.aligned(*_shown(frame, metric))


def page(
    frame: pl.DataFrame, metric: str, *, notes: Sequence[str] = (), runs: Sequence[Path] = ()
) -> str:
    """One HTML page that needs no network, the answer first. notes: what must be said with it;
    runs: folders whose reports it names."""
    # on a phone the metric is seen first, and what is promised by scrolling
    (run, method, promised, *metrics), rows = _shown(frame, metric)
    best = ordered(frame.filter(pl.col("private")), metric).head(1).to_dicts()
    first = "No run here is private."
    if warning := different_data(frame):
        first = warning
    elif best:
        ours = best[0]
        found = _measured(best[0][metric], best[0].get(half(metric)))
        first = (
            f"Best private method by {metric}: {ours['method']} of {ours['run']}, {found} at ε "
            f"{ours['epsilon']:g} per {ours['unit']}."
        )
    covered = (
        "A guarantee covers its model alone. Metrics are measured on the data without noise: "
        "they are not private."
    )
    drawn = line_chart(frame, metric)
    return render_table(
        TablePage(
            title="Comparison of runs",
            answer=first,
            head=(run, method, *metrics, promised),
            rows=[(*row[:2], *row[3:], row[2]) for row in rows],
            numbers=frozenset(range(2, 2 + len(metrics))),
            notes=[*notes, covered],
            links=[(f"../{run.name}/report.html", run.name) for run in runs],
            chart=lines_against(drawn, name="comparison") if drawn else None,
        )
    )


def line_chart(frame: pl.DataFrame, metric: str) -> LineChart | None:
    """The metric of each private method against epsilon, methods without privacy as levels; None
    where no private one has the metric."""
    lines = {
        method: tuple(
            Point(row["epsilon"], row["mean"], row["half"] or 0.0)
            for row in points.filter(pl.col("mean").is_not_null())
            .sort("epsilon")
            .iter_rows(named=True)
        )
        for method, points in _points(frame, metric).items()
    }
    if not lines:
        return None
    units = sorted(set(frame.filter(pl.col("private"))["unit"].to_list()))
    axis = f"ε per {', '.join(units)}"
    lower = metric.partition("@")[0] in _ERRORS
    return LineChart(
        f"{metric} against {axis}",
        axis,
        lines,
        tuple(_levels(frame, metric).items()),
        log=True,
        lower_is_better=lower,
    )


def _points(frame: pl.DataFrame, metric: str) -> dict[str, pl.DataFrame]:
    """Return the points of each private method: epsilon, mean, and half width of the interval, over
    runs that differ in their seed alone. A method with several scenarios has a line for each, named
    by its first run."""
    ours = frame.filter(pl.col("private") & pl.col(metric).is_not_null())
    found = dict[str, pl.DataFrame]()
    for (method,), of_method in ours.group_by("method", maintain_order=True):
        scenarios = of_method.partition_by("scenario", maintain_order=True)
        for runs in scenarios:
            name = str(method) if len(scenarios) == 1 else f"{method}, {runs['run'][0]}"
            means = runs if half(metric) in frame.columns else over_runs(runs)
            found[name] = means.select("epsilon", mean=metric, half=half(metric))
    return found


def _levels(frame: pl.DataFrame, metric: str) -> dict[str, float]:
    """Return the mean of each method without privacy; none where runs are on different data."""
    if different_data(frame):
        return {}
    theirs = frame.filter(~pl.col("private") & pl.col(metric).is_not_null())
    return dict(
        theirs.group_by("method", maintain_order=True).agg(pl.col(metric).mean()).iter_rows()
    )


def write(
    frame: pl.DataFrame,
    metric: str,
    path: Path,
    *,
    notes: Sequence[str] = (),
    runs: Sequence[Path] = (),
) -> None:
    """By the suffix. Raises SettingsError on an unknown one."""
    if path.suffix == ".html":
        write_bytes(path, page(frame, metric, notes=notes, runs=runs).encode())
    elif path.suffix == ".csv":
        write_bytes(path, ordered(frame, metric).write_csv().encode())
    elif path.suffix == ".svg":
        chart = line_chart(frame, metric)
        if chart is None:
            raise SettingsError(
                f"no private run has {metric}: there is no line to draw", "Name another --metric."
            )
        Chart.of(chart, "comparison").save(path)
    else:
        raise SettingsError(
            f"{path}: no picture or table has the suffix {path.suffix!r}",
            "Use .html, .csv or .svg.",
        )
