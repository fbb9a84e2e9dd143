"""Amplification by padding: each click is replaced by a public one with probability p, on the
device, before anything else.

Let a mechanism be (e0, d0)-DP for one click replaced by any other item, the public anonymous one
included. Preceded by padding with probability p, independently per click, it is (e, d)-DP with

    exp(e) = p + (1 - p) exp(e0),                d = (1 - p) d0;    inverted:
    e0 = log((exp(e) - p) / (1 - p)),            d0 = d / (1 - p)

Proof (advanced joint convexity, Balle, Barthe, Gaboardi 2018, Thm 2). Fix all other clicks and
their coins. Let N, P, Q be the output laws with the click padded, as it is, and exchanged; q = 1 -
p. To show: pN + qP <= e^e (pN + qQ) + q d0. Both P <= e^e0 Q + d0 and P <= e^e0 N + d0; mix them
with t = e^(e - e0) <= 1 and 1 - t. Then pN + qP is at most N (p + q (1 - t) e^e0) + Q q t e^e0 + q
d0, where q t e^e0 = q e^e and p + q e^e0 - q e^e = e^e - q e^e = p e^e. QED

The mask must stay secret: who sees it sees the mechanism without amplification. The padded
mechanism is also as private as the one without padding (reveal the mask: that is post-processed
away), which prices compositions where this curve is not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedrec.privacy.accounting import GaussianEvent, delta_of, mu_for
from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit


def amplified(epsilon: float, padding: float) -> float:
    """e of the padded mechanism whose inner epsilon is e0: log(p + (1 - p) exp(e0))."""
    _check(padding)
    return math.inf if math.isinf(epsilon) else epsilon + math.log1p(padding * math.expm1(-epsilon))


def inner_epsilon(epsilon: float, padding: float) -> float:
    """e0 that the inner mechanism may have for the padded one to have e: log((exp(e) - p) / (1 -
    p)), at least e."""
    _check(padding)
    return (
        math.inf
        if math.isinf(epsilon)
        else epsilon + math.log1p(-padding * math.exp(-epsilon)) - math.log1p(-padding)
    )


def inner_mu(guarantee: Guarantee, padding: float) -> float:
    """The largest mu of a Gaussian release inside padding for the whole to have `guarantee`:
    analytic, not the classical bound.

    Raises ValueError where d0 = delta / (1 - p) reaches 1: nothing would be left to promise.
    """
    inner_delta = guarantee.delta / (1 - padding) if padding < 1 else math.inf
    if inner_delta >= 1:
        raise ValueError(
            f"delta {guarantee.delta!r} with padding {padding!r} leaves an inner delta of at "
            "least 1"
        )
    return mu_for(inner_epsilon(guarantee.epsilon, padding), inner_delta)


@dataclass(frozen=True)
class PaddedEvent:
    """One Gaussian release inside padding: `mu` without it, amplified by `padding` in [0, 1)."""

    name: str
    mu: float
    padding: float
    unit: Unit = "click"
    neighbours: Neighbours = "replace"

    def __post_init__(self) -> None:
        _check(self.padding)

    @property
    def unpadded(self) -> GaussianEvent:
        """The event of this release if the mask were seen: an upper bound of the price, exact in
        composition."""
        return GaussianEvent(self.name, self.mu, self.unit, self.neighbours)

    def delta(self, epsilon: float) -> float:
        """Delta at any real epsilon; below 0 by the symmetry of neighbours, delta(-e) = 1 - exp(-e)
        + exp(-e) delta(e)."""
        if epsilon < 0:
            return -math.expm1(epsilon) + math.exp(epsilon) * self.delta(-epsilon)
        return (1 - self.padding) * delta_of(self.mu, inner_epsilon(epsilon, self.padding))


def _check(padding: float) -> None:
    if not 0 <= padding < 1:
        raise ValueError(f"padding is a probability below 1, found {padding!r}")
