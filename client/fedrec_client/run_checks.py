"""Checks of a run's terms and plan by a client, before anything is charged.

The server is not trusted with either. Terms are kept where this version knows their recipe; what
they promise counts only until the plan is known. A plan is answered where it protects a user, its
aggregation is this client's, and it has every release that the question asks for: only those are
charged. A question's numbers are checked in `answering`.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

from fedrec.federation.messages import ClientStep, Question
from fedrec.federation.personal import announced
from fedrec.federation.protocol import Refusal, Terms, refused
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.calibration import Aggregation, Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import client_steps
from fedrec.settings import validated
from fedrec_client.answering import AnswerBounds
from fedrec_client.three_way import require_shareable


def require_sound(terms: Terms, bounds: AnswerBounds) -> None:
    """Terms this version can keep: a known recipe whose reports are per user, a scale, a catalogue
    of a size that can be held. Raises RefusedError."""
    client_steps(terms.recipe, terms.kind)
    if validated(json.loads(terms.recipe), source="the run's recipe").privacy.unit != "user":
        raise refused(
            Refusal.WRONG_PLAN,
            "the run's reports are per example, not per user",
            "Such a recipe runs in simulation only.",
        )
    low, high = terms.value_range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise refused(
            Refusal.MALFORMED,
            f"{low:g} to {high:g} is not a scale",
            "The server's operator must correct it.",
        )
    if not terms.items or sum(map(len, terms.items)) > bounds.public_bytes:
        raise refused(
            Refusal.TOO_LARGE,
            "the catalogue is empty, or larger than this client holds",
            "The server's operator must correct it.",
        )


def step_of(question: Question, terms: Terms) -> ClientStep:
    """The step that answers the question. Raises RefusedError (`MALFORMED`) where the run's recipe
    has none of that name."""
    steps = client_steps(terms.recipe, terms.kind)
    if question.step not in steps:
        raise refused(
            Refusal.MALFORMED,
            f"{question.step!r} is no step of the run's recipe",
            "Use the same version of fedrec everywhere.",
        )
    return steps[question.step]


def require_plan(
    plan: Plan, question: Question, *, aggregation: Aggregation, allow_not_established: bool
) -> None:
    """What the plan itself says; whether the limit has room for it is the ledger's to decide.
    aggregation: that this client takes part in. Raises RefusedError (`WRONG_PLAN`), and for three
    aggregators as `require_shareable`."""
    guarantee = plan.guarantee
    if (guarantee.unit, guarantee.neighbours) != ("user", "add/remove"):
        raise refused(
            Refusal.WRONG_PLAN,
            f"the plan protects {guarantee.compared}",
            "Here a user is the unit.",
        )
    if plan.aggregation != aggregation:
        cause = (
            f"the plan's aggregation is {plan.aggregation}, this client takes part in "
            f"{aggregation} only"
        )
        raise refused(
            Refusal.WRONG_PLAN,
            cause,
            "The settings of this client name one aggregator, or three.",
        )
    if not guarantee.established and not allow_not_established:
        remedy = (
            "privacy.allow_not_established = true takes part all the same; what it promises "
            "is then not proved."
        )
        raise refused(Refusal.WRONG_PLAN, "the plan's guarantee is not established", remedy)
    planned = {release.name for release in plan.releases}
    if unplanned := [release.name for release in question.releases if release.name not in planned]:
        raise refused(
            Refusal.WRONG_PLAN,
            f"the plan has no release {unplanned[0]!r}",
            "Nobody would account for it.",
        )
    if aggregation == "three-party":
        require_shareable(question, plan)


def charged(terms: Terms, promised: Guarantee, *, own: float, delta: float) -> Guarantee:
    """What the run costs each user here: its guarantee, or the announced limit that fits the
    users' own. Raises RefusedError (`BUDGET`).

    promised: by the terms before the plan is known, by the plan afterwards: terms may say
    anything. own: epsilon, the most that one run may cost each user. A limit counts at this
    client's `delta`: at a larger one any noise is of a small epsilon.
    """

    def fits(epsilon: float) -> bool:
        if promised.delta <= delta or own < epsilon:
            return own >= epsilon
        return own >= epsilon_of(mu_for(epsilon, promised.delta), delta)

    if math.isinf(own) or fits(promised.epsilon):
        return promised
    limits = validated(json.loads(terms.recipe), source="the run's recipe").privacy.limits
    if not (limit := announced(own, {a: of for a, of in limits.items() if fits(a)})):
        cause = (
            f"the run costs epsilon {promised.epsilon:g} at delta {promised.delta:g} and "
            "announces no limit that is at most this client's personal_epsilon"
        )
        raise refused(
            Refusal.BUDGET,
            cause,
            "A run that announces such limits (privacy.personal_epsilons) would be answered.",
        )
    return replace(promised, epsilon=limit)
