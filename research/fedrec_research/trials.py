"""Trials and their rows: each row is made once, in this process or in several, and kept by what was
asked for and by the commit of the code, so that a long measurement may be stopped and goes on."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from fedrec.errors import SettingsError
from fedrec.run.code_version import code_version
from fedrec.run.progress import progress_bar
from fedrec.storage import finite, read_json, write_json
from fedrec_research.workers import first_done, workers

K = TypeVar("K")
Row = dict[str, Any]
Tell = Callable[[int, int, float], None]
"""Told of rows done and asked for, and of the seconds that the rest takes."""
ROWS = Path("runs/research")
"""Where rows are kept, unless told."""


@dataclass(frozen=True)
class Trial:
    """A row to make: an importable function, and arguments whose repr says all that they are."""

    make: Callable[..., Row]
    arguments: tuple[Any, ...]

    @property
    def key(self) -> str:
        """Letters of what is asked for, and of the code that is asked."""
        said = f"{code()} {self.make.__module__}.{self.make.__qualname__} {self.arguments!r}"
        return f"{self.make.__name__}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def trial(make: Callable[..., Row], *arguments: Any) -> Trial:
    """The row `make(*arguments)`, of JSON's types."""
    return Trial(make, arguments)


@cache
def code() -> str:
    """Version and commit of the code; where files were changed since, with letters of the
    change."""
    said = code_version()
    words = " ".join(word for word in said.values() if word)
    if not words.endswith("-dirty"):
        return words
    here = ["git", "-C", str(Path(__file__).parent)]
    changed = subprocess.run([*here, "diff", "HEAD"], capture_output=True, check=True).stdout
    return f"{words}-{hashlib.sha256(changed).hexdigest()[:8]}"


def silent(done: int, total: int, left_s: float) -> None:
    """Tells nobody."""


def rows_of(
    trials: Mapping[K, Trial], *, folder: Path = ROWS, jobs: int = 1, tell: Tell = silent
) -> dict[K, Row]:
    """Rows by the keys of their trials; those that `folder` holds are not made again.

    jobs: rows at a time, in processes where there are more than one. A row that says why it was
    `refused` is not kept. Raises what a trial raises.
    """
    asked = {one.key: one for one in trials.values()}
    paths = {key: folder / f"{key}.json" for key in asked}
    rows = {key: read_json(path)["row"] for key, path in paths.items() if path.exists()}
    missing = [one for key, one in asked.items() if key not in rows]
    started = time.perf_counter()
    for done, (one, row) in enumerate(_made(missing, jobs), 1):
        rows[one.key] = dict(finite(row))
        if "refused" not in row:
            said = f"{one.make.__name__}{one.arguments!r}"
            write_json(paths[one.key], {"asked": said, "code": code(), "row": row})
            rows[one.key] = read_json(paths[one.key])["row"]  # in the order that it is read in
        pace = (time.perf_counter() - started) / done
        tell(len(rows), len(asked), pace * (len(missing) - done))
    return {key: rows[one.key] for key, one in trials.items()}


def _made(trials: list[Trial], jobs: int) -> Iterator[tuple[Trial, Row]]:
    if jobs == 1:
        yield from ((one, one.make(*one.arguments)) for one in trials)
        return
    with workers(jobs) as pool:
        running = {pool.submit(one.make, *one.arguments): one for one in trials}
        while running:
            for future in first_done(running):
                yield running.pop(future), future.result()


@dataclass(frozen=True)
class Asked:
    """What a measurement is asked for: data, how much of it, how, and who is told.

    users, items, epsilons: of a grid. only: names of lines. overrides: `table.key=value`."""

    data: tuple[str, ...] = ()
    quick: bool = False
    jobs: int = 1
    seeds: int = 0
    users: tuple[int, ...] = ()
    items: tuple[int, ...] = ()
    epsilons: tuple[float, ...] = ()
    only: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    folder: Path = ROWS
    tell: Tell = silent

    @property
    def path(self) -> str:
        """The one data folder, or "planted". Raises SettingsError without it."""
        if len(self.data) != 1:
            raise SettingsError(
                f"one data folder is needed, found {len(self.data)}", "Give --data PATH/ml-1m."
            )
        return self.data[0]

    def seeds_of(self, usual: Sequence[int]) -> tuple[int, ...]:
        """1 to `seeds` where it is given, or the usual ones; of a small part the first."""
        every = range(1, self.seeds + 1) if self.seeds else usual
        return tuple(every[:1] if self.quick else every)

    def rows(self, trials: Mapping[K, Trial]) -> dict[K, Row]:
        """By the keys of their trials."""
        return rows_of(trials, folder=self.folder, jobs=self.jobs, tell=self.tell)

    def by_seed(
        self, asked: Mapping[K, tuple[Any, ...]], seeds: Sequence[int]
    ) -> dict[K, list[Row]]:
        """Rows of (function, arguments...) for every seed, by the same keys; seeds outermost, so
        that what is stopped has all lines of the first."""
        rows = self.rows(
            {(key, seed): trial(*of, seed) for seed in seeds for key, of in asked.items()}
        )
        return {key: [rows[key, seed] for seed in seeds] for key in asked}


@contextmanager
def shown(*, silent: bool) -> Iterator[Tell]:
    """On a terminal one line that changes; in a log one line a row; nothing where `silent`."""
    console = Console(stderr=True, quiet=silent)
    with progress_bar(console) as progress:
        bar = progress.add_task("counting rows", total=None)

        def tell(done: int, total: int, left_s: float) -> None:
            words = f"{done} of {total} rows, about {_duration(left_s)} left"
            if not console.is_terminal:
                console.print(words, soft_wrap=True, highlight=False)
            progress.update(bar, description=words, total=total, completed=done)

        yield tell


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def paragraph(doc: str | None) -> str:
    """The second paragraph of a module's text: its protocol, for a result."""
    return " ".join((doc or "").split("\n\n")[1].split())


def merged(*parts: Mapping[str, Any]) -> Row:
    """Nested tables of a scenario laid over each other."""
    result: Row = {}
    for part in parts:
        for key, value in part.items():
            inner = isinstance(value, Mapping)
            result[key] = merged(result.get(key, {}), value) if inner else value
    return result
