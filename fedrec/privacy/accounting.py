"""Three accountants for sequences of Gaussian releases; the first is exact, the others must agree
or over-estimate.

A Gaussian release of L2 sensitivity D and noise std s is mu-GDP with mu = D / s. Releases chosen
adaptively compose to mu = sqrt(sum mu_i^2), exactly (Dong, Roth, Su 2022, Cor. 2), and mu-GDP is
(epsilon, delta)-DP for

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

and no smaller delta (Balle & Wang 2018, Thm 8). PLD and RDP come from `dp_accounting`, which shares
no code with this.

A ledger is an immutable list of events with a limit that refuses. Noise and its price are one
return value: whoever releases adds the event to the ledger, and `add` refuses before anything
leaves if the limit would be passed.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import scipy

from fedrec.errors import BudgetExceededError
from fedrec.numerics.roots import root
from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit

if TYPE_CHECKING:
    import dp_accounting


log = logging.getLogger(__name__)

LARGEST_CHECKED = 1e4
"""Epsilon above which second opinions are not computed: their grids would take minutes and
gigabytes, and nothing is protected."""
_ROUNDING = 1e-9  # relative; sums of squares of a calibrated plan reach its mu up to the last bits


@dataclass(frozen=True)
class GaussianEvent:
    """One Gaussian release and its price.

    Args:
        name: Of the release.
        mu: L2 sensitivity over the noise's standard deviation; infinite without noise.
        unit: Who or what is protected.
        neighbours: What two neighbouring data sets differ by.
    """

    name: str
    mu: float
    unit: Unit = "user"
    neighbours: Neighbours = "add/remove"

    def __post_init__(self) -> None:
        if not self.mu > 0:
            raise ValueError(f"a release has mu > 0 (inf without noise), found {self.mu!r}")


def delta_of(mu: float, epsilon: float) -> float:
    """The exact delta of mu-GDP at epsilon >= 0; in [0, 1]."""
    if math.isinf(mu):
        return 1.0
    # exp(epsilon) Phi(..) through log Phi: neither factor overflows or underflows alone
    tail = math.exp(min(0.0, epsilon + float(scipy.special.log_ndtr(-mu / 2 - epsilon / mu))))
    return max(0.0, float(scipy.special.ndtr(mu / 2 - epsilon / mu)) - tail)


def epsilon_of(mu: float, delta: float) -> float:
    """The exact epsilon of mu-GDP at delta in (0, 1): the smallest with delta_of(mu, epsilon) <=
    delta."""
    if math.isinf(mu):
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    # at the limit of float64: what is left is far below the four digits that are said
    return root(lambda e: delta_of(mu, e) - delta, 0.0, high, xtol=1e-12, rtol=1e-14)


@functools.lru_cache(maxsize=1024)  # a ledger asks for the same limit at every event
def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-DP: calibration. Infinite for an infinite epsilon.

    Args:
        epsilon: At least 0; infinite for no privacy.
        delta: In (0, 1).

    Returns:
        Mu of Gaussian differential privacy (Dong, Roth, Su 2022, Cor. 1), rounded to the safe side.
    """
    if math.isinf(epsilon):
        return math.inf
    low = 0.0
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        low = high
        high = 2 * high
    # at the limit of float64; the loop below takes the rest to the safe side
    found = root(
        lambda m: delta_of(m, epsilon) - delta if m else -delta, low, high, xtol=1e-14, rtol=1e-14
    )
    # the last bits of the root must not be on the wrong side
    while delta_of(found, epsilon) > delta:
        found = math.nextafter(found, 0.0)
    return found


def compose(events: Sequence[GaussianEvent]) -> float:
    """mu of all events together.

    Raises UnitMismatchError where units or neighbours differ, ValueError without events."""
    if not events:
        raise ValueError("nothing to compose: no events")
    first, *others = (Guarantee(1.0, 0.5, e.unit, e.neighbours) for e in events)
    for other in others:
        first.require_same_unit(other)
    return math.hypot(*(e.mu for e in events))


