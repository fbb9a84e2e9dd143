"""Price for a person of a scenario's plan, before anybody is asked: training by variant, answers of
serving, and a limit per user.

`person` prices the releases; here they are taken from a scenario, which needs the variants and so
torch.
"""

from __future__ import annotations

import math

from fedrec.errors import SettingsError
from fedrec.news.attention import laplace_plan_as_printed
from fedrec.news.person import UNIT, epsilon_of_person
from fedrec.news.schedule import THETA, schedule_of
from fedrec.news.variant import costs_of, of
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event
from fedrec.privacy.padding import PaddedEvent, inner_mu
from fedrec.privacy.selection import PureEvent
from fedrec.settings import NewsScenario, Scenario


def training_costs(scenario: NewsScenario, *, users: int = 1) -> Costs:
    """Costs of training the scenario's variant, per click. users: decides how often each answers,
    where `news.rounds` is given.

    Raises ValueError for a variant whose promise is per user already.
    """
    return costs_of(scenario, schedule_of(scenario, max(users, 1)).passes)


def answer_costs(scenario: NewsScenario, guarantee: Guarantee, answers: int = 1) -> Costs:
    """Costs of so many fresh served answers of a model, each with `guarantee` per click."""
    if scenario.news.serving_noise != "gaussian" and guarantee.private:
        return Costs((_laplace_event(scenario, guarantee),) * answers, ())
    mean = not of(scenario).encoders
    mu = mu_for(guarantee.epsilon, guarantee.delta)
    padding = 0.0 if mean else scenario.news.padding
    if padding and guarantee.private:
        return Costs(
            (PaddedEvent("attention", inner_mu(guarantee, padding), padding),) * answers, ()
        )
    return Costs(
        (GaussianEvent("answer" if mean else "attention", mu, "click", "replace"),) * answers, ()
    )


def _laplace_event(scenario: NewsScenario, guarantee: Guarantee) -> Event:
    """What one answer costs; of whole vectors that are clipped in L2, no bound is used."""
    news = scenario.news
    if news.serving_noise == "laplace":
        return PureEvent("answer", guarantee.epsilon)
    if (form := of(scenario).in_rounds) is None or not (basis := form.basis(scenario)):
        return PureEvent("answer", math.inf)
    theta = news.clip or THETA
    return laplace_plan_as_printed(guarantee, theta=theta, basis=basis, padding=news.padding).event


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
