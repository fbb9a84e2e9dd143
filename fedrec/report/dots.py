"""Charts of dots on an axis of values: a metric by popularity of the items, and what an audit found
beside what is claimed."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedrec.report import wording
from fedrec.report.charts import LINE_HEIGHT, both_widths
from fedrec.report.content import BucketBars
from fedrec.report.svg import (
    Scale,
    as_csv,
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
    rows = [(m, n, v) for m, vs in chart.methods.items() for n, v in zip(labels, vs, strict=True)]
    numbers = as_csv(("method", "items", chart.metric), rows) if wide else None
    return picture(
        parts,
        width=width,
        height=height + 34,
        name=name,
        title=title,
        description=spoken,
        numbers=numbers,
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


@dataclass(frozen=True)
class Attacked:
    """One attack: the claimed epsilon, and what was found to be at least it; None where nothing
    was."""

    attack: str
    claimed: float
    found: float | None


def claims(attacks: Sequence[Attacked], *, axis: str, name: str) -> Markup:
    """A row for each attack: a dot at the bound, a stroke at the claim.

    A dot to the right of its stroke refutes the claim."""
    return both_widths(lambda width, at: _claims(attacks, axis, width, at), name)


def _claims(attacks: Sequence[Attacked], axis: str, width: float, name: str) -> Markup:
    wide = width > 500
    left = 188.0 if wide else 118.0
    right = width - 48.0
    letters = 30 if wide else 14
    top = 30.0
    shown = [a for a in attacks if math.isfinite(a.claimed)]
    lines = max((len(textwrap.wrap(a.attack, letters)) for a in shown), default=1)
    lane = max(28.0 if wide else 40.0, LINE_HEIGHT * lines + 8)
    x = Scale(
        0.0,
        1.08 * max((v for a in shown for v in (a.claimed, a.found or 0.0)), default=1.0),
        left,
        right,
    )
    marks = ticks(x.low, x.high)
    height = top + lane * len(shown)
    parts = [line(x(v), top - 4, x(v), height, class_="grid") for v in marks]
    parts += [
        text(x(v), height + 18, f"{v:.{decimals(marks)}f}", anchor="middle", class_="tick")
        for v in sparse(marks, x, gap=36.0)
    ]
    # Keys and the axis' name are wider than a narrow picture's axis: they take its whole width.
    keys, middle = (left, (left + right) / 2) if wide else (6.0, width / 2)
    parts.append(text(middle, height + 38, axis, anchor="middle", class_="axis"))
    parts += [line(keys, 4.0, keys, 18.0, class_="line s2"), text(keys + 8, 15.0, "claimed")]
    parts += [
        element("circle", cx=keys + 76, cy=11.0, r=4.5, class_="dot f1"),
        text(keys + 86, 15.0, "at least, as the attack proves"),
    ]
    for row, attack in enumerate(shown):
        parts += _attack(x, attack, top + lane * (row + 0.5), letters=letters)
    spoken = " ".join(
        (
            f"{a.attack}: claimed {a.claimed:.4g}, at least "
            f"{'–' if a.found is None else f'{a.found:.4g}'}."
        )
        for a in shown
    )
    rows = [(a.attack, a.claimed, a.found) for a in attacks]
    numbers = as_csv(("attack", "claimed epsilon", "epsilon is at least"), rows) if wide else None
    return picture(
        parts,
        width=width,
        height=height + 46,
        name=name,
        title="Claimed ε and what attacks prove",
        description=spoken,
        numbers=numbers,
    )


def _attack(x: Scale, attack: Attacked, middle: float, *, letters: int) -> Iterator[Markup]:
    """Its name in lines, the claim as a stroke, and what it proves as a dot with its number."""
    words = textwrap.wrap(attack.attack, letters)
    first = middle + 4 - LINE_HEIGHT * (len(words) - 1) / 2
    for n, part in enumerate(words):
        yield text(x.start - 12, first + LINE_HEIGHT * n, part, anchor="end", class_="tick")
    claimed = x(attack.claimed)
    yield line(claimed, middle - 9, claimed, middle + 9, class_="line s2")
    if attack.found is None:
        return
    yield element("circle", cx=x(attack.found), cy=middle, r=4.5, class_="dot f1")
    side, anchor = (-9, "end") if attack.found < attack.claimed else (9, "start")
    number = f"{attack.found:.3g}"
    yield text(x(attack.found) + side, middle + 4, number, anchor=anchor, class_="value halo")
