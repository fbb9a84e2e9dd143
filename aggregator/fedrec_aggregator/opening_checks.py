"""Checks of what a server opens, before anything of it is kept: a run's name and plan, and the
question of a round."""

from __future__ import annotations

import math

from fedrec.errors import PrivacyError
from fedrec.federation.messages import Question
from fedrec.federation.protocol import Opening, Refusal
from fedrec.federation.releases import noise_stds
from fedrec.federation.wire import question_digest, read_header, refused, report_digest
from fedrec.privacy.calibration import Aggregation, Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.ledger import RUN, ReleaseLedger
from fedrec_aggregator.limits import Limits


def require_name(run: str) -> None:
    """Raises RefusedError (`MALFORMED`) on a name that could lead out of the folder it names."""
    if not RUN.fullmatch(run):
        raise refused(
            Refusal.MALFORMED,
            (
                "a run is named by 1 to 120 letters, digits, dots, dashes and underscores, "
                "no dot or dash first"
            ),
        )


def require_plan(
    plan: Plan, *, aggregation: Aggregation, limits: Limits, limit: Guarantee | None
) -> None:
    """Raises RefusedError (`WRONG_PLAN`, `BUDGET`) on a plan that is not true, of another
    aggregation, not established where that is not allowed, or without noise where `limit`, which
    holds over all runs, is of privacy."""
    try:
        Plan.of(plan.content())
    except PrivacyError as failure:
        raise refused(Refusal.WRONG_PLAN, failure.cause, failure.remedy) from failure
    if plan.aggregation != aggregation:
        cause = f"the plan's aggregation is {plan.aggregation}, this aggregator's is {aggregation}"
        raise refused(
            Refusal.WRONG_PLAN,
            cause,
            f'Use a plan with privacy.aggregation = "{aggregation}".',
        )
    if not (plan.guarantee.established or limits.allow_not_established):
        raise refused(
            Refusal.WRONG_PLAN,
            f"the plan's guarantee is {plan.guarantee}",
            "Ask the aggregator's operator to allow such plans.",
        )
    if any(math.isinf(planned.mu) for planned in plan.releases) and (
        limit is None or limit.private
    ):
        raise refused(
            Refusal.BUDGET,
            "the plan has releases without noise",
            "Ask the aggregator's operator for an infinite limit.",
        )


def require_room(plan: Plan, ledger: ReleaseLedger) -> None:
    """A run that could not end is not begun; what other runs spend meanwhile is checked again
    round by round. Raises RefusedError (`BUDGET`)."""
    try:
        account = ledger.account(plan.guarantee)
        for planned in plan.releases:
            account = account.add(plan.event(planned.name))
    except PrivacyError as failure:
        raise refused(Refusal.BUDGET, failure.cause, failure.remedy) from failure


def question_of(opening: Opening, plan: Plan) -> Question:
    """The question without its arrays, every number of it checked. plan: of the run.

    Raises RefusedError (`WRONG_QUESTION`, `WRONG_PLAN`, `MALFORMED`, `OUT_OF_RANGE`)."""
    header = read_header(opening.header)
    if (header.run, header.round, question_digest(opening.header)) != (
        opening.run,
        opening.round,
        opening.digest,
    ):
        raise refused(
            Refusal.WRONG_QUESTION, "the opening is not of the question that its header holds"
        )
    if header.plan != plan.digest():
        raise refused(Refusal.WRONG_PLAN, "the question is of another plan than the run")
    report_digest(opening.digest, opening.quorum)  # it is a number of users
    if not (math.isfinite(opening.timeout_s) and opening.timeout_s > 0):
        raise refused(
            Refusal.MALFORMED,
            f"a round takes reports for a positive time, found {opening.timeout_s!r} seconds",
        )
    question = Question(header.round, header.step, {}, header.specs())
    names = [spec.name for spec in question.releases]
    planned = {p.name for p in plan.releases}
    if not planned.issuperset(names):
        raise refused(
            Refusal.WRONG_PLAN, f"the plan has no releases {sorted(set(names) - planned)}"
        )
    try:
        noise_stds(question, plan)
    except (PrivacyError, ValueError) as failure:
        raise refused(
            Refusal.OUT_OF_RANGE,
            f"the noise of round {opening.round} does not fit its grid: {failure}",
        ) from None
    return question