@dataclass(frozen=True)
class Opinions:
    """Epsilon at one delta by three accountants: exact GDP, and the privacy loss distribution and
    Renyi second opinions."""

    gdp: float
    pld: float
    rdp: float


def opinions(events: Sequence[GaussianEvent], delta: float) -> Opinions:
    """All three accountants on the same events. A second opinion that fails counts as infinite, and
    is logged; above `LARGEST_CHECKED` none is computed, and both are infinite.

    Args:
        events: What was released.
        delta: In (0, 1).

    Returns:
        Epsilon of each accountant.

    Raises:
        UnitMismatchError: Events protect different units, or against different neighbours.
    """
    return _opinions(tuple(events), delta)


@functools.lru_cache(maxsize=64)  # half a second each; a run prints those of its plan in every file
def _opinions(events: tuple[GaussianEvent, ...], delta: float) -> Opinions:
    mu = compose(events)
    epsilon = epsilon_of(mu, delta)
    if epsilon > LARGEST_CHECKED:
        return Opinions(epsilon, math.inf, math.inf)
    return Opinions(
        epsilon,
        _second(_pld_accountant(mu), events, delta),
        _second(_rdp_accountant(), events, delta),
    )


def _pld_accountant(mu: float) -> dp_accounting.PrivacyAccountant:
    """Losses of mu-GDP spread over about 20 mu: a grid in proportion has as many points for any of
    them, and 1e-6 of error."""
    from dp_accounting import pld

    return pld.PLDAccountant(value_discretization_interval=max(1e-4, 5e-4 * mu))


def _rdp_accountant() -> dp_accounting.PrivacyAccountant:
    from dp_accounting import rdp

    least = [1 + 2.0**-k for k in range(20, 5, -1)]  # the optimum of a large epsilon lies beside 1
    # orders near the optimum, which the default grid misses by percents
    fine = [1 + x / 50 for x in range(1, 1000)]
    return rdp.RdpAccountant(orders=[*least, *fine, *range(21, 512), 1024, 4096])


def _second(
    counter: dp_accounting.PrivacyAccountant, events: Sequence[GaussianEvent], delta: float
) -> float:
    import dp_accounting

    try:
        for event in events:
            counter.compose(dp_accounting.GaussianDpEvent(1 / event.mu))
        return float(counter.get_epsilon(delta))
    except (ValueError, RuntimeError, OverflowError) as failure:
        log.warning("a second opinion did not converge and counts as infinite: %s", failure)
        return math.inf


@dataclass(frozen=True)
class Ledger:
    """Events charged so far against `limit`."""

    limit: Guarantee
    events: tuple[GaussianEvent, ...] = field(default=())

    @property
    def mu(self) -> float:
        """mu of everything spent; 0 for nothing."""
        return compose(self.events) if self.events else 0.0

    @property
    def epsilon(self) -> float:
        """Epsilon of everything spent, at the limit's delta."""
        return epsilon_of(self.mu, self.limit.delta) if self.events else 0.0

    def add(self, event: GaussianEvent) -> Ledger:
        """This ledger and one more event.

        Raises BudgetExceededError past the limit, UnitMismatchError on another unit."""
        self.limit.require_same_unit(Guarantee(1.0, 0.5, event.unit, event.neighbours))
        allowed = mu_for(self.limit.epsilon, self.limit.delta)
        spent = math.hypot(self.mu, event.mu)
        if spent > allowed * (1 + _ROUNDING):
            total = epsilon_of(spent, self.limit.delta)
            raise BudgetExceededError(
                (
                    f"release {event.name!r} would bring the total to epsilon {total:.4g}; the "
                    f"limit is {self.limit}"
                ),
                "Stop here, or agree on a larger limit before the first release of a new run.",
            )
        return Ledger(self.limit, (*self.events, event))
