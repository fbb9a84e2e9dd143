"""Attacks that fit a scenario of news: on what devices send in training, and on their questions to
serving."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fedrec.auditing import (
    attention_click,
    canaries,
    coupling,
    drawn_noise,
    label_probabilities,
    label_table,
    one_click,
    recovery,
)
from fedrec.auditing.finding import Effort, Finding, Recovery
from fedrec.auditing.uploads import Clients, clients_of, gradient_distance, told_labels
from fedrec.data.impressions import Impressions
from fedrec.errors import SettingsError
from fedrec.news import attention
from fedrec.news.central import CentralRecipe
from fedrec.news.local_update import Behind, Through
from fedrec.news.trained import Catalogue, topics_of
from fedrec.news.variant import BASIS, NEGATIVES, THETA, of, promised
from fedrec.privacy.accounting import epsilon_of, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import Event
from fedrec.privacy.selection import randomised_response, subset_selection
from fedrec.randomness import Streams
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.settings import NewsScenario


def news_findings(scenario: NewsScenario, effort: Effort) -> Iterator[Finding]:
    """All that fit the scenario's variant.

    Raises SettingsError on open categories, and what reading the data raises."""
    torch.set_num_threads(1)  # sums depend on their number, and uploads are compared bit for bit
    data = load_news(scenario)
    if scenario.news.open_categories:
        raise SettingsError(
            "the attacks exchange any click for any other, and open ones are not covered",
            "Audit without news.open_categories.",
        )
    catalogue = catalogue_of(scenario, data)
    attacks = (
        _in_rounds
        if of(scenario).in_rounds
        else {"reports": _additive, "sums": _central}.get(of(scenario).noise_on, _everything)
    )
    yield from attacks(scenario, catalogue, data.log.train, effort)


def _additive(
    scenario: NewsScenario, catalogue: Catalogue, train: Impressions, effort: Effort
) -> Iterator[Finding]:
    claim = promised(scenario)
    topics = topics_of(scenario, catalogue)
    streams = Streams(scenario.seed)
    H = scenario.news.history
    aims = recovery.targets(train, topics, history=H, users=effort.users, streams=streams)
    mu = mu_for(claim.epsilon, claim.delta)
    yield recovery.report_finding("additive", claim, topics, aims, mu=mu, streams=streams)
    yield coupling.report_finding("additive", claim, train, topics, history=H, streams=streams)
    yield label_probabilities.table_finding(
        "additive", subset_selection, claim, candidates=_usual(train)
    )
    if claim.private:
        shown = _usual(train)
        yield label_table.drawn_finding(
            "additive",
            subset_selection,
            claim,
            candidates=shown,
            draws=effort.draws,
            streams=streams,
        )
        yield drawn_noise.report_finding(claim, train, topics, history=H, streams=streams)
    yield one_click.report_finding(
        "one click: training",
        "additive",
        topics,
        claim,
        history=H,
        draws=effort.draws,
        streams=streams,
    )
    yield from _served_reports(scenario, catalogue, effort)


def _central(
    scenario: NewsScenario, catalogue: Catalogue, train: Impressions, effort: Effort
) -> Iterator[Finding]:
    summed = of(scenario).summed
    streams = Streams(scenario.seed)
    assert summed is not None
    recipe = summed.recipe(scenario, catalogue)
    if isinstance(recipe, CentralRecipe):
        topics = recipe.topics
        plan = recipe.plan
        shared = {"history": recipe.history, "draws": effort.draws, "streams": streams}
        yield from canaries.canaries(
            train,
            topics,
            catalogue.vectors,
            plan,
            recipe.settings,
            **shared,  # type: ignore[arg-type]
        )
    else:
        yield from canaries.summed_canaries(
            train,
            recipe,
            summed.steps(scenario),
            variant=scenario.news.variant,
            draws=effort.draws,
            streams=streams,
        )
    yield from _served_reports(scenario, catalogue, effort)


def _everything(
    scenario: NewsScenario, catalogue: Catalogue, train: Impressions, effort: Effort
) -> Iterator[Finding]:
    everything = Recovery(1.0, 0.0)
    yield Finding(
        "clicked news",
        scenario.news.variant,
        promised(scenario),
        math.inf,
        "exact",
        1.0,
        recovery=everything,
        note="all data is sent",
    )


def _in_rounds(
    scenario: NewsScenario, catalogue: Catalogue, train: Impressions, effort: Effort
) -> Iterator[Finding]:
    variant = scenario.news.variant
    streams = Streams(scenario.seed)
    clients = clients_of(scenario, catalogue, train)
    topics = topics_of(scenario, catalogue)
    aims = recovery.targets(
        train, topics, history=scenario.news.history, users=effort.users, streams=streams
    )
    yield recovery.gradient_finding(variant, clients, aims, draws=effort.uploads)
    if of(scenario).noise_on == "attention":
        yield coupling.gradient_finding(variant, clients, aims)
        yield from _labels(scenario, clients, train, effort)
        yield from _attention(scenario, clients, effort)
    if of(scenario).private and clients.claim.established and clients.claim.private:
        users = np.array([aim.user for aim in aims[:8]])
        yield drawn_noise.finding(variant, clients, users, rounds=effort.uploads)
    if of(scenario).noise_on == "gradients":
        histories = {aim.user: clients.with_history(aim.user, aim.decoy) for aim in aims}
        yield _exchanged("one history: gradients", clients, histories, clients.costs.history)
        labels = {aim.user: clients.with_labels(aim.user) for aim in aims}
        yield _exchanged("one label: gradients", clients, labels, clients.costs.labels)


def _exchanged(
    attack: str, clients: Clients, others: dict[int, Clients], paid: Sequence[Event]
) -> Finding:
    """All answers of a training, at one model: how far one user's bare gradients move, against the
    noise as declared."""
    mu = max(gradient_distance(clients, user, other) for user, other in others.items()) * math.sqrt(
        clients.passes
    )
    note = f"all clicks exchanged, noise as declared, {clients.passes} answers"
    measured = epsilon_of(mu, clients.claim.delta)
    return Finding(
        attack,
        "dp-fedrec",
        drawn_noise.charged(clients.claim, paid),
        measured,
        "exact",
        1.0,
        note=note,
    )


def _labels(
    scenario: NewsScenario, clients: Clients, train: Impressions, effort: Effort
) -> Iterator[Finding]:
    variant = scenario.news.variant
    claim = clients.claim
    candidates = _usual(train)
    if not claim.private:
        return
    if not claim.established:
        drawn: dict[str, Any] = {
            "draws": effort.draws,
            "streams": Streams(scenario.seed),
            "candidates": candidates,
        }
        yield from label_table.printed_findings(variant, claim, negatives=NEGATIVES, **drawn)
        return
    yield label_probabilities.table_finding(
        variant, randomised_response, claim, candidates=candidates
    )
    shown = [label_table.repeated_impression(click, candidates, effort.draws) for click in (0, 1)]
    # draws that have nothing to do with the first ones
    told = [
        told_labels(scenario, part, seed)
        for seed, part in zip((scenario.seed, scenario.seed + 1), shown, strict=True)
    ]
    yield drawn_noise.label_finding(variant, clients, told)


def _attention(scenario: NewsScenario, clients: Clients, effort: Effort) -> Iterator[Finding]:
    """One answer of training, by the plan of the devices, and one of serving at every finite
    epsilon, which is sound in both."""
    news = scenario.news
    streams = Streams(scenario.seed)
    shared: dict[str, Any] = {
        "basis": news.basis or BASIS,
        "draws": effort.draws,
        "streams": streams,
    }
    assert isinstance(clients.update, Behind | Through)
    if clients.claim.private and clients.update.plan is not None:
        yield attention_click.attention_finding(
            "one click: training", news.variant, clients.update.plan, **shared
        )
    for served in _serving(scenario):
        plan = attention.gaussian_plan(served, theta=news.clip or THETA, padding=news.padding)
        yield attention_click.attention_finding(
            f"one click: serving {served.epsilon:g}", news.variant, plan, **shared
        )


def _served_reports(
    scenario: NewsScenario, catalogue: Catalogue, effort: Effort
) -> Iterator[Finding]:
    topics = topics_of(scenario, catalogue)
    streams = Streams(scenario.seed)
    news = scenario.news
    for served in _serving(scenario):
        name = f"one click: serving {served.epsilon:g}"
        yield one_click.report_finding(
            name,
            news.variant,
            topics,
            served,
            history=news.history,
            draws=effort.draws,
            streams=streams,
        )


def _serving(scenario: NewsScenario) -> list[Guarantee]:
    delta = scenario.privacy.delta
    finite = [e for e in scenario.news.serving_epsilons if math.isfinite(e)]
    return [Guarantee(epsilon, delta, "click", "replace") for epsilon in finite]


def _usual(train: Impressions) -> int:
    """The most frequent number of candidates."""
    return int(np.bincount(np.diff(train.candidate_ptr)).argmax())
