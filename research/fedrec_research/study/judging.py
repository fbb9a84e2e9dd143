"""Verdicts from paired differences: held where the 95% interval is above zero at every point, in
part where at some, did not hold where at none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedrec.evaluation.intervals import Interval

Outcome = Literal["held", "in part", "did not hold", "withdrawn", "not measured"]
OUTCOMES: tuple[Outcome, ...] = ("held", "in part", "did not hold", "withdrawn", "not measured")


@dataclass(frozen=True)
class Verdict:
    """What the rows say, with the figures it rests on; or why they say nothing."""

    outcome: Outcome
    found: str


@dataclass(frozen=True)
class Point:
    """A difference at one epsilon of one study, or of one reading of the claim; above zero where
    the claim says it is."""

    study: str
    epsilon: float
    gain: Interval


def judged(points: Sequence[Point]) -> Verdict:
    """With words for every study or reading; "not measured" where there are no points."""
    if not points:
        return Verdict("not measured", "")
    won = sum(point.gain.above for point in points)
    outcome: Outcome = "held" if won == len(points) else "in part" if won else "did not hold"
    names = dict.fromkeys(point.study for point in points)
    return Verdict(
        outcome,
        # a sentence for each: in one they would be too long to read
        ". ".join(f"{name}: {_words([p for p in points if p.study == name])}" for name in names),
    )


def _words(points: Sequence[Point]) -> str:
    """ "ahead at ε = 1, 5 (by 0.0031 ± 0.0011 or more), not told apart at ε = 0.5"."""
    verdicts = (
        ("ahead", "or more", [p for p in points if p.gain.above]),
        ("behind", "or less", [p for p in points if p.gain.below]),
        ("not told apart", "", [p for p in points if not (p.gain.above or p.gain.below)]),
    )
    said = []
    for words, bound, chosen in verdicts:
        if chosen:
            near = min(chosen, key=lambda p: p.gain.mean)
            by = f" (by {margin(near.gain)} {bound})" if bound else ""
            said.append(
                f"{words} at ε = "
                f"{', '.join(f'{e:g}' for e in dict.fromkeys(p.epsilon for p in chosen))}{by}"
            )
    return ", ".join(said)


def margin(gain: Interval) -> str:
    """0.0031 ± 0.0011, without its sign."""
    half = f" ± {gain.half:.4f}" if math.isfinite(gain.half) else ""
    return f"{abs(gain.mean):.4f}{half}"
