"""Charts of a page as files: SVG, PDF and PNG of each, and its numbers as CSV.

Pictures for papers with matplotlib: one colour a method everywhere, labels on the lines, axes
that start where the data does.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import polars as pl

from fedrec.errors import RunError, SettingsError, require
from fedrec.report.page import stylesheet
from fedrec.report.svg import LIGHT, SLOTS
from fedrec.storage import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


_ANCHORS = {"start": "left", "middle": "center", "end": "right"}
_PIXELS = 12.0  # of the page's text
_NARROWER = 0.9  # matplotlib's own letters are wider than a browser's
Style = Mapping[str, str]


def standalone(drawn: str) -> str:
    """The first picture of a chart (the wide one) as a file, with what it takes from the report's
    page: colours, light and dark."""
    picture = drawn[drawn.index("<svg ") : drawn.index("</svg>") + len("</svg>")]
    css = resources.files("fedrec.report").joinpath("page.css").read_text(encoding="utf-8")
    colours = css[: css.index("* {")]
    rules = "\n".join(rule for rule in css.splitlines() if rule.startswith(("svg ", ".s1", ".f1")))
    style = f"<style>\n{colours}{rules}\nsvg {{ color: var(--ink); }}\n</style>"
    paper = '<rect width="100%" height="100%" fill="var(--bg)"/>'
    opened = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return opened.replace(">", f">{style}{paper}", 1) + "\n"


FORMATS = ("svg", "pdf", "png", "csv")
_DPI = 200
_CHART = re.compile(r'<svg [^>]*aria-labelledby="([\w-]+)-t [^"]*"[^>]*>.*?</svg>', re.DOTALL)
_METADATA = {"pdf": {"CreationDate": None}}  # the same bytes every day
_NUMBERS = re.compile(r"<metadata>(.*?)</metadata>", re.DOTALL)


@dataclass(frozen=True)
class Chart:
    """One chart of a page. svg: a file of its own; numbers: what it draws, as CSV."""

    name: str
    svg: str
    numbers: str

    def file(self, kind: str) -> bytes:
        """Its bytes in one of FORMATS.

        Raises SettingsError where matplotlib is needed and missing."""
        texts = {"svg": self.svg, "csv": self.numbers}
        if kind in texts:
            return texts[kind].encode()
        kept = io.BytesIO()
        figure(self.svg).savefig(
            kept, format=kind, dpi=_DPI, bbox_inches="tight", pad_inches=0.08,
            metadata=_METADATA.get(kind, {}),
        )  # fmt: skip
        return kept.getvalue()


def charts_of(page: Path) -> list[Chart]:
    """All charts of a page that fedrec wrote, or of an SVG that is one.

    Raises RunError where the file has none."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            f"{page} cannot be read: {error}",
            "Give a page that fedrec wrote, for example runs/NAME/report.html.",
        ) from error
    found = []
    for match in _CHART.finditer(text):
        if numbers := _NUMBERS.search(match[0]):
            svg = standalone(match[0]) if page.suffix != ".svg" else text
            found.append(Chart(match[1].removesuffix("-wide"), svg, html.unescape(numbers[1])))
    if not found:
        remedy = (
            "Give a page of fedrec simulate, compare or audit, or a figure of research/docs/img."
        )
        raise RunError(f"{page} has no chart whose numbers can be read", remedy)
    return found


