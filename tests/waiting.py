"""Waiting in tests: for an event, however busy the machine is.

A guard ends only what hangs; no test passes or fails by it otherwise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

HANG_S = float(os.environ.get("FEDREC_HANG_S", "600"))
"""Longer than anything that a test waits for takes on a machine that does other work besides; for a
planted bug shorter than its time limit, so that what never comes is said."""


def until(
    condition: Callable[[], object], what: str = "what the test waits for", *, pause_s: float = 0.01
) -> None:
    """Return once the condition holds; fail in words where it never comes."""
    end_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(pause_s)


def with_more_time(attempt: Callable[[float], None], *deadlines_s: float) -> None:
    """For claims about a deadline of a real process: `attempt(deadline_s)` with each in turn, until
    one holds.

    On a busy machine the honest party, too, may miss a short deadline. What is false fails at the
    longest, and its failure is raised.
    """
    *short, longest = deadlines_s
    for deadline_s in short:
        try:
            attempt(deadline_s)
        except Exception:  # whatever a missed deadline breaks; the longest says whether it was that
            continue
        return
    attempt(longest)
