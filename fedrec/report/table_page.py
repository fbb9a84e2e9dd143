"""Page of one table in the report's style, the answer first: comparisons of runs and audits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from fedrec.report.page import stylesheet

_STYLE = "main { max-width: 72rem; } td, th { padding-right: 1.25rem; }"
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

_FOOTER = "<footer>fedrec figures PAGE writes the chart as PDF, SVG, PNG and CSV.</footer>"


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


def render(page: TablePage) -> str:
    """One HTML file that needs no network and no script.

    Everything that comes from data is escaped."""
    head = "".join(
        f"<th scope=col{_class(n, page)}>{escape(name)}</th>" for n, name in enumerate(page.head)
    )
    body = "\n".join(
        f"<tr{' class=warn' if at in page.warned else ''}>{_cells(row, page)}</tr>"
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
{_FOOTER if page.chart else ""}
</main>
</body>
</html>
"""


def _cells(row: Sequence[str], page: TablePage) -> str:
    return "".join(
        f'<td{_class(n, page)} data-name="{escape(name)}">{escape(cell)}</td>'
        for n, (name, cell) in enumerate(zip(page.head, row, strict=True))
    )


def _class(column: int, page: TablePage) -> str:
    return " class=num" if column in page.numbers else ""
