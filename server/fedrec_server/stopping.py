"""Termination of a server's process on request: SIGTERM, SIGINT or an event raise `Stopped` where
it works or sleeps.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class Stopped(SystemExit):
    """The process was told to end before the model was trained.

    Its exit code is 128 and the signal's number."""


@dataclass(frozen=True)
class Sleep:
    """Sleeps until the time is over or the process is told to end, which raises Stopped."""

    told: threading.Event

    def __call__(self, seconds: float) -> None:
        """Sleep. Raises Stopped."""
        if self.told.wait(seconds):
            raise Stopped(128 + signal.SIGTERM)


@contextmanager
def stopping_signals(told: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT raise Stopped in the body, once: what is being closed after the first is
    not disturbed by a second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if not told.is_set():
            told.set()
            raise Stopped(128 + number)

    both = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handle) for number in both]
    try:
        yield
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler)
