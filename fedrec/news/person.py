"""Price of a news training for a whole person: its plan priced per user (`privacy.person`), and
held to the scenario's limit."""

from __future__ import annotations

import math

from fedrec.errors import SettingsError
from fedrec.news.variant import costs_of, of, schedule_of
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.person import UNIT, epsilon_of_person
from fedrec.settings import NewsScenario, Scenario

CLICKS = (1, 10, 50)
ANSWERS = (1, 10, 100)
LABELS = (0, 1, 10)
"""What tables show: clicks in a history (and the most that it holds), fresh answers, impressions
that answer."""


def training_costs(scenario: NewsScenario, *, users: int = 1) -> Costs:
    """Costs of training the scenario's variant, per click. users: decides how often each answers,
    where `news.rounds` is given.

    Raises ValueError for a variant whose promise is per user already.
    """
    return costs_of(scenario, schedule_of(scenario, max(users, 1)).passes)


def require_user_limit(scenario: Scenario, *, users: int, labels: int) -> None:
    """Hold a plan to `news.max_user_epsilon`: for a full history, and the most impressions that any
    person answers for.

    Both are public, so that a refusal tells nothing of a history. Raises SettingsError with the
    largest epsilon per click that fits.
    """
    limit = scenario.news.max_user_epsilon
    delta = scenario.privacy.delta
    if math.isinf(limit) or of(scenario).unit == UNIT:
        return

    def cost(epsilon: float) -> float:
        costs = training_costs(scenario.with_epsilon(epsilon), users=users)
        return epsilon_of_person(costs, delta, clicks=scenario.news.history, labels=labels)

    if (asked := cost(scenario.privacy.epsilon)) <= limit:
        return
    low = 0.0
    high = min(scenario.privacy.epsilon, limit)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= limit else (low, middle)
    cause = (
        f"training would cost a person with {scenario.news.history} clicks and {labels} labels "
        f"epsilon {asked:.4g} per user (replace)"
    )
    remedy = (
        f"privacy.epsilon = {low:.3g} per click would fit, or a shorter news.history."
        if low
        else "Give fewer answers of each person."
    )
    raise SettingsError(f"{cause}; news.max_user_epsilon is {limit:g}", remedy)
