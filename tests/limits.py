"""Limits of memory and of time of what a test runs in its own process."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_S = 20
"""Of one reader on a busy machine: ten to the nine steps of Python take a minute or more, and what
waits for a pipe or reads a device never ends."""


@contextmanager
def limited(most_bytes: int) -> Iterator[None]:
    """Memory beyond what is there, and LONGEST_S."""

    def over(*_: object) -> None:
        raise AssertionError("it has not ended")

    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + most_bytes, before[1]))
    signal.signal(signal.SIGALRM, over)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, before)
