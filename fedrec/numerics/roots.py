"""Root of a continuous function between two points of other signs: Brent 1973, ch. 4.

Step by step that of `scipy.optimize.brentq`, to the last bit, as a test says: small processes price
releases, and SciPy's optimisers would be most of what they load.
"""

from __future__ import annotations

from collections.abc import Callable

_MOST_STEPS = 100
"""Bisection alone takes 60 at the smallest tolerance."""


def root(
    function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float
) -> float:
    """Where the function is zero, up to xtol + rtol |x|. Raises ValueError where both ends have one
    sign, or where it does not converge."""
    before = low
    now = high
    f_before = function(before)
    f_now = function(now)
    if f_before == 0.0 or f_now == 0.0:
        return before if f_before == 0.0 else now
    if (f_before > 0) == (f_now > 0):
        raise ValueError(f"no change of sign between {low!r} and {high!r}")
    other = f_other = step_before = step = 0.0  # `other`: the far end of the bracket
    for _ in range(_MOST_STEPS):
        if f_before != 0.0 and f_now != 0.0 and (f_before > 0) != (f_now > 0):
            other = before
            f_other = f_before
            step_before = step = now - before
        if abs(f_other) < abs(f_now):
            before, now, other = now, other, now
            f_before, f_now, f_other = f_now, f_other, f_now
        delta = (xtol + rtol * abs(now)) / 2
        half = (other - now) / 2
        if f_now == 0.0 or abs(half) < delta:
            return now
        tried = None
        if abs(step_before) > delta and abs(f_now) < abs(f_before):
            if before == other:  # by the secant
                tried = -f_now * (now - before) / (f_now - f_before)
            else:  # by the inverse parabola
                a = (f_before - f_now) / (before - now)
                b = (f_other - f_now) / (other - now)
                tried = -f_now * (f_other * b - f_before * a) / (b * a * (f_other - f_before))
        if tried is not None and 2 * abs(tried) < min(abs(step_before), 3 * abs(half) - delta):
            step_before = step
            step = tried
        else:
            step_before = step = half
        before = now
        f_before = f_now
        now += step if abs(step) > delta else (delta if half > 0 else -delta)
        f_now = function(now)
    raise ValueError(f"no root after {_MOST_STEPS} steps between {low!r} and {high!r}")
