"""The report's charts, drawn by hand as SVG: metric against epsilon, and by round; dots.py has the
others.

Each is drawn twice, for a desktop and for a phone, and the page shows one of them: text keeps its
size on both. Lines are labelled where they end; colours come from the page (`s1` ... `s6`, told
apart by colour-blind readers and by their labels), and a method has the same in every chart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from fedrec.report import wording
from fedrec.report.content import Convergence, LineChart, Point, PrivacyCurve, Series
from fedrec.report.svg import (
    SLOTS,
    Scale,
    chosen,
    decimals,
    element,
    line,
    log_ticks,
    path,
    picture,
    sparse,
    spread,
    text,
    ticks,
)

WIDE = 720.0  # pixels of a picture over the page's whole width
NARROW = 344.0  # ... and of two beside each other
LINE_HEIGHT = 15.0  # pixels, of text of 12
_VALUED = 4
"""More lines than this have no numbers at their points."""
_MARKS = 8  # of an axis: more cannot be read at a narrow picture's width
_MARK_GAP = 32.0  # pixels between two of them
_EQUALS = "\u00a0=\u00a0"  # not broken over two lines
_LETTER = 6.5
"""Pixels of a digit of a tick, at most."""


@dataclass(frozen=True)
class _Frame:
    """Where the data goes inside a picture."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    @staticmethod
    def of(width: float, *, height: float) -> _Frame:
        """Ticks to the left, two lines of text below, labels to the right."""
        right = width - (172.0 if width > 500 else 106.0)
        return _Frame(width, height, 44.0, right, 18.0, height - 56.0)

    @property
    def wide(self) -> bool:
        return self.width > 500


def both_widths(draw: Callable[[float, str], Markup], name: str) -> Markup:
    """A drawing at desktop and at phone width; the page's style shows the one that fits."""
    wide = draw(WIDE, f"{name}-wide")
    narrow = draw(NARROW, f"{name}-narrow")
    return Markup('<div class="only-wide">{}</div><div class="only-narrow">{}</div>').format(
        wide, narrow
    )


def privacy_curve(curve: PrivacyCurve, *, name: str = "curve") -> Markup:
    """The metric of each line against epsilon (logarithmic), baselines as dotted levels.

    `name` must be unique on the page."""
    promise = f"ε {wording.unit(curve)}"
    lines = {
        label: tuple(Point(p.epsilon, p.value, p.spread) for p in points)
        for label, points in curve.lines.items()
    }
    axis = f"{promise}, δ = {wording.power(curve.delta)}"
    title = f"{curve.metric} against {promise}"
    return lines_against(
        LineChart(
            title, axis, lines, curve.baselines, log=True, lower_is_better=curve.lower_is_better
        ),
        name=name,
    )


def lines_against(chart: LineChart, *, name: str) -> Markup:
    """Lines with bars, labelled where they end; more than six take the colours again, dashed.

    `name` must be unique on the page."""
    return both_widths(lambda width, at: _lines(chart, width, at), name)


def convergence(chart: Convergence) -> Markup:
    """The metric of each line by round."""
    return both_widths(lambda width, name: _convergence(chart, width, name), "convergence")


def _lines(chart: LineChart, width: float, name: str) -> Markup:
    lines = [
        Series(label, tuple(p.x for p in points), tuple(p.value for p in points))
        for label, points in chart.lines.items()
    ]
    places = sorted({x for series in lines for x in series.x})
    labels = [(s.name, s.y[-1]) for s in lines] + list(chart.baselines)
    beside = sum(map(_height_of, _wrapped(labels, wide=width > 500)))
    # a phone shows the first chart whole below the verdict and the guarantee
    f = _Frame.of(width, height=max(340.0 if width > 500 else 250.0, beside + 24.0))
    reach = [
        p.value + side * p.spread
        for points in chart.lines.values()
        for p in points
        for side in (-1, 1)
    ]
    y = _vertical(f, reach + [value for _, value in chart.baselines], log=chart.log_y)
    longest = max(map(len, _marked(y).values()), default=0)
    f = replace(f, left=max(f.left, 12.0 + _LETTER * longest))
    x = _horizontal(f, places, chart.log)
    metric = chart.title.partition(" against ")[0]
    parts = [*_grid(f, y), text(0.0, 11.0, metric, class_="axis")]
    rounded = log_ticks if chart.log else ticks
    marks = places if len(places) <= _MARKS else rounded(places[0], places[-1])
    parts += [
        text(x(v), f.bottom + 18, _mark(v), anchor="middle", class_="tick")
        for v in sparse(marks, x, gap=_MARK_GAP)
    ]
    rows = textwrap.wrap(chart.axis, 88 if f.wide else 44)
    for row, words in enumerate(rows):
        at = f.bottom + 40 - 4 * (len(rows) > 1) + row * LINE_HEIGHT
        parts.append(text((f.left + f.right) / 2, at, words, anchor="middle", class_="axis"))
    slots = chosen(chart.lines)
    bars = [
        _error_bar(x(p.x) + _beside(s, len(lines)), y, p.value, p.spread, slots[label][0])
        for s, (label, points) in enumerate(chart.lines.items(), 1)
        for p in points
        if p.spread > 0
    ]
    parts += bars
    parts += _levels(f, y, chart.baselines)
    parts += _polylines(lines, x, y)
    parts += _point_values(lines, x, y, f.left) if len(lines) <= _VALUED and not bars else []
    parts += _end_labels(f, y, lines, chart.baselines)
    better = {None: "", True: " lower is better.", False: " higher is better."}[
        chart.lower_is_better
    ]
    spoken = f"{_spoken(lines, chart.baselines)}{better}"
    return picture(
        parts,
        width=f.width,
        height=f.height,
        name=name,
        title=chart.title,
        description=spoken,
    )


