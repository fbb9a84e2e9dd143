"""A plan: one guarantee, divided once over every release of a run. Only a calibrated plan runs.

mu^2 adds up over releases, so a share of the budget is a share of mu^2: release i has mu_i = mu
sqrt(share_i).

Noise of three aggregators, of which any two are honest: each adds its own, and any two of them
add what the plan asks for.

A release whose plan asks for noise of std s ("pair std") gets three independent discrete Gaussians,
each of std s / sqrt(2). One corrupt aggregator knows its own and takes it off, or never added it;
the sum keeps noise of std s. If all three add theirs, the sum carries noise of std sqrt(3/2) s
("total std"): that is what everybody else sees, and what `Release.noise_std` states.

Guarantee. A release of L2 sensitivity D is mu-GDP against whoever knows one aggregator's noise,
with mu as planned, and mu / sqrt(3/2)-GDP against whoever knows none, if all three added theirs.
Unit and neighbours are the plan's.

Proof. Let a, b be the stds of two independent discrete Gaussians in units of the grid, s^2 = a^2 +
b^2. Their sum has at integer k the probability proportional to exp(-k^2 / (2 s^2)) times sum over j
of exp(-(j - k a^2 / s^2)^2 / (2 r^2)), r = a b / s: complete the square. By Poisson summation the
second factor is constant in k up to 1 +- 2 exp(-2 pi^2 r^2). With a = b, r = s / 2, so that from s
= 4 on the sum is the discrete Gaussian of std s up to 1 +- 1.1e-34 per coordinate, the same as the
factor that `privacy.gaussian` has already; its proof carries over. `party_std` demands 6 steps,
since off the diagonal of a symmetric matrix an isometric release has s / sqrt(2). The third noise
is added to the sum of two in the same way, with r^2 = s^2 (s^2 / 2) / (3 s^2 / 2) = s^2 / 3, and
the factor is smaller. With the lattice's 8 step^2 in s^2 (`gaussian.noise_std`), the total has 12
step^2, more than mu / sqrt(3/2) needs. What depends on nothing but a noise that an adversary knows
or chose is taken off the release by subtraction: post-processing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from fedrec.errors import PrivacyError
from fedrec.privacy.accounting import GaussianEvent, Opinions, compose, epsilon_of, mu_for, opinions
from fedrec.privacy.correlated import LONGEST
from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit

PARTIES = 3
"""Aggregators, each with noise of its own."""
EXCESS = math.sqrt(1.5)
"""Std of all three noises together over that of any two."""
SMALLEST_PAIR_STD = 6.0
"""In grid steps: below, the sum of two discrete Gaussians is not surely one (the proof above)."""

_SLACK = 1e-12
"""Each noise is drawn so much wider, relatively, that rounding of sqrt(2) leaves no two with less
than the plan asks for."""
Aggregation = Literal["trusted", "three-party"]
"""Who sums: one trusted aggregator, or three of which any two are honest (`fedrec.sharing`)."""
CalibratedFor = Literal["one-corrupt", "outsiders"]
"""Against whom a three-party plan's noise gives the epsilon that was asked for: the server with one
aggregator, or everybody else."""
HostileClients = Literal["trusted-sites", "checked"]
"""Of three-party: whether clients are sites known by name, or aggregators check what they share
(`federation.hostile_clients`)."""


def party_std(pair_std: float, *, coarsest_step: float) -> float:
    """Real std of one aggregator's noise, so that any two have at least `pair_std`; 0 for 0.

    Raises ValueError where the pair's noise is narrower than the proof holds for.
    """
    if pair_std == 0:
        return 0.0
    if pair_std < SMALLEST_PAIR_STD * coarsest_step:
        raise ValueError(
            f"noise of std {pair_std:g} is no sum of two on a grid of {coarsest_step:g}: use "
            "more bits"
        )
    return pair_std / math.sqrt(2) * (1 + _SLACK)


def total_std(pair_std: float, *, coarsest_step: float) -> float:
    """Real std of all three noises together."""
    return math.sqrt(PARTIES) * party_std(pair_std, coarsest_step=coarsest_step)


@dataclass(frozen=True)
class PlannedRelease:
    """One release: its share of mu^2 and its mu = L2 sensitivity / noise std (infinite without
    privacy)."""

    name: str
    share: float
    mu: float

    @property
    def noise_multiplier(self) -> float:
        """Noise std / L2 sensitivity; 0 without privacy."""
        return 1 / self.mu


@dataclass(frozen=True)
class Plan:
    """Every release of one run under one guarantee.

    Where three aggregate, the guarantee and every mu are against the server together with any one
    of them and any clients: what is left when one aggregator's noise is known or was never added
    (`privacy.calibration`). Limits and ledgers count that. `for_outsiders` is what holds besides.

    horizon: weeks in which each release is made again, of what is new, all for the one price
    (`privacy.correlated`); 0 where each is made once.
    """

    guarantee: Guarantee
    releases: tuple[PlannedRelease, ...]
    aggregation: Aggregation = "trusted"
    calibrated_for: CalibratedFor = "one-corrupt"
    hostile_clients: HostileClients = "trusted-sites"
    horizon: int = 0

    def __getitem__(self, name: str) -> PlannedRelease:
        for release in self.releases:
            if release.name == name:
                return release
        raise KeyError(
            f"the plan has no release {name!r}; it has {[r.name for r in self.releases]}"
        )

    @property
    def noise_excess(self) -> float:
        """Std of all noise that is drawn over the std that the plan's mu asks for: sqrt(3/2) where
        three aggregate."""
        return 1.0 if self.aggregation == "trusted" else EXCESS

    @property
    def checked(self) -> bool:
        """Whether aggregators check what clients share."""
        return self.aggregation == "three-party" and self.hostile_clients == "checked"

    @property
    def claimed(self) -> bool:
        """Whether its epsilon is claimed of a release that no noise prices: a sample."""
        return self.guarantee.private and all(math.isinf(one.mu) for one in self.releases)

    @property
    def for_outsiders(self) -> Guarantee:
        """What holds against everybody who aggregates nothing, the server included, if every
        aggregator adds its noise."""
        if self.aggregation == "trusted" or not self.guarantee.private:
            return self.guarantee
        mu = compose([self.event(release.name) for release in self.releases]) / self.noise_excess
        return replace(self.guarantee, epsilon=epsilon_of(mu, self.guarantee.delta))

    def drawn_multiplier(self, name: str) -> float:
        """Std of the noise that release `name` carries over its L2 sensitivity."""
        return self.noise_excess * self[name].noise_multiplier

    def event(self, name: str) -> GaussianEvent:
        """What release `name` costs."""
        return GaussianEvent(name, self[name].mu, self.guarantee.unit, self.guarantee.neighbours)

    def opinions(self) -> Opinions:
        """Epsilon of the whole run at the plan's delta, by all accountants."""
        return opinions([self.event(r.name) for r in self.releases], self.guarantee.delta)

    @staticmethod
    def of(content: Mapping[str, Any]) -> Plan:
        """The plan that `asdict` wrote.

        Raises PrivacyError where it is none, or its releases add up to more than its guarantee."""
        try:
            releases = tuple(
                PlannedRelease(str(r["name"]), float(r["share"]), float(r["mu"]))
                for r in content["releases"]
            )
            plan = Plan(
                _guarantee(content["guarantee"]),
                releases,
                *_aggregation(content),
                _horizon(content),
            )
            events = [plan.event(r.name) for r in releases]
        except (TypeError, KeyError, ValueError, OverflowError) as failure:
            raise PrivacyError(
                f"this is no privacy plan: {failure}", "Use the same version of fedrec everywhere."
            ) from None
        allowed = mu_for(plan.guarantee.epsilon, plan.guarantee.delta)
        # mus are read from decimals, and the root of their squares rounds
        if plan.guarantee.established and not (events and compose(events) <= allowed * (1 + 1e-9)):
            raise PrivacyError(
                f"the plan's releases add up to more than {plan.guarantee}",
                "Do not take part: the plan is not true.",
            )
        return plan

    def digest(self) -> str:
        """SHA-256 of everything that decides privacy: travels in every report."""
        return hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()

    def content(self) -> dict[str, Any]:
        """What `of` reads.

        A trusted aggregator's plan says nothing of aggregation: its bytes are those of before there
        were three."""
        content = asdict(self)
        if self.aggregation == "trusted":
            del content["aggregation"], content["calibrated_for"]
        if self.hostile_clients == "trusted-sites":
            del content["hostile_clients"]
        if not self.horizon:
            del content["horizon"]
        return content


