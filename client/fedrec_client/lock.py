"""Lock of a file in a state folder: one process at a time."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

from fedrec.errors import RunError


def locked(path: Path) -> Any:
    """An open file that no other process can lock; closing it lets go, and so does the end of this
    process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = open(path.with_suffix(".lock"), "a")  # noqa: SIM115 - held for as long as the ledger is
    except OSError as failure:
        raise RunError(
            f"{path.parent} cannot be used: {failure.strerror}",
            "Give a folder that this process may write to.",
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunError(
            f"{path} is in use by another process",
            "Stop the other client, or give this one its own state folder.",
        ) from None
    return file