def write(page: Path, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Files of all charts, `folder/NAME.FORMAT`.

    Raises SettingsError on an unknown format, and RunError as `charts_of`."""
    if unknown := [kind for kind in formats if kind not in FORMATS]:
        raise SettingsError(
            f"there is no format {unknown[0]!r}", f"There are: {', '.join(FORMATS)}."
        )
    made = [
        (folder / f"{chart.name}.{kind}", chart.file(kind))
        for chart in charts_of(page)
        for kind in formats
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in made:
        write_bytes(path, content)
    return [path for path, _ in made]


def figure(svg: str) -> Figure:
    """A chart's SVG drawn with matplotlib: the same shapes, in the colours of the light page; one
    pixel is one point. It reads what `svg.py` writes (lines, paths of straight pieces, circles,
    text) and the rules of page.css that a chart uses. Raises SettingsError where matplotlib is
    missing."""
    require("plot", "a figure")
    from matplotlib.figure import Figure

    root = ElementTree.fromstring(svg)
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    made = Figure(figsize=(width / 72, height / 72), dpi=72)
    axes = made.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    rules = _rules(stylesheet())
    for layer, shape in enumerate(root.iter()):
        style = _style(shape.attrib, rules)
        match shape.tag.rpartition("}")[2]:
            case "line":
                at = {name: float(shape.attrib[name]) for name in ("x1", "y1", "x2", "y2")}
                axes.plot((at["x1"], at["x2"]), (at["y1"], at["y2"]), zorder=layer, **_pen(style))
            case "path":
                for piece in _pieces(shape.attrib["d"]):
                    axes.plot(*zip(*piece, strict=True), zorder=layer, **_pen(style))
            case "circle":
                x, y, r = (float(shape.attrib[name]) for name in ("cx", "cy", "r"))
                edge: dict[str, Any] = {
                    "mec": style.get("stroke", "none"),
                    "mew": float(style.get("stroke-width", 1)),
                }
                axes.plot(
                    (x,),
                    (y,),
                    "o",
                    ms=2 * r,
                    mfc=style["fill"],
                    clip_on=False,
                    zorder=layer,
                    **edge,
                )
            case "text":
                _write(axes, shape, style, layer)
    return made


def _write(axes: Any, shape: ElementTree.Element, style: Style, layer: int) -> None:
    from matplotlib.patheffects import withStroke

    drawn = axes.text(
        float(shape.attrib["x"]),
        float(shape.attrib["y"]),
        (shape.text or "").replace("$", r"\$"),
        ha=_ANCHORS[shape.attrib.get("text-anchor", "start")],
        va="baseline",
        color=style["fill"],
        fontsize=_NARROWER * float(style.get("font-size", f"{_PIXELS}px").removesuffix("px")),
        fontweight="bold" if int(style.get("font-weight", 400)) >= 600 else "normal",
        zorder=layer,
    )
    if "paint-order" in style:
        drawn.set_path_effects(
            [
                withStroke(
                    linewidth=float(style["stroke-width"].removesuffix("px")),
                    foreground=style["stroke"],
                )
            ]
        )


def _pen(style: Style) -> dict[str, Any]:
    pen: dict[str, Any] = {
        "color": style.get("stroke", style["fill"]),
        "lw": float(style.get("stroke-width", 1)),
        "clip_on": False,
    }
    pen |= {
        "alpha": float(style.get("opacity", 1)),
        "solid_capstyle": "round",
        "solid_joinstyle": "round",
    }
    if dashes := [float(number) for number in style.get("stroke-dasharray", "").split()]:
        # matplotlib counts them in line widths
        pen["linestyle"] = (0, [length / pen["lw"] for length in dashes])
    return pen


def _pieces(route: str) -> list[list[tuple[float, float]]]:
    """Points of each piece of "M x y L x y ... M x y"."""
    found = [
        [tuple(map(float, point.split())) for point in part.split("L")]
        for part in route.split("M")
        if part
    ]
    return [[(x, y) for x, y in piece] for piece in found]


def _rules(css: str) -> list[tuple[frozenset[str], Style]]:
    """Classes and what they set, of the rules that are about charts, in the light page's
    colours."""
    colours = dict(re.findall(r"(--[\w-]+): (#\w+);", css[: css.index("@media")]))
    ruled = [(frozenset[str](), {"fill": colours["--ink"]})]
    for line in css[: css.index("\n@media (max-width")].splitlines():
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", line):
            set_to = dict(part.strip().split(": ", 1) for part in body.split(";") if ": " in part)
            named = {
                name: re.sub(r"var\((--[\w-]+)\)", lambda match: colours[match[1]], value)
                for name, value in set_to.items()
            }
            matched = (
                re.fullmatch(r"(?:svg )?((?:\.[\w-]+)+)", selector.strip())
                for selector in selectors.split(",")
            )
            ruled += [
                (frozenset(match[1].strip(".").split(".")), named) for match in matched if match
            ]
    return sorted(ruled, key=lambda rule: len(rule[0]))


def _style(attributes: Mapping[str, str], rules: list[tuple[frozenset[str], Style]]) -> Style:
    """Return an element's style as a browser would compute it: rules by how many classes they name,
    then what the element says itself."""
    classes = set(attributes.get("class", "").split())
    style = dict[str, str]()
    for needed, set_to in rules:
        if needed <= classes:
            style |= set_to
    own = dict(part.split(":", 1) for part in attributes.get("style", "").split(";") if ":" in part)
    return (
        style
        | {name: attributes[name] for name in ("stroke-dasharray",) if name in attributes}
        | own
    )
