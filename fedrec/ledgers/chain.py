"""Chain of entries, each closed by a SHA-256 over all before it, so that none can be changed or
dropped unseen; and the file beside a ledger that remembers its newest head.

The chain holds no secret: who can write the whole ledger can make it again. What goes back in time
is noticed by who keeps a head (`HeadFile`, and other parties).

Ledger in a file of JSON lines, each with the head of the chain up to it, and a head file beside.

A last line without its end was cut off by a crash while it was written: nothing left for it, and it
is dropped.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fedrec.errors import RunError
from fedrec.storage import lock, read_json, write_json, writing


class ChainEntry(Protocol):
    """One entry in its place."""

    @property
    def number(self) -> int:
        """From 1 on."""

    @property
    def head(self) -> str:
        """Hash of all entries so far."""


E = TypeVar("E", bound=ChainEntry)


@dataclass(frozen=True)
class EntryType(Generic[E]):
    """What one sort of ledger holds. begins: the head before the first entry; head: of the head
    before and what is stored of an entry; read: the entry, from its place, what is stored of it and
    its head; remedy: what helps where a ledger is damaged."""

    begins: str
    head: Callable[[str, Any], str]
    read: Callable[[int, Any, str], E]
    remedy: str = "Put back the ledger as it was; do not begin a new one."

    def end(self, entries: Sequence[E]) -> str:
        """The newest head."""
        return entries[-1].head if entries else self.begins

    def after(self, entries: Sequence[E], stored: Any) -> E:
        """The entry that follows these."""
        return self.read(len(entries) + 1, stored, self.head(self.end(entries), stored))

    def heads(self, entries: Sequence[E]) -> list[str]:
        """Every head that the ledger had, oldest first, its beginning included."""
        return [self.begins, *(entry.head for entry in entries)]

    def verified(self, rows: Iterable[tuple[Any, str]], where: object) -> list[E]:
        """The entries of a ledger, from what is stored of each and the head beside it.

        where: for messages. Raises RunError at the first that does not follow from those before it,
        or that cannot be read though it does: a newer version may have written it."""
        found = list[E]()
        head = self.begins
        for number, (stored, claimed) in enumerate(rows, start=1):
            try:
                head = self.head(head, stored)
            except (TypeError, ValueError, AttributeError):
                head = ""
            if not head or head != claimed:
                raise self._broken(where, number)
            try:
                entry = self.read(number, stored, head)
            except (KeyError, TypeError, ValueError, AttributeError) as failure:
                raise RunError(
                    f"{where} has an entry, {number}, that this version cannot read",
                    "Use the version that wrote it; do not begin a new ledger.",
                ) from failure
            if entry.number != number:
                raise self._broken(where, number)
            found.append(entry)
        return found

    def _broken(self, where: object, number: int) -> RunError:
        words = f"{where} is damaged: entry {number} does not follow from those before it"
        return RunError(words, self.remedy)


def genesis(name: str) -> str:
    """The head before the first entry of a ledger of this name."""
    return hashlib.sha256(name.encode()).hexdigest()


def head_after(head: str, *content: Any) -> str:
    """The head before, and all that an entry says; floats and bytes exactly, in hexadecimal."""
    return hashlib.sha256(
        json.dumps([head, *map(_exact, content)], sort_keys=True).encode()
    ).hexdigest()


def _exact(value: Any) -> Any:
    return value.hex() if isinstance(value, float | bytes) else value


class HeadFile:
    """`ledger.head.json` beside `ledger.sqlite`, and a second one elsewhere. may_lack: whether an
    earlier version wrote ledgers of this sort without one. seen: the second; it may be lacking.

    What is noticed of going back in time: a ledger older than a head file, or without the one
    beside it, by a single entry too. What is not: all of them, or the disk, put back to an earlier
    state together. So a backup of a folder without a second file is there to be read, not to be
    restored.
    """

    def __init__(self, ledger: Path, *, may_lack: bool = False, seen: Path | None = None) -> None:
        self.ledger = ledger
        self.path = ledger.with_suffix(".head.json")
        self._paths = {self.path: may_lack} | ({} if seen is None else {seen: True})

    def write(self, number: int, head: str) -> None:
        """After `number` entries the chain ends in `head`.

        Raises RunError where that cannot be written."""
        for path in self._paths:
            with writing(path, "Free space or correct permissions."):
                write_json(path, {"number": number, "head": head})

    def agree(self, heads: Sequence[str]) -> None:
        """heads: of the ledger, oldest first, its beginning included.

        A file may be behind, after a crash; the ledger may not. Raises RunError where it is."""
        behind = False
        for path, may_lack in self._paths.items():
            there = path.exists()
            begun = heads[0] if len(heads) == 1 or may_lack else None
            kept = read_json(path).get("head") if there else begun
            if kept not in heads:
                raise RunError(
                    f"{self.ledger} is older than {path} says, or one of the two was replaced",
                    "Put back the newest pair. If it is lost, what was spent is not known: begin a "
                    "new state folder only with other users.",
                )
            behind = behind or not there or kept != heads[-1]
        if behind:
            self.write(len(heads) - 1, heads[-1])

    def require_ledger(self) -> None:
        """Raises RunError where the ledger is gone that a file knows of."""
        if any(path.exists() for path in self._paths) and not self.ledger.exists():
            raise RunError(
                f"{self.ledger} is gone, but its head file knows of it",
                "Put it back: without it, what was spent is not known.",
            )


class LineFile(Generic[E]):
    """An open file of entries, locked until it is closed. A line is a list that ends in its head,
    or an object that has one.

    wait: for another process that has it; without it, RunError. mode: of a new file. Raises OSError
    where it cannot be opened, RunError where it is damaged or older than it was.
    """

    def __init__(
        self,
        path: Path,
        kind: EntryType[E],
        *,
        head_file: HeadFile,
        wait: bool = False,
        mode: int = 0o600,
    ) -> None:
        self._kind = kind
        self._head_file = head_file
        head_file.require_ledger()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
        self.close = weakref.finalize(self, os.close, self._file)
        """Let another process open it."""
        try:
            self._lock(path, wait)
            content = path.read_bytes()
            self._end = content.rfind(b"\n") + 1
            self._drop_rest()
            self.entries = kind.verified(_rows(content[: self._end]), path)
            head_file.agree(kind.heads(self.entries))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LineFile[E]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, content: list[Any] | dict[str, Any]) -> E:
        """The entry with this content, durable. Raises OSError where it cannot be written."""
        entry = self._kind.after(self.entries, content)
        whole = (
            {**content, "head": entry.head} if isinstance(content, dict) else [*content, entry.head]
        )
        line = f"{json.dumps(whole, sort_keys=True)}\n".encode()
        self._drop_rest()
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, "no space is left")
        os.fsync(self._file)
        self._end += len(line)
        self.entries.append(entry)  # spent from here on, whatever happens next
        self._head_file.write(entry.number, entry.head)
        return entry

    def _lock(self, path: Path, wait: bool) -> None:
        try:
            # two processes that append would break the chain
            lock(self._file, wait=wait)
        except BlockingIOError:
            raise RunError(f"{path} is in use by another process", "End that one first.") from None

    def _drop_rest(self) -> None:
        """What a crash or a full disk left behind the last whole line."""
        if os.fstat(self._file).st_size > self._end:
            os.ftruncate(self._file, self._end)


def _rows(content: bytes) -> Iterator[tuple[Any, str]]:
    """What each line says, and its head; what is no such line has no head that fits."""
    for line in content.splitlines():
        try:
            whole = json.loads(line)
            head = whole.pop("head") if isinstance(whole, dict) else whole.pop()
        except (ValueError, KeyError, IndexError, AttributeError):
            whole = None
            head = ""
        yield whole, head