def _beside(s: int, count: int) -> float:
    """Pixels that a bar stands beside its point, so that those of several lines do not cover each
    other."""
    return 3.0 * (s - (count + 1) / 2)


def _horizontal(f: _Frame, places: Sequence[float], log: bool) -> Scale:
    low = places[0]
    high = places[-1]
    if not log:
        return Scale(low, high, f.left + 8, f.right - 8)
    pad = (high / low) ** 0.06 if high > low else 2.0
    return Scale(low / pad, high * pad, f.left, f.right, log=True)


def _convergence(chart: Convergence, width: float, name: str) -> Markup:
    f = _Frame.of(width, height=300.0)
    steps = sorted({x for series in chart.lines for x in series.x})
    x = Scale(steps[0], steps[-1], f.left + 8, f.right - 8)
    y = _vertical(
        f, [v for series in chart.lines for v in series.y] + [value for _, value in chart.baselines]
    )
    parts = [*_grid(f, y), text(0.0, 11.0, chart.metric, class_="axis")]
    parts += [
        text(x(step), f.bottom + 18, f"{step:g}", anchor="middle", class_="tick")
        for step in sparse(steps, x)
    ]
    parts.append(
        text((f.left + f.right) / 2, f.bottom + 40, "round", anchor="middle", class_="axis")
    )
    parts += (
        _levels(f, y, chart.baselines)
        + _polylines(chart.lines, x, y)
        + _end_labels(f, y, chart.lines, chart.baselines)
    )
    title = f"{chart.metric} by round"
    spoken = _spoken(chart.lines, chart.baselines)
    return picture(
        parts,
        width=width,
        height=f.height,
        name=name,
        title=title,
        description=spoken,
    )


def _vertical(f: _Frame, values: Sequence[float], *, log: bool = False) -> Scale:
    low = min(values)
    high = max(values)
    if log:
        pad = (high / low) ** 0.08 if high > low else 2.0
        return Scale(low / pad, high * pad, f.bottom, f.top, log=True)
    room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return Scale(low - room, high + room, f.bottom, f.top)


def _grid(f: _Frame, y: Scale) -> list[Markup]:
    marks = _marked(y)
    lines = [line(f.left, y(v), f.right, y(v), class_="grid") for v in marks]
    return lines + [
        text(f.left - 8, y(v) + 4, words, anchor="end", class_="tick") for v, words in marks.items()
    ]


def _marked(y: Scale) -> dict[float, str]:
    """Values of the vertical axis that have a line of the grid, and what stands beside each."""
    if y.log:
        return {v: _mark(v) for v in log_ticks(y.low, y.high)}
    marks = ticks(y.low, y.high)
    return {v: f"{v:.{decimals(marks)}f}" for v in marks}


def _mark(value: float) -> str:
    return wording.power(value) if value >= 1e4 else f"{value:.4g}"


def _error_bar(x: float, y: Scale, value: float, deviation: float, slot: int) -> Markup:
    return line(x, y(value - deviation), x, y(value + deviation), class_=f"error s{slot}")


def _levels(f: _Frame, y: Scale, baselines: Sequence[tuple[str, float]]) -> list[Markup]:
    return [
        line(f.left, y(value), f.right, y(value), class_=f"level s{SLOTS.get(name, 0)}")
        for name, value in baselines
    ]


def _polylines(lines: Sequence[Series], x: Scale, y: Scale) -> list[Markup]:
    parts = []
    slots = chosen(series.name for series in lines)
    for series in lines:
        slot, dashed = slots[series.name]
        points = [(x(a), y(b)) for a, b in zip(series.x, series.y, strict=True)]
        parts.append(path(points, class_=f"line s{slot}{' dashed' if dashed else ''}"))
        parts += [element("circle", cx=a, cy=b, r=3.5, class_=f"dot f{slot}") for a, b in points]
    return parts


