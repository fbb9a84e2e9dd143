"""Progress of what takes long, with one clock: a bar on a terminal, one line of plain text in a
notebook, and nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column


class _NotebookLine(Progress):
    """The latest task as one line of a notebook's output, replaced in place.

    rich would need widgets for that, and writes control codes without them."""

    _lines: ClassVar[WeakKeyDictionary[Console, Any]] = WeakKeyDictionary()
    """The open line of each console: what is transient leaves its line to what comes next."""

    def refresh(self) -> None:
        if not self.tasks:
            return
        from IPython.display import display  # whoever runs a notebook has it

        task = self.tasks[-1]
        clock = TimeRemainingColumn(elapsed_when_finished=True).render(task)
        shown = {"text/plain": f"{'✓' if task.finished else '…'} {task.description} {clock}"}
        if self.console in self._lines:
            self._lines[self.console].update(shown, raw=True)
        else:
            self._lines[self.console] = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self.refresh()

    def stop(self) -> None:
        if not self.live.transient:
            self._lines.pop(self.console, None)


@contextmanager
def progress_bar(console: Console, *, transient: bool = False) -> Iterator[Progress]:
    """A spinner, words, and the time left, at the end the time taken, on a console that is a
    terminal or a notebook.

    transient: nothing of it stays."""
    # a narrow terminal wraps, and cuts nothing
    words = TextColumn("{task.description}", table_column=Column(overflow="fold"))
    columns = (
        SpinnerColumn(finished_text="✓"),
        words,
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    in_notebook = console.is_jupyter and not console.quiet
    kind = _NotebookLine if in_notebook else Progress
    with kind(
        *columns,
        console=console,
        transient=transient,
        disable=in_notebook or not console.is_terminal,
    ) as progress:
        yield progress


@contextmanager
def stage(console: Console, words: str) -> Iterator[None]:
    """Show one thing that is not counted, for as long as it takes."""
    with progress_bar(console, transient=True) as progress:
        task = progress.add_task(words, total=1)
        yield
        progress.update(task, completed=1)
