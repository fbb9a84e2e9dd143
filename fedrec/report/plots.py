"""Pictures for papers with matplotlib: one colour a method everywhere, labels on the lines, axes
that start where the data does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from fedrec.extras import require
from fedrec.report.svg import LIGHT, SLOTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEVEL = "#5f5f5f"
"""Of a method without privacy that has no colour of its own."""


def colour_of(method: str) -> str:
    """The pages' colour of a method; of one without a colour of its own, one that depends on its
    name alone."""
    return LIGHT[SLOTS.get(method, 1 + sum(method.encode()) % len(LIGHT)) - 1]


def _pyplot() -> Any:
    require("plot", "a figure")
    from matplotlib import pyplot

    return pyplot


def draw_curve(
    lines: Mapping[str, pl.DataFrame],
    levels: Mapping[str, float],
    *,
    metric: str,
    x_label: str,
    ax: Axes | None = None,
) -> Axes:
    """Each method's mean by epsilon with its interval, labelled at its end; methods without privacy
    as dotted levels."""
    pyplot = _pyplot()
    axes: Axes = (
        ax if ax is not None else pyplot.subplots(figsize=(5.4, 3.4), layout="constrained")[1]
    )
    for method, frame in lines.items():
        _draw_line(axes, method, frame)
    _draw_levels(axes, levels)
    axes.set_xscale("log")
    ticks = sorted(
        {
            epsilon
            for frame in lines.values()
            for epsilon in frame["epsilon"].to_list()
            if epsilon < float("inf")
        }
    )
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(x_label)
    better = "lower" if metric in {"rmse", "mae"} else "higher"
    name = (
        metric.upper()
        if metric.partition("@")[0] in {"rmse", "mae", "ndcg", "mrr"}
        else metric.replace("_", " ")
    )
    axes.set_ylabel(f"test {name} ({better} is better)")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _draw_line(axes: Axes, method: str, frame: pl.DataFrame) -> None:
    finite = frame.filter(pl.col("epsilon").is_finite()).sort("epsilon")
    x = finite["epsilon"].to_list()
    mean = finite["mean"].to_list()
    axes.plot(x, mean, marker="o", color=colour_of(method), linewidth=1.8)
    if finite["low"].null_count() == 0 and len(x):
        axes.fill_between(
            x,
            finite["low"].to_list(),
            finite["high"].to_list(),
            color=colour_of(method),
            alpha=0.18,
            linewidth=0,
        )
    if x:
        axes.annotate(
            method,
            (x[-1], mean[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour_of(method),
        )


def _draw_levels(axes: Axes, levels: Mapping[str, float]) -> None:
    placed = list[float]()
    low, high = axes.get_ylim()
    span = max([*levels.values(), high]) - min([*levels.values(), low]) or 1.0
    for method, value in sorted(levels.items(), key=lambda level: level[1]):
        colour = colour_of(method) if method in SLOTS else _LEVEL
        axes.axhline(value, color=colour, linestyle=":", linewidth=1.2)
        # labels that would overlap are moved apart
        at = max(value, placed[-1] + 0.05 * span) if placed else value
        placed.append(at)
        said = method if "non-private" in method else f"{method} (no privacy)"
        axes.annotate(
            said,
            (1.01, at),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=colour,
        )
