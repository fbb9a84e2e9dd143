"""Lock of a ledger's folder: one process at a time."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from fedrec.errors import RunError
from fedrec.storage import lock


class FileLock:
    """A file that no other process can lock; a context. It is let go when it is closed, and when
    this process ends, however it ends.

    Raises RunError (`in_use`, `remedy`) where another process has it, and where its folder cannot
    be used."""

    def __init__(self, path: Path, in_use: str, remedy: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as failure:
            raise RunError(
                f"{path.parent} cannot be used: {failure.strerror}",
                "Give a folder that this process may write to.",
            ) from None
        self.close = weakref.finalize(self, os.close, file)
        """Let another process have it. Again is nothing."""
        try:
            # at once: whoever started a second process is told, and need not wait for the first
            lock(file)
        except OSError:
            self.close()
            raise RunError(in_use, remedy) from None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
