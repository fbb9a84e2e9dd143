"""Cost of one click: any sequence of Gaussian, pure and padded releases that all saw it.

Gaussian and pure releases compose exactly. The Gaussian ones are one release of mu = sqrt(sum
mu_i^2); the pure ones have finitely many privacy losses l, whose sums have probabilities P(l) by
convolution; and

    delta(epsilon) = sum_l P(l) delta_G(epsilon - l)

since the hockey-stick divergence of a product is the mean over one factor's loss of the other's.
Padded releases are added as privacy loss distributions that dominate their curve (connect-the-dots,
Doroshenko et al. 2022): never below the truth, and never counted for more than without padding.

Amplification by padding: each click is replaced by a public one with probability p, on the
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
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

from fedrec.privacy.accounting import GaussianEvent, compose, delta_of, epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit
from fedrec.privacy.selection import PureEvent

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf

_INTERVAL = 1e-3  # of padded losses; one release costs at most about interval^2 too much
_SPAN = 60.0  # losses beyond are counted as infinite


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


Event = GaussianEvent | PureEvent | PaddedEvent


def epsilon_of_events(events: Sequence[Event], delta: float) -> float:
    """Epsilon at `delta` of one unit that all `events` saw; 0 for none.

    Raises UnitMismatchError on events of another unit."""
    _require_one_unit(events)
    if any(math.isinf(e.epsilon if isinstance(e, PureEvent) else e.mu) for e in events):
        return math.inf
    plain = [e.unpadded if isinstance(e, PaddedEvent) else e for e in events]
    bound = _exact(plain, delta)
    padded = [e for e in events if isinstance(e, PaddedEvent)]
    if len(padded) == 1 and len(events) == 1:
        return min(bound, _smallest(padded[0].delta, delta, bound))
    return min(bound, _dominated(events, delta)) if padded else bound


def _exact(events: Sequence[GaussianEvent | PureEvent], delta: float) -> float:
    gaussians = [e for e in events if isinstance(e, GaussianEvent)]
    pure = [e for e in events if isinstance(e, PureEvent)]
    mu = compose(gaussians) if gaussians else 0.0
    if not pure:
        return epsilon_of(mu, delta) if mu else 0.0
    losses = _convolved(pure)
    high = math.fsum(e.epsilon for e in pure) + (epsilon_of(mu, delta) if mu else 0.0)
    return _smallest(
        lambda epsilon: math.fsum(p * _gaussian_delta(mu, epsilon - loss) for loss, p in losses),
        delta,
        high,
    )


def _gaussian_delta(mu: float, epsilon: float) -> float:
    return delta_of(mu, epsilon) if mu else -math.expm1(min(epsilon, 0.0))


def _convolved(pure: Sequence[PureEvent]) -> list[tuple[float, float]]:
    total: dict[float, float] = {0.0: 1.0}
    for event in pure:
        longer: dict[float, float] = defaultdict(float)
        for loss, p in total.items():
            for step, q in event.losses:
                # sums that differ by rounding alone are one
                longer[round(loss + step, 12)] += p * q
        total = longer
    return list(total.items())


def _smallest(curve: Callable[[float], float], delta: float, high: float) -> float:
    """The smallest epsilon in [0, high] with curve(epsilon) <= delta, from above; `high` where none
    is below."""
    low = 0.0
    if curve(low) <= delta:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(middle) <= delta else (middle, high)
    return high


def _dominated(events: Sequence[Event], delta: float) -> float:
    """All events by privacy loss distributions, each dominating its own; equal ones are computed
    once."""
    counts = Counter(replace(event, name="") for event in events)
    composed = [_distribution(event).self_compose(count) for event, count in counts.items()]
    return float(
        reduce(lambda one, other: one.compose(other), composed).get_epsilon_for_delta(delta)
    )


@lru_cache(maxsize=16)
def _distribution(event: Event) -> pld_pmf.PLDPmf:
    from dp_accounting.pld import pld_pmf  # as in `accounting`: padded releases alone need it

    curve = _curve(event)
    span = event.epsilon if isinstance(event, PureEvent) else event.mu**2 / 2 + 12 * event.mu
    steps = math.ceil(min(span, _SPAN) / _INTERVAL) + 1  # upwards: the grid covers all of it
    grid = range(-steps, steps + 1)
    return pld_pmf.create_pmf_pessimistic_connect_dots(
        _INTERVAL, list(grid), [curve(_INTERVAL * i) for i in grid]
    )


def _curve(event: Event) -> Callable[[float], float]:
    if isinstance(event, PaddedEvent):
        return event.delta
    if isinstance(event, GaussianEvent):
        return lambda epsilon: delta_of(event.mu, epsilon)
    return lambda epsilon: math.fsum(
        p * max(0.0, -math.expm1(epsilon - loss)) for loss, p in event.losses
    )


def _require_one_unit(events: Sequence[Event]) -> None:
    guarantees = [Guarantee(1.0, 0.5, e.unit, e.neighbours) for e in events]
    for other in guarantees[1:]:
        guarantees[0].require_same_unit(other)
