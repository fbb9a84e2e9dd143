"""The report as one HTML file that needs nothing else: no script, no font, no picture from
anywhere.

The end of a run in a terminal: one table, one line on what the model is worth, its guarantee.

Page of one table in the report's style, the answer first: comparisons of runs and audits.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrec.privacy.guarantee import non_private
from fedrec.report import charts, dots, wording
from fedrec.report.content import BucketBars, Departure, Method, NeighbourCard, ReportContent
from fedrec.run.statement import NOT_PRIVATE

_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"  # so that no line ends in "δ ="
_CONTENTS = "<!-- contents -->"
_STYLE = "main { max-width: 72rem; } td, th { padding-right: 1.25rem; }"


def print_result(console: Console, content: ReportContent, *, details: bool = False) -> None:
    """The table, beyond the console's width rather than with numbers cut off at its edge, then a
    line each for the verdict and the guarantee. details: every comparison, and what is not
    covered."""
    console.print(methods_table(content), crop=False)
    lines = [content.answer, ""] if content.answer else [""]
    for at, promise in enumerate(content.promises):
        covers = f"for {promise.covers}" if at else NOT_PRIVATE
        said = f"{wording.guarantee(promise.guarantee)}, {covers}"
        lines.append(f"{(promise.name or 'guarantee').lower():10} {said}")
    if details:
        lines += [f"verdict    {sentence}" for sentence in content.details]
        beyond = [what for promise in content.promises for what in promise.not_covered]
        lines += [f"beyond     not covered by the guarantee: {what}" for what in beyond]
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def methods_table(content: ReportContent) -> Table:
    """The methods of the report as a rich table; ours in bold.

    An epsilon is per the unit of the first promise, or says its own."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("method", min_width=16)  # long names wrap, so that numbers need not
    for name in content.metrics:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"ε {unit_of(content)}", justify="right")
    table.add_column("sent", justify="right", no_wrap=True)
    table.add_column("received", justify="right", no_wrap=True)
    for method in content.methods:
        table.add_row(*_cells(method, content), style="bold" if method.ours else "")
    return table


def unit_of(content: ReportContent) -> str:
    """Unit and neighbours of the first promise in short: per user (add/remove)."""
    own = content.promises[0].guarantee if content.promises else non_private(1e-5)
    return f"per {own.unit} ({own.neighbours})"


def _cells(method: Method, content: ReportContent) -> list[Text]:
    numbers = [wording.number(method.metrics.get(name, math.nan)) for name in content.metrics]
    words = [
        method.name,
        *numbers,
        promised(method, content),
        *(
            "" if size is None else wording.size(size)
            for size in (method.bytes_up, method.bytes_down)
        ),
    ]
    # Text, so that a name in [brackets] is not read as markup
    return [Text(word) for word in words]


def promised(method: Method, content: ReportContent) -> str:
    """Epsilon alone where unit, neighbours and delta are those of the promise under the table."""
    own = method.guarantee
    if method.instead or not own.private:
        return "–"
    shared = any(
        (own.unit, own.neighbours, own.delta, own.established)
        == (one.unit, one.neighbours, one.delta, one.established)
        for one in (promise.guarantee for promise in content.promises[:1])
    )
    return f"{own.epsilon:.4g}" if shared else wording.guarantee(own)


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
            bucket_charts=[
                {
                    "metric": chart.metric,
                    "lower_is_better": chart.lower_is_better,
                    "svg": dots.bucket_dots(chart, name=f"buckets-{at}"),
                }
                for at, chart in enumerate(content.buckets)
            ],
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


_STYLE += " .data.warn { color: var(--warn); } figure { max-width: 50rem; margin-bottom: 2.5rem; }"
# where a row does not fit the screen, each of its cells has a line, with the column's name
_STYLE += """
@media (max-width: 62rem) {
  .named thead { display: none; }
  .named tr { display: block; padding: .7rem 0; border-bottom: 1px solid var(--faint); }
  .named td { display: flex; justify-content: space-between; gap: 1.5rem; border: 0; }
  .named td, .named td.num { padding: .1rem 0; text-align: right; white-space: normal; }
  .named td::before { content: attr(data-name); color: var(--quiet); font-weight: 400; }
  .named td:first-child { font-weight: 650; text-align: left; }
  .named td:first-child::before { content: none; }
  .named td:empty { display: none; }
}"""


@dataclass(frozen=True)
class TablePage:
    """What the page says.

    answer: one sentence; bad: whether it is a warning; numbers: columns of numbers; notes:
    paragraphs below the table; links: (address, words) of further pages.
    """

    title: str
    answer: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    bad: bool = False
    warned: frozenset[int] = frozenset()
    """Rows that are a warning."""
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    chart: Markup | None = None
    """Above the table."""


def render_table(page: TablePage) -> str:
    """One HTML file that needs no network and no script.

    Everything that comes from data is escaped."""
    head = "".join(
        f"<th scope=col{_class(n, page)}>{escape(name)}</th>" for n, name in enumerate(page.head)
    )
    body = "\n".join(
        f"<tr{' class=warn' if at in page.warned else ''}>{_table_cells(row, page)}</tr>"
        for at, row in enumerate(page.rows)
    )
    notes = "\n".join(f'<p class="note">{escape(note)}</p>' for note in page.notes)
    links = "".join(
        f'<li><a href="{escape(address)}">{escape(words)}</a></li>' for address, words in page.links
    )
    further = f"<section><h2>Reports of the runs</h2><ul>{links}</ul></section>" if links else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(page.title)}</title>
<style>{stylesheet()}{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(page.title)}</h1>
<p class="data{" warn" if page.bad else ""}">{escape(page.answer)}</p>
</header>
{f"<figure>{page.chart}</figure>" if page.chart else ""}
<div class="scroll wide" tabindex="0" role="region" aria-label="{escape(page.title)}">
<table class="named">
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
{notes}
{further}
</main>
</body>
</html>
"""


def _table_cells(row: Sequence[str], page: TablePage) -> str:
    return "".join(
        f'<td{_class(n, page)} data-name="{escape(name)}">{escape(cell)}</td>'
        for n, (name, cell) in enumerate(zip(page.head, row, strict=True))
    )


def _class(column: int, page: TablePage) -> str:
    return " class=num" if column in page.numbers else ""
