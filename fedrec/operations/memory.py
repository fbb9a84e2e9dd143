"""Large blocks back to the system as soon as they are freed: models that were replaced, scores of a
batch, a message that was answered.

glibc raises the size from which it does so to the largest block that was freed, up to 32 MiB, and
keeps what is smaller, for every thread that held some: after a few swaps and batches a server held
20 MB and several models more than it used.
"""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
"""Of glibc's malloc.h."""
_LARGE_BYTES = 2**20
_ARENAS = 2


def keep_little() -> None:
    """Makes this process keep little freed memory; where the C library is not glibc, nothing
    happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_ARENA_MAX, _ARENAS)
