"""The end of a run in a terminal: methods, what they reach, what they promise, what they send."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrec.report import wording
from fedrec.report.content import Method, ReportContent
from fedrec.run.statement import NOT_PRIVATE


def print_methods(console: Console, content: ReportContent) -> None:
    """The table, beyond the console's width rather than with numbers cut off at its edge."""
    console.print(methods_table(content), crop=False)


def methods_table(content: ReportContent) -> Table:
    """The methods of the report as a rich table; ours in bold.

    Every epsilon names its unit and neighbours."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("method", min_width=16)  # long names wrap, so that numbers need not
    for name in content.metrics:
        table.add_column(name, justify="right", no_wrap=True)
    # a narrow terminal wraps it; without it rows could not be told apart
    table.add_column("guarantee of the model", min_width=16)
    table.add_column("sent", justify="right", no_wrap=True)
    table.add_column("received", justify="right", no_wrap=True)
    named = [
        f"{promise.name}: {wording.guarantee(promise.guarantee)}"
        for promise in content.promises
        if promise.name
    ]
    # beside four metrics there is no room for a column
    table.caption = "\n".join([*named, NOT_PRIVATE])
    table.caption_justify = "left"
    for method in content.methods:
        table.add_row(*_cells(method, content.metrics), style="bold" if method.ours else "")
    return table


def _cells(method: Method, metrics: tuple[str, ...]) -> list[Text]:
    numbers = [wording.number(method.metrics.get(name, math.nan)) for name in metrics]
    promised = method.instead or wording.guarantee(method.guarantee)
    words = [
        method.name,
        *numbers,
        promised,
        wording.size(method.bytes_up),
        wording.size(method.bytes_down),
    ]
    # Text, so that a name in [brackets] is not read as markup
    return [Text(word) for word in words]
