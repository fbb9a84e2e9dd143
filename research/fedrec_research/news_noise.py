"""Noise of one served answer beside what it hides, for the two ways of PrivateRec: attention over a
basis, and the whole user vector of its rival.

    fedrec research measure news-noise

Order of candidates depends on score differences s = u'(r - r') alone. Noise of std sigma on each of
the d numbers of a vector clipped to theta changes s by sigma |r - r'|, whatever d is: signal over
noise is cos(u, r - r') theta / sigma. Noise on attention changes s by sigma |b'(r - r')|, and what
is personal in s is (alpha - mean alpha)' b (r - r'): attention's mean tells nothing of a person,
and takes most of theta.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedrec.data.impressions import Impressions
from fedrec.errors import SettingsError
from fedrec.evaluation.impressions import evaluate_impressions
from fedrec.news import attention
from fedrec.news.local_clients import LocalClients
from fedrec.news.local_update import recentre, user_vectors
from fedrec.news.models import ModelRecommender
from fedrec.news.trained import TrainedNews
from fedrec.news.variant import train_news
from fedrec.randomness import Streams
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.run.news_run import serving_guarantee
from fedrec.settings import Scenario, load
from fedrec_research.trials import Asked, Row

EPSILONS = (math.inf, 10.0, 5.0, 1.0)
NOISES: tuple[attention.ServingNoise, ...] = ("gaussian", "laplace", "laplace-printed")
WAYS: Mapping[str, tuple[str, ...]] = {
    "FedRec": ("news.variant=fedrec", "privacy.epsilon=inf"),
    "printed": ("news.variant=printed", "privacy.epsilon=10"),
    "printed, Laplace": (
        "news.variant=printed",
        "privacy.epsilon=10",
        "news.attention_noise=laplace",
    ),
    "printed, no noise": ("news.variant=printed", "privacy.epsilon=inf"),
    "printed, public start": (
        "news.variant=printed",
        "privacy.epsilon=10",
        'news.printed=["public-start"]',
    ),
    "local": ("news.variant=local", "privacy.epsilon=10"),
}
"""What is trained, one thing after another."""


def run(asked: Asked) -> Row:
    """Rows on planted news, or on what overrides name."""
    sizes = ("data.preset=small", "news.rounds=1") if asked.quick else ("data.preset=demo",)
    keys = (*sizes, *(asked.overrides or ()))
    ways = (asked.only or tuple(WAYS))[: 2 if asked.quick else None]
    if unknown := set(ways) - set(WAYS):
        raise SettingsError(f"there is no way {min(unknown)!r}", f"Use: {'; '.join(WAYS)}.")
    return {"rows": list(rows(keys, tuple(ways)))}


def rows(keys: tuple[str, ...], ways: tuple[str, ...]) -> Iterator[Row]:
    """A row for each way and kind of serving noise: AUC by serving epsilon, and at epsilon 10 the
    median signal over noise of a score difference. keys: of all scenarios."""
    torch.set_num_threads(1)
    for name in ways:
        common = ("recipe=privaterec", "data.format=planted-news", "privacy.noise=seeded")
        scenario = load(None, [*common, *keys, *WAYS[name]])
        data = load_news(scenario)
        catalogue = catalogue_of(scenario, data)
        fleet = LocalClients(scenario, catalogue, data.log.train)
        *_, trained = train_news(scenario, catalogue, fleet)
        assert isinstance(trained, TrainedNews)
        served = trained.recommender
        assert isinstance(served, ModelRecommender)
        for noise in NOISES:
            yield {"way": name, "noise": noise} | _served(scenario, served, data.log.test, noise)


def _served(
    scenario: Scenario, model: ModelRecommender, test: Impressions, noise: attention.ServingNoise
) -> Row:
    one = replace(model, noise=noise)
    found: dict[str, Any] = {}
    for epsilon in EPSILONS:
        scores = one.serve(
            test,
            guarantee=serving_guarantee(epsilon, scenario.privacy.delta),
            key=Streams(scenario.seed).key(f"serving/{epsilon:g}"),
        )
        found[f"auc at {epsilon:g}"] = float(evaluate_impressions(scores, test).auc)
    return found | {
        "signal over noise at 10": _signal_over_noise(scenario.privacy.delta, one, test)
    }


def _signal_over_noise(delta: float, served: ModelRecommender, test: Impressions) -> float:
    """Median over impressions of |personal part of s| / std of its noise, for the click and the
    first other candidate."""
    model = served.model
    recentre(model)
    with torch.no_grad():
        V = model.encode_news(np.arange(test.num_news)).double().numpy()
        U = user_vectors(model, test.last_clicks(served.history)).double()
        clicks = np.array([a + int(np.argmax(test.clicked[a:b])) for a, b in _pairs(test)])
        others = np.array([a + int(np.argmin(test.clicked[a:b])) for a, b in _pairs(test)])
        differences = V[test.candidates[clicks]] - V[test.candidates[others]]
        guarantee = serving_guarantee(10.0, delta)
        if model.basis is None:
            coordinates = U.numpy()
            order = 1 if served.noise == "laplace" else 2
            lengths = np.linalg.norm(coordinates, order, axis=1, keepdims=True)
            coordinates = coordinates / lengths  # theta is 1
            std = 2.0 / 2.0004 if served.noise == "gaussian" else math.sqrt(2) * 2 / 10
            basis = np.eye(coordinates.shape[1])
        else:
            basis = model.basis.vectors.double().numpy()
            alpha = model.basis.attention(U.float()).double().numpy()
            plan = attention.serving_plan(
                guarantee, served.noise, theta=served.theta, basis=len(basis), padding=0.0
            )
            coordinates = attention.clip(alpha, plan)
            std = plan.noise_std
    personal = coordinates - coordinates.mean(0)
    projected = differences @ basis.T
    signal = np.abs(np.einsum("nb,nb->n", personal[test.users], projected))
    return float(np.median(signal / (std * np.linalg.norm(projected, axis=1) + 1e-30)))


def _pairs(test: Impressions) -> Iterator[tuple[int, int]]:
    yield from zip(test.candidate_ptr[:-1].tolist(), test.candidate_ptr[1:].tolist(), strict=True)