def _point_values(lines: Sequence[Series], x: Scale, y: Scale, axis: float) -> list[Markup]:
    """Values at the points, as far as there is room: above the line that is highest on the page,
    below the others.

    The last value of a line stands in its label; a steep neighbour pushes the number to the other
    side, and a number that would touch one of an earlier line is left out.
    """
    if not lines:
        return []
    highest = min(range(len(lines)), key=lambda i: y(lines[i].y[0]))
    parts = []
    taken = list[tuple[float, float]]()
    for i, series in enumerate(lines):
        side = -1 if i == highest else 1  # pixels grow downwards
        points = [(x(a), y(b)) for a, b in zip(series.x, series.y, strict=True)]
        shown = _roomy([point[0] for point in points[:-1]], before=points[-1][0])
        for at in shown:
            anchor = _free_side([side * point[1] for point in points], at) if at else "middle"
            left = max(points[at][0], axis + 18 * (anchor == "middle"))  # clear of the ticks
            top = points[at][1] + (-10 if side < 0 else 20)
            if any(abs(left - a) < 36 and abs(top - b) < 12 for a, b in taken):
                continue
            taken.append((left, top))
            parts.append(
                text(
                    left,
                    top,
                    _shown(series.y[at]),
                    anchor=anchor,
                    class_="value halo",
                )
            )
    return parts


def _roomy(places: Sequence[float], *, before: float, gap: float = 36.0) -> list[int]:
    """Indices of places at least `gap` apart, from the left, that end half a gap before the
    limit."""
    kept: list[int] = []
    for at, place in enumerate(places):
        if (not kept or place - places[kept[-1]] >= gap) and place <= before - gap / 2:
            kept.append(at)
    return kept


def _free_side(depths: Sequence[float], at: int) -> str:
    """Where a number may grow from its point, if the line is steep (12 pixels) towards the number's
    side on the left or right."""
    steep = depths[at] + 12
    left = at > 0 and depths[at - 1] > steep
    right = at + 1 < len(depths) and depths[at + 1] > steep
    return "middle" if left == right else "start" if left else "end"


def _end_labels(
    f: _Frame, y: Scale, lines: Sequence[Series], baselines: Sequence[tuple[str, float]]
) -> list[Markup]:
    """Names and last values to the right of where lines and levels end, wrapped, and moved apart
    where they would touch."""
    slots = chosen(series.name for series in lines)
    ends = [(s.name, s.y[-1], f"t{slots[s.name][0]}") for s in lines] + [
        (name, value, f"reference t{SLOTS[name]}" if name in SLOTS else "quiet")
        for name, value in baselines
    ]
    rows = _wrapped([(name, value) for name, value, _ in ends], wide=f.wide)
    sizes = [_height_of(row) for row in rows]
    wanted = [y(value) - LINE_HEIGHT / 2 for _, value, _ in ends]
    tops = spread(wanted, sizes, low=f.top - 10, high=max(f.bottom, f.top - 10 + sum(sizes)))
    parts = []
    for row, (_, value, class_), top in zip(rows, ends, tops, strict=True):
        parts.append(
            path([(f.right + 2, y(value)), (f.right + 10, top + LINE_HEIGHT / 2)], class_="leader")
        )
        parts += [
            text(f.right + 14, top + 12 + LINE_HEIGHT * i, words, class_=f"label {class_}")
            for i, words in enumerate(row)
        ]
    return parts


def _wrapped(ends: Sequence[tuple[str, float]], *, wide: bool) -> list[list[str]]:
    """Name and last value of each, in lines that fit beside the frame."""
    letters, room = (20, 20) if wide else (12, 13)
    whole = [textwrap.wrap(name.replace(" = ", _EQUALS), letters) for name, _ in ends]
    rows = [[words.replace(_EQUALS, " = ") for words in row] for row in whole]
    for row, (_, value) in zip(rows, ends, strict=True):
        shown = _shown(value)
        together = f"{row[-1]} {shown}"
        row[-1:] = [together] if len(together) <= room else [row[-1], shown]
    return rows


def _height_of(row: Sequence[str]) -> float:
    return LINE_HEIGHT * len(row) + 3


def _shown(value: float) -> str:
    """Three digits behind the point, none of a large number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else wording.number(value, digits=3)


def _spoken(lines: Sequence[Series], baselines: Sequence[tuple[str, float]]) -> str:
    said = [
        f"{s.name}: " + ", ".join(f"{b:.3f} at {a:g}" for a, b in zip(s.x, s.y, strict=True)) + "."
        for s in lines
    ]
    return " ".join(said + [f"{name}: {value:.3f}." for name, value in baselines])
