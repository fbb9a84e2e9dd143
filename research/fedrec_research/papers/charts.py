"""Charts of a figure: a line for each series, and levels for what has no place on the axis."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fedrec.report.content import LineChart, Point
from fedrec_research.trials import Row

MAX_LINES = 8
"""Of a chart: four colours, whole and dashed.

More are drawn one chart for each epsilon, where the series name one."""
_AT_EPSILON = ", epsilon = "
_UNIT = re.compile(r"at delta \S+ per \w+ \([^)]*\)")
_ERRORS = ("rmse", "seconds", "cost")
_WIDE = ("seconds", "cost", "count", "visits")
"""Metrics on a logarithmic axis where they range over two powers of ten or more."""


def charts_of(content: Mapping[str, Any]) -> list[LineChart]:
    """Those of one figure of the result."""
    return [
        chart
        for metric, rows in by_metric(content["rows"]).items()
        for chart in _charts(metric, content["x"], rows)
    ]


def by_metric(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by metric, in their order."""
    metrics = dict.fromkeys(row["metric"] for row in rows)
    return {metric: [row for row in rows if row["metric"] == metric] for metric in metrics}


def _charts(metric: str, x: str, rows: Sequence[Row]) -> Iterator[LineChart]:
    """A chart of the rows with a number for x; the others, which have none or an infinite one, are
    levels."""
    groups = {"": rows}
    if len({row["series"] for row in rows}) > MAX_LINES:
        endings = dict.fromkeys(str(row["series"]).partition(_AT_EPSILON)[2] for row in rows)
        groups = {
            end: [r for r in rows if str(r["series"]).partition(_AT_EPSILON)[2] == end]
            for end in endings
        }
    for end, some in groups.items():
        lines = _lines(some, _AT_EPSILON + end if end else "")
        if lines and len(lines) <= MAX_LINES and any(len(points) > 1 for points in lines.values()):
            axis = _axis(x, metric, some)
            places = [point.x for points in lines.values() for point in points]
            log = min(places) > 0 and (
                axis.startswith("epsilon") or max(places) >= 100 * min(places)
            )
            levels = tuple(
                (_level(r, x, lines), float(r["value"]))
                for r in some
                if _place(r) is None and _finite(r["value"])
            )
            title = f"{metric} against {axis}{f', epsilon {end}' if end else ''}"
            values = [p.value + s * p.spread for ps in lines.values() for p in ps for s in (-1, 1)]
            yield LineChart(
                title,
                axis + _of_epsilon(axis, end, metric, some),
                lines,
                levels if len(levels) <= MAX_LINES else (),
                log=log,
                log_y=any(word in metric for word in _WIDE)
                and min(values) > 0
                and max(values) >= 100 * min(values),
                lower_is_better=_lower(metric),
            )


def _axis(x: str, metric: str, rows: Sequence[Row]) -> str:
    """With what an epsilon protects, where all rows protect the same."""
    if "in bucket" in metric:
        return (
            "least number of entries of a feature"
            if "at least x entries" in metric
            else "popularity of the items, most popular first"
        )
    units = units_of(rows)
    return f"{x} {units.pop()}" if x == "epsilon" and len(units) == 1 else x


def _of_epsilon(axis: str, end: str, metric: str, rows: Sequence[Row]) -> str:
    """What the epsilons protect that names of lines, the metric or the axis state without it; end:
    the epsilon of all lines, where it is one."""
    units = units_of(rows)
    named = any("epsilon" in words for words in (axis, metric, *(str(r["series"]) for r in rows)))
    if len(units) != 1 or not named or any(unit in axis for unit in units):
        return ""
    return f"; epsilon {f'{end} ' if end else ''}{units.pop()}"


def _level(row: Row, x: str, lines: Collection[str]) -> str:
    """A level's name, which is no line's: of a line's own name, what its x is."""
    series = str(row["series"])
    if series not in lines:
        return series
    return f"{series}, served bare" if "serving" in x else f"{series}, ε = ∞"


def units_of(rows: Sequence[Row]) -> set[str]:
    """Delta, unit and neighbours of the guarantees of rows, in words."""
    found = (_UNIT.search(str(row.get("guarantee", ""))) for row in rows)
    return {match.group() for match in found if match}


def _lines(rows: Sequence[Row], ending: str) -> dict[str, tuple[Point, ...]]:
    lines = dict[str, list[Point]]()
    for row in rows:
        if (place := _place(row)) is not None and _finite(row["value"]):
            half = (row["interval"][1] - row["interval"][0]) / 2 if "interval" in row else 0.0
            lines.setdefault(str(row["series"]).removesuffix(ending), []).append(
                Point(place, float(row["value"]), half)
            )
    return {series: tuple(sorted(points, key=lambda p: p.x)) for series, points in lines.items()}


def _place(row: Row) -> float | None:
    x = row.get("x")
    return float(x) if isinstance(x, int | float) and math.isfinite(x) else None


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _lower(metric: str) -> bool | None:
    if any(word in metric for word in _ERRORS):
        return True
    return False if any(word in metric for word in ("recall", "ndcg", "auc", "mrr")) else None
