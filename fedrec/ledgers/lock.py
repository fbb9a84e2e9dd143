"""Lock of a file in a state folder: one process at a time."""

from __future__ import annotations

import fcntl
import os
from functools import partial
from pathlib import Path
from typing import IO

from fedrec.errors import RunError


def locked(file: Path, in_use: str, remedy: str) -> IO[str]:
    """An open file that no other process can lock; closing it lets go, and so does the end of this
    process, however it ends.

    Raises RunError (`in_use`, `remedy`) where another process has it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = open(file, "a", opener=partial(os.open, mode=0o600))  # noqa: SIM115 - held for long
    except OSError as failure:
        raise RunError(
            f"{file.parent} cannot be used: {failure.strerror}",
            "Give a folder that this process may write to.",
        ) from None
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        found.close()
        raise RunError(in_use, remedy) from None
    return found
