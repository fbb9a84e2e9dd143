"""Cost of one more training beside what was spent: said before anybody is asked, and refused where
it is known not to fit.

The aggregator and every client keep ledgers of their own, over all runs and whatever this server
says; a client's limit is known to the client alone, which refuses to join. What is computed here is
for the operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Budget, Refusal
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee, said_down, said_up
from fedrec_server.runs import TrainingRun, together

_ROUNDING = 1e-6
"""Relative, of mu: what differs by less is decided by the ledgers themselves."""


def words(promised: Guarantee, before: Sequence[TrainingRun], budget: Budget | None) -> list[str]:
    """Lines for the operator: of this folder's trainings, and of the aggregator's ledger."""
    spent = together(before)
    planned = TrainingRun(
        "",
        0.0,
        guarantee=promised,
        mu=_mu(promised) if all(run.mu for run in before if run.guarantee) else 0.0,
    )
    after = together([*before, planned])
    assert after is not None
    count = sum(1 for run in before if run.guarantee is not None)
    so_far = (
        f"epsilon {spent.epsilon:.4g} in {count} training{'' if count == 1 else 's'}"
        if spent
        else "nothing"
    )
    lines = [
        (
            f"spent so far {so_far}, this training epsilon {promised.epsilon:.4g}, after it "
            f"epsilon {after.epsilon:.4g}"
        )
    ]
    lines[0] += f" at delta {after.delta:g} {after.compared}"
    if budget is not None:
        limit = (
            "without a limit"
            if math.isinf(budget.limit_epsilon)
            else f"of {budget.limit_epsilon:.4g}"
        )
        left = (
            ""
            if math.isinf(budget.left_epsilon)
            else f", still possible a run of epsilon {said_down(budget.left_epsilon)}"
        )
        lines.append(
            f"aggregator's ledger, over all runs: epsilon {budget.spent_epsilon:.4g} {limit} "
            f"at delta {budget.delta:g}{left}"
        )
    lines.append(
        "clients keep limits of their own: one that has none left for this training refuses "
        "to join, and says so"
    )
    return lines


def require_affordable(promised: Guarantee, budget: Budget | None) -> None:
    """Raises RefusedError (`BUDGET`) where the aggregator's limit leaves less than this training
    takes."""
    if budget is None or math.isinf(budget.left_epsilon):
        return
    left, spent = (
        mu_for(epsilon, budget.delta) if epsilon > 0 else 0.0
        for epsilon in (budget.left_epsilon, budget.spent_epsilon)
    )
    if _mu(promised) <= left * (1 + _ROUNDING):
        return
    possible = (
        f"a training of epsilon {said_down(epsilon_of(left, promised.delta))}" if left else "none"
    )
    needed = epsilon_of(math.hypot(spent, _mu(promised)), budget.delta)
    raise RefusedError(
        Refusal.BUDGET.value,
        f"a training of epsilon {promised.epsilon:.4g} does not fit the aggregator's limit of "
        f"epsilon {budget.limit_epsilon:.4g} over all "
        f"runs, of which {budget.spent_epsilon:.4g} is spent",
        f"Still possible: {possible}. This one fits a limit of epsilon {said_up(needed)}, which "
        "nobody but the aggregator's operator "
        "sets: it does not renew with time. Nothing was asked of anybody.",
    )


def _mu(promised: Guarantee) -> float:
    return mu_for(promised.epsilon, promised.delta)
