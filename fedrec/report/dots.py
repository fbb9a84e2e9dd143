"""Charts of dots on an axis of values: a metric by popularity of the items, and what an audit found
beside what is claimed."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping

from markupsafe import Markup

from fedrec.report import wording
from fedrec.report.charts import LINE_HEIGHT, both_widths
from fedrec.report.content import BucketBars
from fedrec.report.svg import (
    Scale,
    chosen,
    decimals,
    element,
    line,
    picture,
    sparse,
    text,
    ticks,
)


def bucket_dots(chart: BucketBars, *, name: str) -> Markup:
    """A group for each bucket, rarest first, a dot for each method; the axis spans the values, so
    that differences are seen."""
    return both_widths(lambda width, at: _dots(chart, width, at), name)


def bucket_names(count: int) -> tuple[str, ...]:
    """ "rarest 20%", "20-40%", ..., "most popular 20%"."""
    edges = [round(100 * b / count) for b in range(count + 1)]
    between = tuple(f"{a}–{b}%" for a, b in itertools.pairwise(edges[1:-1]))
    return (
        (f"rarest {edges[1]}%", *between, f"most popular {100 - edges[-2]}%")
        if count > 1
        else ("",)
    )


def _dots(chart: BucketBars, width: float, name: str) -> Markup:
    wide = width > 500
    labels = bucket_names(len(next(iter(chart.methods.values()))))
    alone = len(labels) == 1  # then a row is a method, which is named beside it
    left = (180.0 if wide else 140.0) if alone else 132.0 if wide else 84.0
    right = width - 48.0
    lane = 26.0 if alone else 15.0
    gap = 24.0
    finite = [v for values in chart.methods.values() for v in values if math.isfinite(v)] or [
        0.0,
        1.0,
    ]
    room = (max(finite) - min(finite)) * 0.08 or abs(finite[0]) * 0.05 or 1.0
    x = Scale(min(finite) - room, max(finite) + room, left, right)
    marks = ticks(x.low, x.high)
    slots = chosen(chart.methods)
    parts, top = ([], 6.0) if alone else _keys(slots, 100 if wide else 48)
    height = len(labels) * (len(chart.methods) * lane + gap) + top
    parts += [line(x(v), top - 6, x(v), height - gap, class_="grid") for v in marks]
    parts += [
        text(x(v), height + 6, f"{v:.{decimals(marks)}f}", anchor="middle", class_="tick")
        for v in sparse(marks, x, gap=36.0)
    ]
    parts.append(
        text((left + right) / 2, height + 26, chart.metric, anchor="middle", class_="axis")
    )
    for b, label in enumerate(labels):
        short = label if wide else label.replace("most popular", "top")
        middle = top + len(chart.methods) * lane / 2 + 4
        parts.append(text(left - 12, middle, short, anchor="end", class_="tick"))
        if b:
            parts.append(line(0.0, top - gap / 2, right, top - gap / 2, class_="grid"))
        for method, values in chart.methods.items():
            if alone:
                parts.append(text(left - 12, top + lane / 2 + 4, method, anchor="end"))
            parts += _dot(x, values[b], top + lane / 2, slots[method][0])
            top += lane
        top += gap
    spoken = " ".join(
        (
            f"{m}: "
            + ", ".join(
                f"{n} {wording.number(v, digits=3)}" for n, v in zip(labels, vs, strict=True)
            )
            + "."
        )
        for m, vs in chart.methods.items()
    )
    title = f"{chart.metric} {'by popularity of the item' if len(labels) > 1 else 'by method'}"
    return picture(
        parts,
        width=width,
        height=height + 34,
        name=name,
        title=title,
        description=spoken,
    )


def _dot(x: Scale, value: float, y: float, slot: int) -> Iterator[Markup]:
    """One value and its number; a number alone where it is none."""
    finite = math.isfinite(value)
    if finite:
        yield element("circle", cx=x(value), cy=y, r=4.5, class_=f"dot f{slot}")
    at = x(value) + 9 if finite else x.start + 6
    yield text(at, y + 4, wording.number(value, digits=3), class_="value halo")


def _keys(slots: Mapping[str, tuple[int, bool]], letters: int) -> tuple[list[Markup], float]:
    """Colour and name of each method, above the dots when there are several; and where these
    begin."""
    parts = list[Markup]()
    top = 6.0
    for name, (slot, _) in slots.items() if len(slots) > 1 else ():
        parts.append(element("circle", cx=6.0, cy=top + 7, r=4.5, class_=f"dot f{slot}"))
        for words in textwrap.wrap(name, letters):
            parts.append(text(18.0, top + 11, words))
            top += LINE_HEIGHT
    return parts, top + 10 * (len(slots) > 1)
