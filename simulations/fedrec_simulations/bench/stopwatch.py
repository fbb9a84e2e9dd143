"""Times that can be compared: forms take turns, and each keeps its least disturbed turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

_PAUSE_S = 0.02  # OpenMP threads of the form before spin for a while, on our cores
MOST_SECONDS = 6.0
"""A form that has used this much takes no further turn: on a busy machine threaded peers can be a
hundred times slower."""


def best_ms(forms: Mapping[str, Callable[[], object]], *, turns: int) -> dict[str, float]:
    """Milliseconds of each form's fastest turn, after one untimed call of each; turns alternate, so
    a busy minute hits all."""
    for call in forms.values():
        call()
    best, used = dict.fromkeys(forms, float("inf")), dict.fromkeys(forms, 0.0)
    for _ in range(turns):
        for name, call in forms.items():
            if used[name] > MOST_SECONDS:
                continue
            time.sleep(_PAUSE_S)
            start = time.perf_counter()
            call()
            took = time.perf_counter() - start
            best[name], used[name] = min(best[name], took * 1e3), used[name] + took
    return best
