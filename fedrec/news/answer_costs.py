"""Price of one noised answer."""

from __future__ import annotations

import math

from fedrec.news.attention import laplace_plan_as_printed
from fedrec.news.variant import THETA, of
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event, PaddedEvent, inner_mu
from fedrec.privacy.selection import PureEvent
from fedrec.settings import NewsScenario


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