def _aggregation(content: Mapping[str, Any]) -> tuple[Aggregation, CalibratedFor, HostileClients]:
    aggregation = content.get("aggregation", "trusted")
    calibrated_for = content.get("calibrated_for", "one-corrupt")
    hostile = content.get("hostile_clients", "trusted-sites")
    if hostile not in get_args(HostileClients) or (
        hostile == "checked" and aggregation == "trusted"
    ):
        raise ValueError(
            f"no way {hostile!r} with hostile clients is known where {aggregation!r} aggregate"
        )
    if aggregation not in get_args(Aggregation) or calibrated_for not in get_args(CalibratedFor):
        raise ValueError(
            f"no aggregation {aggregation!r} calibrated for {calibrated_for!r} is known"
        )
    return aggregation, calibrated_for, hostile


def _horizon(content: Mapping[str, Any]) -> int:
    horizon = content.get("horizon", 0)
    if type(horizon) is not int or not 0 <= horizon <= LONGEST:
        raise ValueError(f"a horizon is between 1 and {LONGEST} weeks, found {horizon!r}")
    if horizon and content.get("aggregation", "trusted") != "trusted":
        raise ValueError("three aggregators keep no stream yet (privacy.horizon)")
    return horizon


def _guarantee(content: Mapping[str, Any]) -> Guarantee:
    guarantee = Guarantee(**content)
    if guarantee.unit not in get_args(Unit) or guarantee.neighbours not in get_args(Neighbours):
        raise ValueError(
            f"no unit {guarantee.unit!r} with neighbours {guarantee.neighbours!r} is known"
        )
    if not isinstance(guarantee.established, bool):
        raise ValueError(f"a guarantee is established or not, found {guarantee.established!r}")
    float(guarantee.epsilon), float(guarantee.delta)  # JSON holds integers that no float does
    return guarantee


