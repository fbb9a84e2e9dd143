"""[privacy]: what is promised, and by which aggregation."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from fedrec.settings_tables.table import Epsilon, Table


class PrivacySettings(Table):
    """What is promised."""

    epsilon: Epsilon = Field(5.0, description='a number, or "inf" for no privacy')
    delta: float = Field(
        1e-5, gt=0, lt=1, description="the probability with which the guarantee may fail"
    )
    max_total_epsilon: Epsilon = Field(
        math.inf,
        validate_default=True,
        description=(
            "limit of all runs on these people's data, at delta; a run beyond it is refused"
        ),
    )
    budget_file: str = Field(
        "",
        description=(
            "where runs on the same people's data are added up; empty: a file in the user's "
            "state folder, named by the data"
        ),
    )
    allow_large_delta: bool = Field(
        False,
        description=(
            "an experiment with a delta of 1 / sqrt(number of users) or more, which is refused "
            "otherwise"
        ),
    )
    unit: Literal["user", "example", "click"] = Field(
        "user",
        description=(
            "what neighbours differ in: all data of a user, one rating, or one click exchanged "
            "for another (news)"
        ),
    )
    accountant: Literal["gdp", "am-ssp"] = Field(
        "gdp", description="gdp: exact; am-ssp: the paper's own conversion, for reproduction"
    )
    noise: Literal["system", "seeded"] = Field(
        "system",
        description="system: fresh, from the operating system; seeded: an experiment that repeats "
        "to the byte, whoever knows the seed can remove the noise",
    )
    aggregation: Literal["trusted", "three-party"] = Field(
        "trusted",
        description="trusted: one aggregator, which sees reports; three-party: three aggregators, "
        "none of which sees a report if two are honest "
        "(docs/three-party.md; not yet reviewed from outside)",
    )
    calibrate_for: Literal["one-corrupt", "outsiders"] = Field(
        "one-corrupt",
        description=(
            "of three-party, against whom epsilon is stated: the server with any one "
            "aggregator, or everybody but the aggregators"
        ),
    )
    hostile_clients: Literal["trusted-sites", "checked"] = Field(
        "trusted-sites",
        description="of three-party: trusted-sites, clients are sites known by name, and nobody "
        "checks what they share; checked: aggregators refuse what is longer than its bound, which "
        "costs 2% of every release's mu^2 and a coarser grid",
    )
    personal_epsilons: dict[str, float] = Field(
        default_factory=dict,
        description="limits that users chose, each with the announced share of users whose limit "
        "it is, as in {1 = 0.3, 5 = 0.7}; reports of a user with a limit below epsilon are scaled "
        "down, so that the own limit holds; empty: everybody has epsilon",
    )
    shares: Literal["skipped", "real"] = Field(
        "skipped",
        description=(
            "of three-party in one process: add three noises to plain sums, or share every "
            "report and add shares; the same bytes"
        ),
    )

    @model_validator(mode="after")
    def _limits_that_fit(self) -> Self:
        if not self.personal_epsilons:
            return self
        named = "privacy.personal_epsilons"
        if self.unit != "user" or self.accountant != "gdp" or self.aggregation != "trusted":
            raise ValueError(
                f'{named} needs unit = "user", the exact accountant and one trusted aggregator'
            )
        if not math.isfinite(self.epsilon):
            raise ValueError(f"{named} are shares of a finite privacy.epsilon")
        limits = self.limits
        if not all(0 < limit <= self.epsilon for limit in limits):
            raise ValueError(
                f"{named} must be numbers above 0 and at most privacy.epsilon = {self.epsilon:g}"
            )
        if min(limits.values()) <= 0 or abs(math.fsum(limits.values()) - 1) > 1e-9:
            raise ValueError(
                f"{named} need positive shares that sum to 1, found {math.fsum(limits.values()):g}"
            )
        return self

    @property
    def limits(self) -> dict[float, float]:
        """`personal_epsilons` by number; a name that is none is not a number, which no limit may
        be."""
        return {_number(name): share for name, share in self.personal_epsilons.items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
