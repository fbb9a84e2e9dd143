"""Times that can be compared: forms take turns, and each keeps its least disturbed turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


def best_ms(forms: Mapping[str, Callable[[], object]], *, turns: int) -> dict[str, float]:
    """Milliseconds of each form's fastest turn, after one untimed call of each; turns alternate, so a busy minute hits all."""
    for call in forms.values():
        call()
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(turns):
        for name, call in forms.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best
