"""Processes that can open nothing more."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def first_free(pid: int) -> int:
    """The lowest number that another process could open next."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return min(set(range(len(taken) + 1)) - taken)


@contextmanager
def none_left() -> Iterator[None]:
    """This process has no free descriptor in the body."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
