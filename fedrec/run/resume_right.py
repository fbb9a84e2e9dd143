"""Right to go on with a training that was charged ahead: a file beside the budget's.

Aggregators draw each release once as long as they have their folder, so a stopped training goes on
without a second charge. A copy of its folder would draw the same releases with other noise. So the
right has a random name, which the training's folder keeps. Each start gives it another name, and
the end of the training removes it: of two copies the first goes on, the second is charged anew.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedrec.errors import RunError
from fedrec.storage import lock, read_json, write_json

KEPT = "charged.json"
"""Name of the right, in the folder of the training."""


@contextmanager
def charged_ahead(
    budget: Path, folder: Path, charge: Callable[[], None], *, resumable: bool
) -> Iterator[None]:
    """While the training in `folder` runs. `charge` is called first, unless the folder holds the
    right to what was charged before.

    resumable: whether the aggregators still know what they drew. Raises what `charge` raises, and
    RunError where the right cannot be written."""
    name = secrets.token_hex(16)
    right = _right(budget, name)
    file = _taken(budget, folder, right) if resumable else None
    if file is None:
        charge()
    try:
        # the charge first, then its right: a crash in between charges twice, never too little
        file = file or _held(right)
        write_json(folder / KEPT, {"right": name})
    except OSError as failure:
        raise RunError(
            f"{right} cannot be written: {failure.strerror or failure}",
            "Free space or correct permissions, then --resume.",
        ) from None
    with file:
        yield
    right.unlink(missing_ok=True)


def _taken(budget: Path, folder: Path, right: Path) -> IO[str] | None:
    """The right that the folder names, moved to `right`; None where another copy has it, runs with
    it or has finished."""
    try:
        name = str(read_json(folder / KEPT)["right"])
    except (RunError, TypeError, KeyError):
        return None
    before = _right(budget, name)
    file = None
    if not re.fullmatch("[0-9a-f]{32}", name) or not before.exists():
        return None
    try:
        file = _held(before)
        before.rename(right)  # fails where another process was faster
    except OSError:
        if file is not None:
            file.close()
        return None
    return file


def _held(path: Path) -> IO[str]:
    """Raises BlockingIOError while another process runs with it."""
    file = path.open("a", encoding="utf-8")
    try:
        lock(file.fileno())
    except BlockingIOError:
        file.close()
        raise
    return file


def _right(budget: Path, name: str) -> Path:
    return budget.with_name(f"{budget.stem}.{name}.paid")
