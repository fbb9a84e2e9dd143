import math

import numpy as np
import pytest

from fedrec.errors import BudgetExceededError, UnitMismatchError
from fedrec.privacy.accounting import GaussianEvent, epsilon_of, mu_for
from fedrec.privacy.click_accounting import ClickAccountant, plan_training, serving_epsilon
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.selection import randomised_response

LIMIT = Guarantee(5.0, 1e-5, "click", "replace")
LABEL = randomised_response(37, 5.0).event("label")


def report(mu: float) -> GaussianEvent:
    return GaussianEvent("history", mu, "click", "replace")


def test_report_and_labels_of_training_cost_the_larger_and_not_the_sum() -> None:
    plan = plan_training(LIMIT)
    ledger = ClickAccountant(LIMIT).charge_history(report(plan.report_mu))
    for impression in range(15):
        ledger = ledger.charge_label(impression, LABEL)
    assert ledger.epsilon == pytest.approx(5.0, rel=1e-6)
    assert plan.label_epsilon == 5.0


def test_releases_on_different_places_compose_in_parallel_by_enumeration() -> None:
    """Second code: the joint table of a report on one place and an answer on another, and
    neighbours that change one of the two."""
    report_table, label_table = (np.array([[p, 1 - p], [1 - p, p]]) for p in (0.6, 0.7))
    joint = {
        (x, y): np.outer(report_table[x], label_table[y]).ravel() for x in (0, 1) for y in (0, 1)
    }
    worst = max(
        np.log(joint[a] / joint[b]).max()
        for a in joint
        for b in joint
        if sum(i != j for i, j in zip(a, b, strict=True)) == 1
    )
    assert worst == pytest.approx(max(math.log(0.6 / 0.4), math.log(0.7 / 0.3)))


def test_the_ledger_refuses_past_its_limit_and_a_second_answer_of_one_impression() -> None:
    full = ClickAccountant(LIMIT).charge_history(report(mu_for(5.0, 1e-5)))
    with pytest.raises(BudgetExceededError, match="epsilon 5"):
        full.charge_history(report(0.2))
    answered = full.charge_label(3, LABEL)
    with pytest.raises(BudgetExceededError, match="impression 3"):
        answered.charge_label(3, LABEL)
    with pytest.raises(BudgetExceededError):
        full.charge_label(4, randomised_response(37, 6.0).event("label"))


def test_every_report_on_a_history_is_charged_to_its_clicks() -> None:
    ledger = ClickAccountant(LIMIT)
    for number in range(1, 5):
        ledger = ledger.charge_history(report(0.2))
        assert ledger.epsilon == pytest.approx(epsilon_of(0.2 * math.sqrt(number), 1e-5))


@pytest.mark.parametrize(("answers", "epsilon"), [(1, 1.0), (10, 3.6), (50, 9.4), (100, 14.4)])
def test_fresh_answers_compose_to_what_the_recipe_says(answers: int, epsilon: float) -> None:
    assert serving_epsilon(answers, Guarantee(1.0, 1e-5, "click", "replace")) == pytest.approx(
        epsilon, abs=0.05
    )


def test_a_user_level_limit_or_event_is_refused() -> None:
    with pytest.raises(UnitMismatchError):
        ClickAccountant(Guarantee(5.0, 1e-5))
    with pytest.raises(UnitMismatchError):
        ClickAccountant(LIMIT).charge_history(GaussianEvent("x", 0.1))
    with pytest.raises(UnitMismatchError):
        plan_training(Guarantee(5.0, 1e-5))
