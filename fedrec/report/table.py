"""The end of a run in a terminal: one table, one line on what the model is worth, its guarantee."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrec.privacy.guarantee import non_private
from fedrec.report import wording
from fedrec.report.content import Method, ReportContent
from fedrec.run.statement import NOT_PRIVATE


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
