"""Verdicts from paired differences: held where the 95% interval is above zero at every point, in
part where at some, did not hold where at none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedrec.evaluation.intervals import Interval

Outcome = Literal["held", "in part", "did not hold", "not tested"]
OUTCOMES: tuple[Outcome, ...] = ("held", "in part", "did not hold", "not tested")


@dataclass(frozen=True)
class Verdict:
    """What the rows say, with the figures it rests on; or why they say nothing."""

    outcome: Outcome
    found: str


@dataclass(frozen=True)
class Point:
    """A difference at one place of one study, or of one reading of the claim; above zero where the
    claim says it is."""

    study: str
    at: float | str
    gain: Interval


def judged(points: Sequence[Point], axis: str = "ε") -> Verdict:
    """With words for every study or reading; "not tested" where there are no points."""
    if not points:
        return Verdict("not tested", "")
    won = sum(point.gain.above for point in points)
    outcome = of_counts(won, len(points))
    names = dict.fromkeys(point.study for point in points)
    return Verdict(
        outcome,
        "; ".join(
            f"{name}: {_words([p for p in points if p.study == name], axis)}" for name in names
        ),
    )


def of_counts(won: int, of: int) -> Outcome:
    """All, some or none."""
    return "held" if won == of else "in part" if won else "did not hold"


def _words(points: Sequence[Point], axis: str) -> str:
    """ "ahead at ε 1,5 (≥0.0031±0.0011), level at 0.5": the least lead, or the largest lag."""
    verdicts = (
        ("ahead", "≥", [p for p in points if p.gain.above]),
        ("behind", "≤", [p for p in points if p.gain.below]),
        ("level", "", [p for p in points if not (p.gain.above or p.gain.below)]),
    )
    said = []
    for words, bound, chosen in verdicts:
        if chosen:
            near = min(chosen, key=lambda p: p.gain.mean)
            by = f" ({bound}{margin(near.gain)})" if bound else ""
            places = dict.fromkeys(_at(p.at) for p in chosen)
            said.append(f"{words} at {axis} {','.join(places)}{by}")
    return ", ".join(said)


def _at(place: float | str) -> str:
    return f"{place:g}" if isinstance(place, int | float) else place


def margin(gain: Interval) -> str:
    """0.0031±0.0011, without its sign."""
    half = f"±{gain.half:.4f}" if math.isfinite(gain.half) else ""
    return f"{abs(gain.mean):.4f}{half}"