def calibrate(guarantee: Guarantee, shares: Mapping[str, float]) -> Plan:
    """Divide `guarantee` over releases in proportion to `shares` (positive; they need not sum to
    one).

    The composition of all releases is exactly the guarantee (Dong, Roth, Su 2022, Cor. 2).
    Raises ValueError on a share that is not positive and finite, or where there is none.
    """
    if not shares or not all(0 < s < math.inf for s in shares.values()):
        raise ValueError(
            f"shares must be positive and finite, and at least one, found {dict(shares)!r}"
        )
    mu = mu_for(guarantee.epsilon, guarantee.delta)
    total = math.fsum(shares.values())
    parts = {name: share / total for name, share in shares.items()}
    return Plan(
        guarantee,
        tuple(PlannedRelease(name, part, mu * math.sqrt(part)) for name, part in parts.items()),
    )


def among_three(
    plan: Plan, *, calibrated_for: CalibratedFor, hostile_clients: HostileClients = "trusted-sites"
) -> Plan:
    """A trusted aggregator's plan as one of three aggregators.

    "one-corrupt": its epsilon holds against the server together with any one aggregator, and
    outsiders have a smaller one. "outsiders": the noise of all three together is that of `plan`,
    its epsilon is what outsiders have, and the guarantee becomes what one aggregator leaves.
    """
    if calibrated_for == "one-corrupt" or not plan.guarantee.private:
        return replace(
            plan,
            aggregation="three-party",
            calibrated_for=calibrated_for,
            hostile_clients=hostile_clients,
        )
    releases = tuple(replace(release, mu=release.mu * EXCESS) for release in plan.releases)
    epsilon = epsilon_of(
        compose([plan.event(release.name) for release in plan.releases]) * EXCESS,
        plan.guarantee.delta,
    )
    return Plan(
        replace(plan.guarantee, epsilon=epsilon),
        releases,
        "three-party",
        calibrated_for,
        hostile_clients,
    )
