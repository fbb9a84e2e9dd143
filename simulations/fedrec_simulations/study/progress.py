"""What a study shows on stderr while it runs: rows done, the last one's name, and about how long the rest takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from fedrec_simulations.simulate import progress_bar
from fedrec_simulations.study.measure import Tell


@contextmanager
def shown(*, silent: bool) -> Iterator[Tell]:
    """On a terminal one line that changes; in a log one line a row; nothing where `silent`."""
    console = Console(stderr=True, quiet=silent)
    with progress_bar(console) as progress:
        bar = progress.add_task("the first row", total=None)

        def tell(done: int, total: int, name: str, left_s: float) -> None:
            words = in_words(done, total, name, left_s)
            progress.update(bar, description=words, total=total, completed=done)
            if not console.is_terminal:
                console.print(words, soft_wrap=True)

        yield tell


def in_words(done: int, total: int, name: str, left_s: float) -> str:
    """ "12 of 540 rows, about 1 h 20 min left; last: default, epsilon 5, seed 2"."""
    minutes = math.ceil(left_s / 60)
    left = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{done} of {total} rows, about {left} left; last: {name}"
