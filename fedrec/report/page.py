"""The report as one HTML file that needs nothing else: no script, no font, no picture from
anywhere."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedrec.report import charts, dots, wording
from fedrec.report.content import BucketBars, Departure, NeighbourCard, ReportContent
from fedrec.report.table import promised, unit_of

_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"  # so that no line ends in "δ ="
_CONTENTS = "<!-- contents -->"


def write(path: Path, content: ReportContent) -> None:
    """Write the page in UTF-8, whole or not at all.

    Raises OSError where the file cannot be written."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(render(content), encoding="utf-8")
    draft.replace(path)


def render(content: ReportContent) -> str:
    """The page as text. Everything that comes from data is escaped."""
    rows = wording.hex_rows(content.example) if content.example else []
    page = (
        _environment()
        .get_template("page.html")
        .render(
            content=content,
            style=Markup(stylesheet()),
            curves=[
                (curve, charts.privacy_curve(curve, name=name))
                for name, curve in (("curve", content.curve), ("lists-curve", content.lists_curve))
                if curve
            ],
            methods_chart="" if content.curve else _methods_chart(content),
            convergence_chart=charts.convergence(content.convergence)
            if content.convergence
            else "",
            bucket_charts=[_bucket_chart(chart, at) for at, chart in enumerate(content.buckets)],
            largest_share=max((part.share for part in content.budget), default=1.0) or 1.0,
            hex_rows=rows,
            shown_bytes=min(len(content.example.payload), wording.HEX_WIDTH * len(rows))
            if content.example
            else 0,
            unit=unit_of(content),
            nan=math.nan,
        )
    )
    return page.replace(_CONTENTS, _contents(page))


def _contents(page: str) -> str:
    """Links to the page's sections, from their headings."""
    parts = "".join(
        f'<li><a href="#{anchor}">{title}</a></li>'
        for anchor, title in re.findall(r'<h2 id="([\w-]+)">([^<]*)</h2>', page)
    )
    return f'<nav aria-label="Contents"><ul class="contents">{parts}</ul></nav>' if parts else ""


def _methods_chart(content: ReportContent) -> Markup | str:
    """The first metric of each method, for a page without a curve; "" where there is nothing to
    compare."""
    metric = next(iter(content.metrics), "")
    found = {m.name: (m.metrics[metric],) for m in content.methods if metric in m.metrics}
    return dots.bucket_dots(BucketBars(metric, found), name="methods") if len(found) > 1 else ""


def _bucket_chart(chart: BucketBars, at: int) -> dict[str, object]:
    return {
        "metric": chart.metric,
        "lower_is_better": chart.lower_is_better,
        "svg": dots.bucket_dots(chart, name=f"buckets-{at}"),
    }


@cache  # with the templates that it has compiled
def _environment() -> Environment:
    environment = Environment(
        loader=_loader(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "unit": wording.unit,
        "power": wording.power,
        "guarantee": lambda promise: wording.guarantee(promise).replace(" = ", _EQUALS),
        "unbroken": lambda words: words.replace(" = ", _EQUALS),
        "in_plain_words": wording.in_plain_words,
        "opinion": wording.opinion,
        "promised": promised,
        "alike": _alike,
        "spread": lambda curve: any(p.spread for line in curve.lines.values() for p in line),
        "number": wording.number,
        "size": wording.size,
        "common_titles": _common_titles,
        "first_upper": lambda words: words[:1].upper() + words[1:],
    }
    environment.filters.update(filters)
    return environment


def _loader() -> PackageLoader:
    return PackageLoader("fedrec.report", package_path="")


def stylesheet() -> str:
    """The page's style, for every page that has its charts."""
    # only to read a file beside the template, wherever the package is installed
    environment = Environment(autoescape=True)
    return _loader().get_source(environment, "page.css")[0]


def _alike(departures: Sequence[Departure]) -> list[Departure]:
    """Rounds of one shape as one line: "step/0 to step/6"."""
    groups = dict[tuple[object, ...], list[Departure]]()
    for part in departures:
        stem = part.release.rstrip("0123456789")
        groups.setdefault((stem, part.shape, part.bytes, part.contains), []).append(part)
    return [
        parts[0]
        if len(parts) == 1
        else replace(parts[0], release=f"{first}, {len(parts)} times")
        if first == parts[-1].release
        else replace(parts[0], release=f"{first} to {parts[-1].release}")
        for parts in groups.values()
        for first in [parts[0].release]
    ]


def _common_titles(card: NeighbourCard) -> set[str]:
    seen = Counter(title for entry in card.lists for title in {title for title, _ in entry.items})
    return {title for title, count in seen.items() if count > 1}
