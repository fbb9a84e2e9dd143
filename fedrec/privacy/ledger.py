"""Ledger of what has been spent: an immutable list of events with a limit that refuses.

Noise and its price are one return value (STYLE.md): whoever releases adds the event here, and `add`
refuses before anything leaves if the limit would be passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedrec.errors import BudgetExceededError
from fedrec.privacy.accounting import GaussianEvent, compose, epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee

_ROUNDING = 1e-9  # relative; sums of squares of a calibrated plan reach its mu up to the last bits


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
