"""Promises of a three-party run, against whom each holds: the sentences that plan.json, the report,
`fedrec account` and docs/privacy.md print.

They stand in one order everywhere. A test compares the page with them, so that no place promises
more than another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedrec.federation.hostile_clients import checks
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee

NOT_REVIEWED = "three-party is not yet reviewed from outside"
NOT_HIDDEN = "not hidden"
SIMULATED = (
    "simulated by one person, who sees everything; what follows is what the protocol promises "
    "among three operators"
)

UNCHECKED = (
    "nothing: no aggregator checks what is shared, and one client can move a sum as far as it likes"
)
CHECKED = (
    "each user is bounded by the release's radius, as with a trusted aggregator, except with "
    "probability 2^-40 a user and attempt, if all "
    "three aggregators keep to the protocol"
)


@dataclass(frozen=True)
class Stated:
    """One sentence of a promise, and whom it is against."""

    against: str
    promise: str

    @property
    def words(self) -> str:
        """The sentence for a terminal."""
        return (
            f"{self.against}: {self.promise}"
            if self.against == NOT_HIDDEN
            else f"against {self.against}: {self.promise}"
        )


def stated(plan: Plan) -> tuple[Stated, ...]:
    """Promises of a three-party plan, in the order in which it is printed; empty where one trusted
    aggregator sums."""
    if plan.aggregation == "trusted":
        return ()
    return sentences(
        _epsilon(plan.for_outsiders),
        _epsilon(plan.guarantee),
        f"{plan.guarantee.delta:g}",
        checked=checks(plan),
    )


def sentences(
    outsiders: str, one_corrupt: str, delta: str, *, checked: bool = False
) -> tuple[Stated, ...]:
    """Promises whose numbers are given in words."""
    return (
        Stated(
            "everybody outside, the server included",
            f"epsilon {outsiders} at delta {delta} per user (add/remove, number of users public) "
            "if all three aggregators add their noise; "
            f"epsilon {one_corrupt} whatever any one of them does, since nobody can see that one "
            "left its noise out",
        ),
        Stated(
            "the server together with any one aggregator and any clients",
            f"epsilon {one_corrupt} at delta {delta} per user (report replaced by the empty one); "
            "rests on AES-256 and on the other two aggregators being honest",
        ),
        Stated("two aggregators together", "nothing: they can read every report"),
        Stated("hostile clients", CHECKED if checked else UNCHECKED),
        Stated(
            "a hostile aggregator",
            "it can spoil a sum or stop a run, unnoticed or not; it cannot learn more",
        ),
        Stated(NOT_HIDDEN, "who took part, when, and whether the report was accepted"),
    )


def _epsilon(guarantee: Guarantee) -> str:
    """To three places, upwards: what is printed holds."""
    return (
        f"{math.ceil(1000 * guarantee.epsilon - 1e-6) / 1000:g}"
        if guarantee.private
        else "infinite"
    )
