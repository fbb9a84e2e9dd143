"""Files that are read again when they change, or on a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

LOOK_S = 1.0
"""How often a party looks at its files."""
_Stamp = tuple[int, int, int] | None


class WatchedFiles:
    """Some files, and whether SIGHUP or a change asks for them to be read again.

    A file that is replaced by a rename counts as changed, one that vanishes too."""

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._paths = [Path(path) for path in paths if str(path)]
        self._stamps = self._now()
        self._asked = threading.Event()

    def due(self) -> bool:
        """Whether to read them again; each reason is told once."""
        stamps = self._now()
        due = self._asked.is_set() or stamps != self._stamps
        self._asked.clear()
        self._stamps = stamps
        return due

    def ask(self) -> None:
        """Make them due."""
        self._asked.set()

    @contextmanager
    def on_hangup(self) -> Iterator[None]:
        """SIGHUP asks for them in the body, besides what it did before; in the main thread only."""
        if threading.current_thread() is not threading.main_thread() or not hasattr(
            signal, "SIGHUP"
        ):
            yield
            return
        before = signal.getsignal(signal.SIGHUP)

        def handle(number: int, frame: FrameType | None) -> None:
            self.ask()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGHUP, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)

    def _now(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
