"""Schedule of variants that train in rounds: how often each user answers, what each answer may
cost, and the paper's constants."""

from __future__ import annotations

import math
from dataclasses import replace

from fedrec.news.fedadam import FedAdam
from fedrec.news.rounds import Schedule
from fedrec.news.variant import of
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.settings import NewsScenario

BASIS = 5
NEGATIVES = 4
"""B and k of the paper's experiments."""
THETA = 0.5
GRADIENT_CLIP = 0.005
VECTOR_CLIP = 0.001
"""theta of attention (ours: the paper does not say), of DP-FedRec's gradients and of its user
vectors (Sec. 4)."""
LEARNING_RATE = 3e-3


def times_charged(scenario: NewsScenario, passes: int) -> int:
    """How many answers of a user share epsilon: all, or one where each round is charged alone."""
    return passes if scenario.news.accounting == "whole" else 1


def per_answer(guarantee: Guarantee, answers: int) -> Guarantee:
    """What each of so many Gaussian answers on the same data may cost, for all of them to have
    `guarantee`."""
    if not guarantee.private or answers == 1:
        return guarantee
    mu = mu_for(guarantee.epsilon, guarantee.delta) / math.sqrt(answers)
    return replace(guarantee, epsilon=epsilon_of(mu, guarantee.delta))


def schedule_of(scenario: NewsScenario, num_users: int, *, passes: int = 0) -> Schedule:
    """`passes`, 0 for the variant's, or what `news.rounds` rounds come to, rounded up to whole
    ones: how often each user answers."""
    news = scenario.news
    in_rounds = of(scenario).in_rounds
    users = min(news.users_per_round or 64, num_users)
    a_pass = max(1, round(num_users / users))
    chosen = (
        math.ceil(news.rounds / a_pass)
        if news.rounds
        else passes or (in_rounds.passes if in_rounds else 1)
    )
    return Schedule(
        chosen, users, FedAdam(learning_rate=news.learning_rate or LEARNING_RATE, tau=1e-6)
    )
