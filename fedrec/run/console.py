"""Progress on a terminal: a bar with one clock, and a line for each stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column


@contextmanager
def progress_bar(console: Console, *, transient: bool = False) -> Iterator[Progress]:
    """A spinner, words, and the time left, at the end the time taken, on a console that is a
    terminal.

    transient: nothing of it stays."""
    # a narrow terminal wraps, and cuts nothing
    words = TextColumn("{task.description}", table_column=Column(overflow="fold"))
    columns = (
        SpinnerColumn(finished_text="✓"),
        words,
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(
        *columns, console=console, transient=transient, disable=not console.is_terminal
    ) as progress:
        yield progress


@contextmanager
def stage(console: Console, words: str) -> Iterator[None]:
    """Show one thing that is not counted, for as long as it takes."""
    with progress_bar(console, transient=True) as progress:
        task = progress.add_task(words, total=1)
        yield
        progress.update(task, completed=1)
