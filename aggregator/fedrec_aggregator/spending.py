"""Spending of an aggregator over all of its runs: what charges add up to, and what the operator's
limit leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedrec.privacy.accounting import Ledger, compose, epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec_aggregator.chain import Charge


@dataclass(frozen=True)
class Spends:
    """Over all runs: every charge, the epsilon they add up to, and what the operator's limit leaves
    (inf without one).

    possible: epsilon of the largest run that still fits. Not the difference: guarantees do not add
    up plainly.
    """

    charges: tuple[Charge, ...]
    epsilon: float
    left: float
    possible: float


def spends_of(charges: tuple[Charge, ...], limit: Guarantee | None) -> Spends:
    """What they come to, at the limit's delta (1e-5 without a limit); of several units the
    dearest."""
    by_unit = dict[tuple[str, str], list[Charge]]()
    for charge in charges:
        by_unit.setdefault((charge.unit, charge.neighbours), []).append(charge)
    delta = limit.delta if limit else 1e-5
    mu = max((compose([c.event for c in some]) for some in by_unit.values()), default=0.0)
    epsilon = epsilon_of(mu, delta) if mu else 0.0
    allowed = limit.epsilon if limit else float("inf")
    if allowed == float("inf"):
        return Spends(charges, epsilon, allowed, allowed)
    square = mu_for(allowed, delta) ** 2 - mu**2
    return Spends(
        charges,
        epsilon,
        max(0.0, allowed - epsilon),
        epsilon_of(math.sqrt(square), delta) if square > 0 else 0.0,
    )


def account_of(charges: Sequence[Charge], limit: Guarantee | None, guarantee: Guarantee) -> Ledger:
    """The charges against the limit; without one that is of privacy, those of the guarantee's unit
    and neighbours against none.

    Raises UnitMismatchError where the limit is of another unit."""
    if limit is not None and limit.private:
        limit.require_same_unit(guarantee)
        return Ledger(limit, tuple(c.event for c in charges))
    same = [c for c in charges if (c.unit, c.neighbours) == (guarantee.unit, guarantee.neighbours)]
    return Ledger(
        non_private(guarantee.delta, guarantee.unit, guarantee.neighbours),
        tuple(c.event for c in same),
    )
