"""A planted user in central training: in or out of every noised sum of a run.

Two canaries. "length" is a real client, the one with the longest reports of those tried, made by
the code of the devices. "ratio test" is planted: a client that breaks its word as far as the
aggregator's check allows, and puts the whole radius of every report on one number, so that a run
costs a few draws and the noise is seen many thousand times. `replays` has the score and the noise.

The models that questions are made of are those of one run; any public model would do, since each
release is bounded at every one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedrec.auditing.finding import Finding
from fedrec.auditing.replays import Exposure, drawn_finding, exact_finding, exact_mu, views
from fedrec.data.impressions import Impressions
from fedrec.federation.messages import ClientStep, Question, Recipe, Reports
from fedrec.federation.messages import train as rounds_of
from fedrec.federation.reports import ExactSums
from fedrec.in_process import Loopback
from fedrec.news import central, central_client
from fedrec.news.central import CentralModel, CentralSettings
from fedrec.news.central_client import Users
from fedrec.privacy import bounded_mean
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Streams

Asked = tuple[Question, CentralModel | None]
"""A question, and the model its reports are gradients at; None for the population."""

_TRIED = 6
"""Users with the most events, who move the sums most: each is left out of all sums once."""


def canaries(
    data: Impressions,
    topics: TopicTable,
    vectors: npt.NDArray[np.floating],
    plan: Plan,
    settings: CentralSettings,
    *,
    history: int,
    draws: int,
    streams: Streams,
) -> tuple[Finding, ...]:
    """Train once, and attack what was asked. See `attacked`."""
    if not plan.guarantee.private:
        return (
            Finding("canary", "central", plan.guarantee, math.inf, "exact", 1.0, note="no noise"),
        )
    done = central.train(data, topics, vectors, plan, settings, history=history, noise=streams)
    return attacked(
        [step.model for step in done], data, topics, plan, settings, draws=draws, streams=streams
    )


def summed_canaries(
    data: Impressions,
    recipe: Recipe,
    steps: Mapping[str, ClientStep],
    *,
    variant: str,
    draws: int,
    streams: Streams,
) -> tuple[Finding, ...]:
    """Attack any variant whose reports an aggregator sums: a client's reports are made by its
    steps. The canaries tried are the users with most impressions."""
    plan = recipe.plan
    questions = list[Question]()
    if not plan.guarantee.private:
        return (
            Finding("canary", variant, plan.guarantee, math.inf, "exact", 1.0, note="no noise"),
        )
    link = Loopback(data, steps, plan, streams, Ledger(plan.guarantee))
    for answered in rounds_of(recipe, link, recipe.begin()):
        questions.append(answered.question)
    sums = [_sums(q, steps[q.step](q, data)) for q in questions]

    def left_out(canary: int) -> list[Exposure]:
        own = data.users_subset(np.array([canary]))
        alone = [_sums(q, steps[q.step](q, own)) for q in questions]
        return [
            Exposure(q, tuple(s - a for s, a in zip(both, one, strict=True)), both)
            for q, both, one in zip(questions, sums, alone, strict=True)
        ]

    busiest = np.argsort(-np.bincount(data.users, minlength=data.num_users), kind="stable")
    each = [left_out(int(canary)) for canary in busiest[:_TRIED]]
    return _findings(each, plan, variant, draws=draws, streams=streams)


def attacked(
    models: Sequence[CentralModel],
    data: Impressions,
    topics: TopicTable,
    plan: Plan,
    settings: CentralSettings,
    *,
    draws: int,
    streams: Streams,
) -> tuple[Finding, ...]:
    """A real client's reports against the declared noise, and `draws` runs with and without a
    planted one."""
    rounds = asked(models)
    each = [
        exposed(data, topics, rounds, settings, canary, models[0].history)
        for canary in _candidates(data, topics, models[0])
    ]
    return _findings(each, plan, "central", draws=draws, streams=streams)


def _findings(
    each: Sequence[list[Exposure]], plan: Plan, variant: str, *, draws: int, streams: Streams
) -> tuple[Finding, ...]:
    worst = max(each, key=lambda found: exact_mu(found, plan))
    found = list[Finding]()
    replayed = [planted(each) for each in worst]
    for view in views(plan):
        found.append(exact_finding(f"canary: length{view.name}", variant, worst, plan, view))
        found.append(
            drawn_finding(
                f"canary: ratio test{view.name}",
                variant,
                replayed,
                plan,
                view,
                draws=draws,
                streams=streams,
            )
        )
    return tuple(found)


def asked(models: Sequence[CentralModel]) -> list[Asked]:
    """Every question of a run that made `models`, each with the model after the round before (the
    first twice)."""
    rows, width = models[0].W.shape
    gradients = [
        (central_client.gradient_question(t, rows, width), models[max(t - 2, 0)])
        for t in range(1, len(models) + 1)
    ]
    return [(central_client.population_question(rows - 1), None), *gradients]


def exposed(
    data: Impressions,
    topics: TopicTable,
    rounds: Sequence[Asked],
    settings: CentralSettings,
    canary: int,
    history: int,
) -> list[Exposure]:
    """Sums of every round over all users, and over all but the canary."""
    rest = data.users_subset(np.delete(np.arange(data.num_users), canary))
    both = [
        Users(bounded_mean.coefficients(part.last_clicks(history), topics), part)
        for part in (rest, data)
    ]
    found = list[Exposure]()
    for question, model in rounds:
        without, inside = (_sums(question, reports_of(users, model, settings)) for users in both)
        found.append(Exposure(question, without, inside))
    return found


def planted(exposure: Exposure) -> Exposure:
    """Return the same sums with a canary of exactly the radius, all of it on the first number of
    each release."""
    inside = [sums.copy() for sums in exposure.without]
    first = 0
    for spec in exposure.question.releases:
        inside[first][0, 0] += int(spec.radius / spec.blocks[0].step)
        first += len(spec.blocks)
    return replace(exposure, inside=tuple(inside))


def reports_of(users: Users, model: CentralModel | None, settings: CentralSettings) -> Reports:
    """What the clients send."""
    if model is None:
        return central_client.population_reports(users)
    return central_client.gradient_reports(
        users, model.whitening, model.W, model.items, clip=settings.clip
    )


def _sums(question: Question, reports: Reports) -> tuple[npt.NDArray[np.int64], ...]:
    sums = ExactSums(question.blocks)
    sums.add(reports)
    return sums.blocks


def _candidates(data: Impressions, topics: TopicTable, model: CentralModel) -> list[int]:
    """The users with the largest gradients at one model: they stay at the clip longest."""
    U = (
        model.whitening(bounded_mean.coefficients(data.last_clicks(model.history), topics))
        @ model.W
    )
    lengths = np.linalg.norm(central_client.user_gradients(U, data, model.items), axis=1)
    return np.argsort(-lengths, kind="stable")[:_TRIED].tolist()  # type: ignore[no-any-return]
