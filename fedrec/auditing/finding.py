"""Findings of attacks: the epsilon that was promised beside the one that the attack proves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedrec.privacy.guarantee import Guarantee
from fedrec.storage import finite

By = Literal["region", "gaussian", "laplace", "moments", "exact", "support", "none"]
"""How a bound was reached, see `bounds`; "none": the attack proves no epsilon."""
Verdict = Literal["holds", "EXCEEDED", "REFUTED", "no claim"]

_ROUNDING = 1e-9  # relative; what a calibrated plan may be off by in its last bits


@dataclass(frozen=True)
class Effort:
    """How often mechanisms run, how many users are attacked, how often one of them uploads."""

    draws: int = 40_000
    users: int = 100
    uploads: int = 20


@dataclass(frozen=True)
class Recovery:
    """Share of private facts that the attack named, and what it names where it cannot know (see
    each attack)."""

    rate: float
    chance: float

    def __str__(self) -> str:
        return f"{self.rate:.0%} ({self.chance:.0%})"


@dataclass(frozen=True)
class Finding:
    """One attack on one variant.

    claim: what is promised against this very attack, with unit and neighbours. measured: epsilon at
    the claim's delta is at least this. confidence: of `measured`, 1 where nothing was drawn. draws:
    how often the mechanism ran. refuted: a step of the proof does not hold, whatever epsilon is.
    """

    attack: str
    variant: str
    claim: Guarantee
    measured: float
    by: By
    confidence: float
    draws: int = 0
    recovery: Recovery | None = None
    refuted: bool = False
    note: str = ""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """Of each block's noise: the standard deviation that was drawn over the planned one."""

    @property
    def verdict(self) -> Verdict:
        """Whether the claim survives."""
        if not self.claim.private:
            return "no claim"
        if self.refuted:
            return "REFUTED"
        return "EXCEEDED" if self.measured > self.claim.epsilon * (1 + _ROUNDING) else "holds"

    @property
    def failed(self) -> bool:
        """Whether the claim must not be made."""
        return self.verdict in {"EXCEEDED", "REFUTED"}

    @property
    def tightness(self) -> float:
        """Measured over claimed epsilon: near 1, the attack is as good as any can be.

        NaN without a claim or a bound."""
        return (
            self.measured / self.claim.epsilon
            if self.claim.private and self.by != "none"
            else math.nan
        )

    def row(self) -> Mapping[str, object]:
        """Return the finding as an object for JSON."""
        claim = self.claim
        content = {
            "attack": self.attack,
            "variant": self.variant,
            "claimed_epsilon": claim.epsilon,
            "delta": claim.delta,
            "unit": claim.unit,
            "neighbours": claim.neighbours,
            "established": claim.established,
            "measured_epsilon": self.measured,
            "by": self.by,
            "confidence": self.confidence,
            "draws": self.draws,
            "tightness": None if math.isnan(self.tightness) else self.tightness,
            "recovery": None if self.recovery is None else self.recovery.rate,
            "chance": None if self.recovery is None else self.recovery.chance,
            "verdict": self.verdict,
            "note": self.note,
            "noise_drawn_over_planned": dict(self.spreads),
        }
        return dict(finite(content))
