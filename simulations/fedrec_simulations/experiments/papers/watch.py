"""Rows of figures: listed before one is made, made one at a time or in processes, and told of with the time that is left.

A figure's own code lists what it needs: it is run with a `Blank` in the place of every row that is not there yet. A row inside another (the
model that a training is compared with) is part of that one. Where the arguments of a row hold something of a blank one it waits for that.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.errors import FedRecError
from fedrec.storage import read_json
from fedrec_simulations.experiments import rows
from fedrec_simulations.experiments.progress import Pace, Progress, Tell
from fedrec_simulations.experiments.rows import Row, first_done, workers

MakeRows = Callable[[], list[Row]]
Asked = Mapping[Path, "partial[Row]"]
"""By file, how a row is made."""


class Blank(float):
    """A row, or anything in it, that is not there yet: nan to arithmetic, empty to loops, and every key of it is blank.

    As a mapping it has one key, so that a copy is blank too. It decides nothing, and goes to no other process: both raise TypeError.
    """

    def __new__(cls) -> Blank:
        """nan."""
        return super().__new__(cls, math.nan)

    def __getitem__(self, key: object) -> Blank:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def keys(self) -> tuple[str, ...]:
        """Of a mapping with something unknown in it."""
        return ("not there yet",)

    def items(self) -> tuple[tuple[str, Any], ...]:
        """None to go over."""
        return ()

    values = items

    def _refuse(self, *_: object) -> Any:
        raise TypeError("a row that is not there yet decides nothing")

    def _blank(self, *_: object) -> Blank:
        return self

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __reduce_ex__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _blank


def asked_by(make: MakeRows) -> tuple[Asked, bool]:
    """Rows that `make` asks for, and whether these are all: not where its code needs the content of one that is missing to go on."""
    asked = dict[Path, "partial[Row]"]()

    def ask(path: Path, row: partial[Row]) -> Any:
        asked[path] = row
        return dict(read_json(path)) if path.exists() else Blank()

    with _keeping(ask):
        try:
            make()
        except (FedRecError, TypeError, ValueError, LookupError, AttributeError):
            return asked, False  # a blank was not enough; what is really wrong will be said again when the rows are made
    return asked, True


def ready(asked: Asked) -> Asked:
    """Those that are missing, that wait for no other, and that another process can make."""
    return {path: row for path, row in asked.items() if not path.exists() and _can_go(row)}


def _can_go(row: partial[Row]) -> bool:
    try:
        pickle.dumps(row)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
    return True


class Watch:
    """Counts, makes and times the rows of several figures; `tell` hears after every row."""

    def __init__(self, figures: Mapping[str, MakeRows], tell: Tell) -> None:
        self._figures, self._tell_of, self._pace, self._jobs = figures, tell, Pace(), 1
        self._kinds, self._complete = dict[Path, str](), dict[str, bool]()
        for name in figures:
            self._ask(name)
        self._done = {path for path in self._kinds if path.exists()}

    def make_ahead(self, figures: Sequence[str], jobs: int) -> None:
        """Make what these figures need, so many rows at a time, in processes; `rows` makes what is missing then."""
        with workers(jobs) as pool:
            self._jobs, given, running = jobs, set[Path](), dict[Future[float], tuple[str, Path]]()
            while True:
                for name in figures if len(running) < jobs else ():  # with every row others may have become ready
                    for path, row in ready(self._ask(name)).items():
                        if path not in given:
                            given.add(path)
                            running[pool.submit(_timed, path, row)] = name, path
                if not running:
                    break
                for future in first_done(running):
                    name, path = running.pop(future)
                    self._note(name, path, future.result())
        self._jobs = 1

    def rows(self, figure: str) -> list[Row]:
        """All of the figure's, every row that is new told of."""
        self._say(figure)
        with _keeping(partial(self._keep, figure)):
            return self._figures[figure]()

    def _ask(self, figure: str) -> Asked:
        asked, self._complete[figure] = asked_by(self._figures[figure])
        self._kinds |= {path: row.func.__name__ for path, row in asked.items()}
        return asked

    def _keep(self, figure: str, path: Path, row: partial[Row]) -> Row:
        self._kinds[path] = row.func.__name__
        seconds = None if path.exists() else _timed(path, row)
        if path not in self._done or seconds is not None:
            self._note(figure, path, seconds)
        return dict(read_json(path))

    def _note(self, figure: str, path: Path, seconds: float | None = None) -> None:
        if seconds is not None:
            self._pace.note(self._kinds[path], seconds)
        self._done.add(path)
        self._say(figure)

    def _say(self, figure: str) -> None:
        left_s = self._pace.left_s((kind for path, kind in self._kinds.items() if path not in self._done), self._jobs)
        self._tell_of(Progress(figure, len(self._done), len(self._kinds), left_s, all(self._complete.values())))


def _timed(path: Path, row: partial[Row]) -> float:
    """Seconds of making it, and what it asks for inside."""
    started = time.perf_counter()
    with _keeping(rows.kept):
        rows.kept(path, row)
    return time.perf_counter() - started


@contextmanager
def _keeping(keeper: rows.Keeper) -> Iterator[None]:
    token = rows.keeper.set(keeper)
    try:
        yield
    finally:
        rows.keeper.reset(token)
