"""Small file beside a ledger that remembers its newest head.

What is noticed of going back in time: a ledger older than the head file beside it, or without one.
What is not: the whole folder, or the disk, put back to an earlier state together. So a backup of
such a folder is there to be read, not to be restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrec.errors import RunError
from fedrec.storage import read_json, write_json, writing


class HeadFile:
    """`ledger.head.json` beside `ledger.sqlite`. may_lack: whether an earlier version wrote ledgers
    of this sort without one."""

    def __init__(self, ledger: Path, *, may_lack: bool = False) -> None:
        self.ledger = ledger
        self.path = ledger.with_suffix(".head.json")
        self._may_lack = may_lack

    def write(self, number: int, head: str) -> None:
        """After `number` entries the chain ends in `head`.

        Raises RunError where that cannot be written."""
        with writing(self.path, "Free space or correct permissions."):
            write_json(self.path, {"number": number, "head": head})

    def agree(self, heads: Sequence[str]) -> None:
        """heads: of the ledger, oldest first, its beginning included.

        The file may be behind, after a crash; the ledger may not. Raises RunError where it is."""
        there = self.path.exists()
        if there:
            kept = read_json(self.path).get("head")
        else:
            kept = heads[0] if len(heads) == 1 or self._may_lack else None
        if kept not in heads:
            raise RunError(
                f"{self.ledger} is older than {self.path.name} beside it, or one of the two was "
                "replaced",
                "Put back the newest pair. If it is lost, what was spent is not known: begin a new "
                "state folder only with other users.",
            )
        if kept != heads[-1] or not there:
            self.write(len(heads) - 1, heads[-1])

    def require_ledger(self) -> None:
        """Raises RunError where the ledger is gone that the file knows of."""
        if self.path.exists() and not self.ledger.exists():
            raise RunError(
                f"{self.ledger} is gone, but the file beside it knows of it",
                "Put it back: without it, what was spent is not known.",
            )
