"""A plan: one guarantee, divided once over every release of a run. Only a calibrated plan runs.

mu^2 adds up over releases, so a share of the budget is a share of mu^2: release i has mu_i = mu sqrt(share_i).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from fedrec.errors import PrivacyError
from fedrec.privacy.accounting import GaussianEvent, Opinions, compose, mu_for, opinions
from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit


@dataclass(frozen=True)
class PlannedRelease:
    """One release: its share of mu^2 and its mu = L2 sensitivity / noise std (infinite without privacy)."""

    name: str
    share: float
    mu: float

    @property
    def noise_multiplier(self) -> float:
        """Noise std / L2 sensitivity; 0 without privacy."""
        return 1 / self.mu


@dataclass(frozen=True)
class Plan:
    """Every release of one run under one guarantee."""

    guarantee: Guarantee
    releases: tuple[PlannedRelease, ...]

    def __getitem__(self, name: str) -> PlannedRelease:
        for release in self.releases:
            if release.name == name:
                return release
        raise KeyError(f"the plan has no release {name!r}; it has {[r.name for r in self.releases]}")

    def event(self, name: str) -> GaussianEvent:
        """What release `name` costs."""
        return GaussianEvent(name, self[name].mu, self.guarantee.unit, self.guarantee.neighbours)

    def opinions(self) -> Opinions:
        """Epsilon of the whole run at the plan's delta, by all accountants."""
        return opinions([self.event(r.name) for r in self.releases], self.guarantee.delta)

    @staticmethod
    def of(content: Mapping[str, Any]) -> Plan:
        """The plan that `asdict` wrote. Raises PrivacyError where it is none, or its releases add up to more than its guarantee."""
        try:
            releases = tuple(PlannedRelease(str(r["name"]), float(r["share"]), float(r["mu"])) for r in content["releases"])
            plan = Plan(_guarantee(content["guarantee"]), releases)
            events = [plan.event(r.name) for r in releases]
        except (TypeError, KeyError, ValueError, OverflowError) as failure:
            raise PrivacyError(f"this is no privacy plan: {failure}", "Use the same version of fedrec everywhere.") from None
        allowed = mu_for(plan.guarantee.epsilon, plan.guarantee.delta)
        if plan.guarantee.established and not (events and compose(events) <= allowed * (1 + 1e-9)):
            raise PrivacyError(f"the plan's releases add up to more than {plan.guarantee}", "Do not take part: the plan is not true.")
        return plan

    def digest(self) -> str:
        """SHA-256 of everything that decides privacy: travels in every report."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def _guarantee(content: Mapping[str, Any]) -> Guarantee:
    guarantee = Guarantee(**content)
    if guarantee.unit not in get_args(Unit) or guarantee.neighbours not in get_args(Neighbours):
        raise ValueError(f"no unit {guarantee.unit!r} with neighbours {guarantee.neighbours!r} is known")
    if not isinstance(guarantee.established, bool):
        raise ValueError(f"a guarantee is established or not, found {guarantee.established!r}")
    float(guarantee.epsilon), float(guarantee.delta)  # JSON holds integers that no float does
    return guarantee


def calibrate(guarantee: Guarantee, shares: Mapping[str, float]) -> Plan:
    """Divide `guarantee` over releases in proportion to `shares` (positive; they need not sum to one).

    The composition of all releases is exactly the guarantee (Dong, Roth, Su 2022, Cor. 2).
    Raises ValueError on a share that is not positive and finite, or where there is none.
    """
    if not shares or not all(0 < s < math.inf for s in shares.values()):
        raise ValueError(f"shares must be positive and finite, and at least one, found {dict(shares)!r}")
    mu, total = mu_for(guarantee.epsilon, guarantee.delta), math.fsum(shares.values())
    parts = {name: share / total for name, share in shares.items()}
    return Plan(guarantee, tuple(PlannedRelease(name, part, mu * math.sqrt(part)) for name, part in parts.items()))
