"""Statement of what a run's guarantee compares, covers and leaves out, and of what three
aggregators promise against whom, in the words that every file, page and terminal repeats.

Promises stand in one order everywhere: plan.json, the report, `fedrec account` and docs/privacy.md.
A test compares the page with them, so that no place promises more than another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedrec.federation.releases import weight
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.run.data.budget import DataBudget, Spent

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
COVERS = "the released model and nothing else: model/ and serving.safetensors"
NOT_COVERED = (
    (
        "metrics, verdicts, baselines and validation errors, on this page and in every file: "
        "measured on the data without noise"
    ),
    "counts of users, items and events: exact",
)
NOT_PRIVATE = "for the model alone; the numbers above are not private"


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


def promises(plan: Plan) -> tuple[Stated, ...]:
    """Promises of a three-party plan, in the order in which it is printed; empty where one trusted
    aggregator sums."""
    if plan.aggregation == "trusted":
        return ()
    return sentences(
        _epsilon(plan.for_outsiders),
        _epsilon(plan.guarantee),
        f"{plan.guarantee.delta:g}",
        checked=plan.checked,
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


def compared(guarantee: Guarantee) -> str:
    """The two data sets that the guarantee cannot tell apart."""
    if guarantee.neighbours == "replace":
        return (
            "the data set's file as it is, and with one click of one history exchanged for another"
        )
    what = "one person's rows" if guarantee.unit == "user" else "one rating or click"
    return (
        f"the data set's file with and without {what}; the number of users is public and the "
        "same in both"
    )


def spent(budget: DataBudget | None) -> tuple[Spent, ...]:
    """What all runs on the data have cost so far."""
    return () if budget is None else budget.spent()


def spent_words(budget: DataBudget | None) -> list[str]:
    """A line for each unit; none for invented data."""
    return [one.words for one in spent(budget)]


def three_party(plan: Plan) -> dict[str, Any]:
    """What three aggregators promise, for a file; {} where one trusted aggregator sums."""
    if plan.aggregation == "trusted":
        return {}
    promised = [vars(one) for one in promises(plan)]
    about = {
        "calibrated_for": plan.calibrated_for,
        "promises": promised,
        "warnings": [NOT_REVIEWED, SIMULATED],
    }
    return {"aggregation": plan.aggregation, **about}


def three_party_lines(described: Mapping[str, Any]) -> list[str]:
    """What `three_party` put into a file, for a terminal; [] where one trusted aggregator sums."""
    if "promises" not in described:
        return []
    return [
        "",
        *described["warnings"],
        *(Stated(**one).words for one in described["promises"]),
    ]


def personal(plan: Plan, limits: Mapping[float, float]) -> dict[str, Any]:
    """What people with limits of their own are promised, for a file; {} where everybody has the
    run's epsilon."""
    chosen = [
        {
            "epsilon": limit,
            "share": share,
            "weight": (counts := _weight(limit, plan)),
            "words": _personal_words(limit, share, counts, plan.guarantee),
        }
        for limit, share in sorted(limits.items())
    ]
    return {"personal": chosen} if chosen else {}


def personal_lines(described: Mapping[str, Any]) -> list[str]:
    """What `personal` put into a file, for a terminal."""
    return [f"limits     {one['words']}" for one in described.get("personal", ())]


def _weight(limit: float, plan: Plan) -> float:
    """a_k: of noised reports by mu, of a posterior's loss by epsilon (Fast DPMF, Thm 2)."""
    promised = plan.guarantee
    return min(1.0, limit / promised.epsilon) if plan.claimed else weight(limit, promised)


def _personal_words(limit: float, share: float, counts: float, promised: Guarantee) -> str:
    own = replace(promised, epsilon=limit)
    return f"{share:.0%} of users: {own}; their reports count {counts:.3f} of one"


def stated(
    guarantee: Guarantee, budget: DataBudget | None, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the statement for guarantee.json and result.json; `more` is what was read off
    everybody's rows: by the reader, and by the split."""
    spends = [{**vars(one), "words": one.words} for one in spent(budget)]
    return {
        "compared": compared(guarantee),
        "covers": COVERS,
        "not_covered": [*NOT_COVERED, *more],
        "budget": {"file": None if budget is None else str(budget.path), "spent": spends},
    }


def promise_in_short(guarantee: Guarantee) -> str:
    """A promise for a line of progress: an epsilon with its unit and neighbours."""
    if not guarantee.private:
        return "no privacy"
    nominal = "" if guarantee.established else "nominal "
    return f"{nominal}epsilon {guarantee.epsilon:g} {guarantee.compared}"
