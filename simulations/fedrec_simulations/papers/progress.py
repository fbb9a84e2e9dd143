"""How far a figure is: its rows are counted beforehand, by asking it for all of them and making none, and timed as they are made.

Counting hands out `Blank` in the place of a row, so that a figure's own code lists what it will need. A row inside another (the model that
a training is compared with) is part of that one. The time left is the mean of the rows made so far times the rows that are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrec.errors import FedRecError
from fedrec_simulations.bench import rows
from fedrec_simulations.bench.rows import Row
from fedrec_simulations.simulate import progress_bar

MakeRows = Callable[[], list[Row]]


class Blank(float):
    """A row, or anything in it, that is not there yet: nan to arithmetic, empty to loops, and every key of it is blank."""

    def __new__(cls) -> Blank:
        """nan."""
        return super().__new__(cls, math.nan)

    def __getitem__(self, key: object) -> Blank:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def keys(self) -> tuple[str, ...]:
        """None: as a mapping it is empty."""
        return ()

    items = values = keys


@dataclass(frozen=True)
class Progress:
    """Rows done of all that are needed, those made by this run and the seconds they took.

    complete: every row could be counted; where not, there are at least `total`.
    """

    done: int
    total: int
    complete: bool = True
    made: int = 0
    seconds: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds; nan until a row has been made, and when all are done."""
        missing = self.total - self.done
        return missing * self.seconds / self.made if self.made and missing else math.nan

    @property
    def words(self) -> str:
        """For people: rows, and the time left where it is known."""
        about = "about" if self.complete else "at least"
        rows = f"{self.done} of {'' if self.complete else 'at least '}{self.total} rows"
        return rows if math.isnan(self.left_s) else f"{rows}, {about} {_duration(self.left_s)} left"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(round(seconds), 1)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def counted(make: MakeRows) -> tuple[set[Path], bool]:
    """Files of the rows that `make` asks for, and whether these are all: not where its code needs a row's content to go on."""
    asked = set[Path]()

    def count(path: Path, _: Callable[[], Row]) -> Any:
        asked.add(path)
        return Blank()

    with _keeping(count):
        try:
            make()
        except (FedRecError, TypeError, ValueError, LookupError, AttributeError):
            return asked, False  # a blank was not enough; what is really wrong will be said again when the rows are made
    return asked, True


@dataclass
class Watch:
    """Counts and times the rows of several figures, one after the other; `tell` hears after every row."""

    tell: Callable[[Progress], None]
    needed: set[Path] = field(default_factory=set)
    complete: bool = True
    _done: set[Path] = field(default_factory=set)
    _made: int = 0
    _seconds: float = 0.0

    def expect(self, make: MakeRows) -> None:
        """Add a figure's rows to the total."""
        asked, complete = counted(make)
        self.complete &= complete
        self.needed |= asked
        self._done = {path for path in self.needed if path.exists()}

    def rows(self, make: MakeRows) -> list[Row]:
        """What `make` gives, every row told of."""
        self._tell()
        with _keeping(self._keep):
            return make()

    def _keep(self, path: Path, make: Callable[[], Row]) -> Row:
        new, started = not path.exists(), time.perf_counter()
        with _keeping(rows.kept):
            found = rows.kept(path, make)
        if new:
            self._made, self._seconds = self._made + 1, self._seconds + time.perf_counter() - started
        if path not in self._done or new:
            self._done.add(path)
            self._tell()
        return found

    def _tell(self) -> None:
        self.tell(Progress(len(self._done), len(self.needed | self._done), self.complete, self._made, self._seconds))


@contextmanager
def _keeping(keeper: rows.Keeper) -> Iterator[None]:
    token = rows.keeper.set(keeper)
    try:
        yield
    finally:
        rows.keeper.reset(token)


@contextmanager
def shown(*, silent: bool) -> Iterator[Callable[[str, Progress], None]]:
    """One line on stderr that changes, on a terminal; nothing elsewhere, or where `silent`."""
    console = Console(stderr=True)
    console.quiet = silent or not console.is_terminal
    with progress_bar(console) as bar:
        task = bar.add_task("counting rows", total=None)

        def tell(figure: str, progress: Progress) -> None:
            bar.update(task, description=f"{figure}: {progress.words}", completed=progress.done, total=progress.total)

        yield tell
