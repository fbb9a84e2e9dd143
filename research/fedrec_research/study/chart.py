"""The study's figure: the metric of every system against epsilon, no privacy at the right end, each
point with its 95% interval.

Epsilons stand on a logarithmic axis that is broken before infinity. Our lines are thick; others
differ in colour and dash, and each is named where it ends. Errors worse than the worst reference
and all of ours are left out, and bars end at the frame: the rest can be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedrec.evaluation.intervals import Interval
from fedrec.report import wording
from fedrec.report.svg import (
    Scale,
    decimals,
    element,
    line,
    path,
    picture,
    spread,
    text,
    ticks,
)
from fedrec_research.study.results import Study
from fedrec_research.study.systems import OTHERS, Group, System

WIDTH = 784.0
HEIGHT = 440.0
LEFT = 48.0
RIGHT = 510.0
TOP = 14.0
BOTTOM = 384.0
_INFINITY_GAP = 62.0
_LABEL = 15.0
_OURS = (("s1", None, 3.0), ("s1", "7 4", 2.25))
_OTHERS = tuple(
    (colour, dash, 1.6)
    for dash in (None, "6 3", "2 3")
    for colour in ("s2", "s3", "s4", "s5", "s6")
)


@dataclass(frozen=True)
class _Line:
    """One system as drawn: its points from the smallest epsilon on, and colour class, dash and
    width."""

    label: str
    points: Sequence[tuple[float, Interval]]
    style: tuple[str, str | None, float]


def drawing(study: Study, group: Group, *, name: str) -> Markup:
    """All systems of a group, references as dotted levels."""
    references = [
        (s.label, study.mean(s.name, math.inf)) for s in study.systems(group, "not private")
    ]
    levels = [(label, found.mean) for label, found in references if found is not None]
    lines = _lines(study, group, _limit(study, group, [value for _, value in levels]))
    finite = [epsilon for epsilon in study.epsilons if math.isfinite(epsilon)]
    x = Scale(finite[0] / 1.15, finite[-1], LEFT, RIGHT - _INFINITY_GAP, log=True)
    y = _vertical(
        [value for _, value in levels] + [p.mean for drawn in lines for _, p in drawn.points]
    )
    parts = [
        *_axes(study, finite, x, y),
        *(line(LEFT, y(value), RIGHT, y(value), class_="level") for _, value in levels),
    ]
    for drawn in reversed(lines):
        parts += _drawn(drawn, x, y, study.epsilons)
    parts += _names(lines, levels, x, y)
    title = f"{study.metric.upper()} on {study.name} against ε {wording.unit(study.promise)}"
    return picture(
        parts,
        width=WIDTH,
        height=HEIGHT,
        name=name,
        title=title,
        description=_spoken(lines, levels),
    )


def left_out(study: Study, group: Group) -> dict[str, list[float]]:
    """Epsilons at which a line has an error too large to be drawn, by its name."""
    levels = [
        found.mean
        for system in study.systems(group, "not private")
        if (found := study.mean(system.name, math.inf))
    ]
    limit = _limit(study, group, levels)
    found_out = dict[str, list[float]]()
    for system in study.systems(group, "ours", *OTHERS, "printed"):
        for epsilon in study.epsilons:
            mean = study.mean(system.name, epsilon)
            if mean is not None and mean.mean > limit:
                found_out.setdefault(_name(system), []).append(epsilon)
    return found_out


def _limit(study: Study, group: Group, levels: Sequence[float]) -> float:
    """The largest error that is drawn; a metric of which more is better needs none."""
    ours = [
        found.mean
        for system in study.systems(group, "ours")
        for e in study.epsilons
        if (found := study.mean(system.name, e))
    ]
    return 1.01 * max([*levels, *ours]) if study.lower_is_better and levels else math.inf


def _lines(study: Study, group: Group, limit: float) -> list[_Line]:
    ours = study.systems(group, "ours")
    others = study.systems(group, *OTHERS, "printed")
    styled = [
        *zip(ours, _OURS, strict=False),
        *((system, _OTHERS[i % len(_OTHERS)]) for i, system in enumerate(others)),
    ]
    found = [_Line(_name(system), _points(study, system, limit), style) for system, style in styled]
    return [drawn for drawn in found if drawn.points]


def _name(system: System) -> str:
    return f"{system.label} (not established)" if system.origin == "printed" else system.label


def _points(study: Study, system: System, limit: float) -> list[tuple[float, Interval]]:
    means = [(epsilon, study.mean(system.name, epsilon)) for epsilon in study.epsilons]
    return [
        (epsilon, found) for epsilon, found in means if found is not None and found.mean <= limit
    ]


def _vertical(values: Sequence[float]) -> Scale:
    room = (max(values) - min(values)) * 0.05 or 0.01
    return Scale(min(values) - room, max(values) + room, BOTTOM, TOP)


def _at(epsilon: float, x: Scale) -> float:
    return x(epsilon) if math.isfinite(epsilon) else RIGHT


def _axes(study: Study, finite: Sequence[float], x: Scale, y: Scale) -> list[Markup]:
    marks = ticks(y.low, y.high, about=6)
    digits = decimals(marks)
    parts = [line(LEFT, y(v), RIGHT, y(v), class_="grid") for v in marks]
    parts += [
        text(LEFT - 8, y(v) + 4, f"{v:.{digits}f}", anchor="end", class_="tick") for v in marks
    ]
    parts += [
        text(x(epsilon), BOTTOM + 18, f"{epsilon:g}", anchor="middle", class_="tick")
        for epsilon in finite
    ]
    if math.inf in study.epsilons:
        parts += [text(RIGHT, BOTTOM + 18, "∞", anchor="middle", class_="tick")]
        parts += [text(RIGHT - _INFINITY_GAP / 2, BOTTOM + 18, "⋯", anchor="middle", class_="tick")]
    better = "lower" if study.lower_is_better else "higher"
    words = (
        f"ε {wording.unit(study.promise)}, δ = {wording.power(study.promise.delta)}; "
        f"{study.metric.upper()}, {better} is better"
    )
    return [*parts, text((LEFT + RIGHT) / 2, BOTTOM + 42, words, anchor="middle", class_="axis")]


def _drawn(drawn: _Line, x: Scale, y: Scale, epsilons: Sequence[float]) -> list[Markup]:
    colour, dash, width = drawn.style
    places = [(_at(epsilon, x), y(found.mean)) for epsilon, found in drawn.points]
    at = [epsilons.index(epsilon) for epsilon, _ in drawn.points]
    # a gap where an epsilon was not measured
    joined = [now == before + 1 for before, now in zip([-2, *at], at, strict=False)]
    route = "".join(
        f"{'L' if goes_on else 'M'}{a:.1f} {b:.1f}"
        for goes_on, (a, b) in zip(joined, places, strict=True)
    )
    parts = [
        element(
            "path",
            d=route,
            class_=f"line {colour}",
            stroke_dasharray=dash,
            style=f"stroke-width:{width:g}",
        )
    ]
    for (a, _), (_, found) in zip(places, drawn.points, strict=True):
        if math.isfinite(found.half):
            low, high = (
                min(max(found.mean + side * found.half, y.low), y.high) for side in (-1, 1)
            )
            parts.append(line(a, y(low), a, y(high), class_=f"error {colour}"))
    return parts + [
        element("circle", cx=a, cy=b, r=1.0 + width, class_=f"dot f{colour[1:]}") for a, b in places
    ]


def _names(
    lines: Sequence[_Line], levels: Sequence[tuple[str, float]], x: Scale, y: Scale
) -> list[Markup]:
    """To the right of the frame, moved apart, each joined to where its line or level ends."""
    ends = [
        (drawn.label, _at(drawn.points[-1][0], x), drawn.points[-1][1].mean, _text_class(drawn))
        for drawn in lines
    ]
    ends += [(label, RIGHT, value, "quiet") for label, value in levels]
    wanted = [y(value) - _LABEL / 2 for _, _, value, _ in ends]
    tops = spread(wanted, [_LABEL] * len(ends), low=2.0, high=BOTTOM + _LABEL)
    parts = []
    for (label, end, value, class_), top in zip(ends, tops, strict=True):
        joint = [(end + 4, y(value)), (RIGHT + 4, y(value)), (RIGHT + 14, top + _LABEL / 2)]
        parts.append(path(joint, class_="leader"))
        parts.append(text(RIGHT + 18, top + 11.5, label, class_=f"label {class_}"))
    return parts


def _text_class(drawn: _Line) -> str:
    return f"t{drawn.style[0][1:]}"


def _spoken(lines: Sequence[_Line], levels: Sequence[tuple[str, float]]) -> str:
    said = [
        f"{d.label}: "
        + ", ".join(f"{found.mean:.4f} at {epsilon:g}" for epsilon, found in d.points)
        + "."
        for d in lines
    ]
    return " ".join(said + [f"{label}: {value:.4f}." for label, value in levels])
