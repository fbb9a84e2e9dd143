"""The papers' own conversions, on request and for reproduction: what they promise, and what is true
of it.

AM-SSP Thm 2 takes sigma = w_bar sqrt(8 log(1/delta)) / epsilon. It needs epsilon < log(1/delta),
and covers ONE item update: S outer steps spend sqrt(S) times as much. The resulting plan says "not
established" and what exact accounting gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from fedrec.privacy.accounting import epsilon_of
from fedrec.privacy.calibration import Plan, PlannedRelease
from fedrec.privacy.guarantee import Guarantee


def am_ssp_plan(guarantee: Guarantee, shares: Mapping[str, float], *, steps: int) -> Plan:
    """The plan of AM-SSP Thm 2 to the letter: every outer step's pair (A, b) gets the whole nominal
    epsilon.

    A pair with sigma / w_bar = s is two releases of mu = 1 / s, so a step has mu^2 = epsilon^2 / (4
    log(1/delta)) and the run `steps` times that. `shares` divide it as in `calibrate`. Raises
    ValueError for an infinite epsilon: nothing to convert.
    """
    if not guarantee.private:
        raise ValueError("no privacy needs no conversion")
    mu = math.sqrt(steps / (4 * math.log(1 / guarantee.delta))) * guarantee.epsilon
    true = epsilon_of(mu, guarantee.delta)
    note = (
        f"the paper's Theorem 2 covers one of {steps} item updates; exact accounting of all "
        f"releases gives epsilon {true:.4g}"
    )
    total = math.fsum(shares.values())
    releases = tuple(
        PlannedRelease(name, part / total, mu * math.sqrt(part / total))
        for name, part in shares.items()
    )
    note = "; ".join(filter(None, (guarantee.note, note)))
    return Plan(replace(guarantee, established=False, note=note), releases)
