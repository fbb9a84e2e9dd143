"""What a long benchmark shows on stderr while it runs: rows done of all that it needs, and about
how long the rest takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from fedrec.run.console import progress_bar


@dataclass(frozen=True)
class Progress:
    """Rows done of all that are needed. `name`: the figure, or the last row.

    left_s: nan where nothing is known, or left. complete: every row could be counted; where not,
    there are at least `total`.
    """

    name: str
    done: int
    total: int
    left_s: float = math.nan
    complete: bool = True

    @property
    def words(self) -> str:
        """ "figure1: 12 of 54 rows, about 1 h 20 min left"."""
        said = (
            f"{self.name}: {self.done} of {'' if self.complete else 'at least '}{self.total} rows"
        )
        return (
            said
            if math.isnan(self.left_s)
            else f"{said}, {'about' if self.complete else 'at least'} {_duration(self.left_s)} left"
        )


Tell = Callable[[Progress], None]
"""Told after every row."""


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(round(seconds), 1)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Pace:
    """How long the rest takes, from how long rows of the same kind took; of a kind that was not
    made yet, as long as the others."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, list[float]](list)

    def note(self, kind: str, seconds: float) -> None:
        """A row was made in so many seconds."""
        self._seconds[kind].append(seconds)

    def left_s(self, kinds: Iterable[str], jobs: int) -> float:
        """Seconds for rows of these kinds, `jobs` at a time; nan without rows to go by, or to
        make."""
        means, missing = (
            {kind: sum(each) / len(each) for kind, each in self._seconds.items()},
            list(kinds),
        )
        if not means or not missing:
            return math.nan
        usual = sum(means.values()) / len(means)
        return sum(means.get(kind, usual) for kind in missing) / jobs


@contextmanager
def shown(*, silent: bool) -> Iterator[Tell]:
    """On a terminal one line that changes; in a log one line a row; nothing where `silent`."""
    console = Console(stderr=True, quiet=silent)
    with progress_bar(console) as progress:
        bar = progress.add_task("counting rows", total=None)

        def tell(now: Progress) -> None:
            if not console.is_terminal and now.words != progress.tasks[bar].description:
                console.print(now.words, soft_wrap=True, highlight=False)
            progress.update(bar, description=now.words, total=now.total, completed=now.done)

        yield tell
