"""Training of a published news model in rounds (Alg. 3): every user answers once a pass.

`local` and `dp-fedrec` divide mu^2 evenly over a user's answers, which compose exactly. Each
client's ledger is charged for all of them before the first round, and refuses. The paper charges
each round alone; `printed` does so too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedrec.encoders.news_model import NewsModel
from fedrec.news import rounds
from fedrec.news.checkpoints import Kept
from fedrec.news.clients import NewsClients
from fedrec.news.model_recommender import ModelRecommender
from fedrec.news.models import news_model
from fedrec.news.trained import Catalogue, Progress, Sent, TrainedNews
from fedrec.news.variant import (
    BASIS,
    THETA,
    VECTOR_CLIP,
    costs_of,
    of,
    promise,
    promised,
    rounds_of,
    schedule_of,
)
from fedrec.privacy.click_accounting import dearest_click
from fedrec.randomness import Streams
from fedrec.settings import NewsScenario


def in_rounds(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """Train over clients.

    Raises BudgetExceededError where the costs pass the promise, before anybody is asked."""
    form = rounds_of(scenario)
    schedule = schedule_of(scenario, clients.num_users)
    model = news_model(scenario, catalogue.news, catalogue.vectors, basis=form.basis(scenario))
    guarantee = promise(scenario)
    costs = costs_of(scenario, schedule.passes)
    whole = promised(scenario)
    if guarantee.established:
        spent = costs.charged(whole)
    else:  # what rounds that are charged alone cost together
        spent = math.inf if of(scenario).not_established else dearest_click([costs], whole)
    course = rounds.Course.begin(model.parameters_vector())
    streams = Streams(scenario.seed)
    for done in rounds.train(
        clients.step,
        model.parameters_vector(),
        clients.num_users,
        schedule,
        streams=streams,
        kept=kept,
    ):
        course = done.course
        loss = f": loss {done.loss:.4f}" if done.loss == done.loss else ""
        yield Progress(done.round, done.rounds, f"round {done.round}/{done.rounds}{loss}")
    parameters = course.parameters.astype(np.float32)
    model.load_vector(parameters)
    (words, std), *more = form.sent(scenario, schedule.passes)
    attended = f"{scenario.news.basis or BASIS} numbers"
    bytes_each = 4.0 * len(parameters) * schedule.passes
    gradient = Sent(
        "gradient", f"{len(parameters):,} numbers, {schedule.passes} times", words, bytes_each, std
    )
    sent = (gradient, *(Sent("attention", attended, said, 0.0, noise) for said, noise in more))
    recommender = recommender_of(scenario, model)
    yield TrainedNews(
        recommender, guarantee, spent, schedule.passes, sent, bytes_each, {"parameters": parameters}
    )


def recommender_of(scenario: NewsScenario, model: NewsModel) -> ModelRecommender:
    """What serves a trained model."""
    news = scenario.news
    return ModelRecommender(
        model, news.history, news.clip or THETA, news.padding, VECTOR_CLIP, news.serving_noise
    )
