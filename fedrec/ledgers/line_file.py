"""Ledger in a file of JSON lines, each with the head of the chain up to it, and a head file beside.

A last line without its end was cut off by a crash while it was written: nothing left for it, and it
is dropped.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedrec.errors import RunError
from fedrec.ledgers.chain import ChainEntry, EntryType, HeadFile

E = TypeVar("E", bound=ChainEntry)


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
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise RunError(in_use, remedy) from None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
