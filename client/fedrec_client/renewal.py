"""A site's data as it is now: read again when a new run begins, where its files have changed since
they were read.

A run keeps what it began with as long as the process lives; people who joined, left or rated since
are those of the next run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from fedrec.errors import RunError
from fedrec.operations import logs

log = logging.getLogger(__name__)

Users = TypeVar("Users")


class Renewal(Generic[Users]):
    """Reads `path` by `read`, and again where it changed."""

    def __init__(self, path: Path, read: Callable[[], Users]) -> None:
        self._path = path
        self._read = read
        self._stamp = _stamp(path)

    def __call__(self) -> Users | None:
        """The users where the files have changed, None where they have not.

        Raises RunError, whose words hold nothing of the data, where they cannot be read: the server
        hears that the client failed.
        """
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return None
        try:
            users = self._read()
        except Exception as failure:  # a reader's words quote rows
            cause = "this client's data cannot be read any more"
            remedy = "Correct the files: fedrec doctor says what is wrong."
            logs.say(
                log,
                "data-unreadable",
                level=logging.ERROR,
                error=type(failure).__name__,
                cause=cause,
                remedy=remedy,
            )
            raise RunError(cause, remedy) from None
        self._stamp = stamp
        return users


def _stamp(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Name, inode, size and time of every file."""
    files = (
        sorted(p for p in path.rglob("*") if p.is_file())
        if path.is_dir()
        else [path]
        if path.exists()
        else []
    )
    found = [(str(file), os.stat(file)) for file in files]
    return tuple((name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in found)
