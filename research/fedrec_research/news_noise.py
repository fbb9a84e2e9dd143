"""Noise of one served answer beside what it hides, for the two ways of PrivateRec: attention over a
basis, and the whole user vector of its rival.

    fedrec research measure news-noise
    fedrec research measure news-noise --data PATH/ml-1m --seeds 3 --only plm-nr --only "as printed"

Order of candidates depends on score differences s = u'(r - r') alone. Noise of std sigma on each of
the d numbers of a vector clipped to theta changes s by sigma |r - r'|, whatever d is: signal over
noise is cos(u, r - r') theta / sigma. Noise on attention changes s by sigma |b'(r - r')|, and what
is personal in s is (alpha - mean alpha)' b (r - r'): attention's mean tells nothing of a person,
and takes most of theta.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrec.data.impressions import Impressions
from fedrec.errors import SettingsError
from fedrec.evaluation.impressions import evaluate_impressions, history_swap
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
from fedrec_research.weights import minilm

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
    "as printed": (
        "news.variant=printed",
        "privacy.epsilon=10",
        "news.attention_noise=laplace",
        "news.sizes=published",
        "news.padding=0.5",
    ),
    "local": ("news.variant=local", "privacy.epsilon=10"),
}
"""What is trained, one thing after another."""
MODELS = ("nrms", "naml", "plm-nr")


def run(asked: Asked) -> Row:
    """Rows on planted news, on films with titles and plots (`--data ml-1m`) or on MIND, by news
    model and seed; plm-nr is given MiniLM where overrides name no language model."""
    shape = ("data.preset=small", "news.rounds=1") if asked.quick else ("data.preset=demo",)
    planted = ("data.format=planted-news", *shape)
    keys = (*(_keys_of(Path(asked.path)) if asked.data else planted), *asked.overrides)
    if unknown := set(asked.only) - set(WAYS) - set(MODELS):
        raise SettingsError(f"there is no way {min(unknown)!r}", f"Use: {'; '.join(WAYS)}.")
    ways = [way for way in WAYS if way in asked.only] or list(WAYS)[: 2 if asked.quick else None]
    models = [model for model in MODELS if model in asked.only] or ["nrms"]
    named = any(key.startswith("news.language_model=") for key in keys)
    seeds = range(1, (asked.seeds or 1) + 1)
    found: list[Row] = []
    with minilm() if "plm-nr" in models and not named else nullcontext() as folder:
        for model, way in itertools.product(models, ways):
            more = [f"news.model={model}"]
            if model == "plm-nr" and folder is not None:
                more.append(f"news.language_model={folder}")
            each = (rows((*keys, *more, f"seed={seed}"), way) for seed in seeds)
            named_row = {"model": model, "way": way}
            found += [named_row | _joined(one) for one in zip(*each, strict=True)]
    return {"keys": list(keys), "rows": found}


def _keys_of(folder: Path) -> tuple[str, ...]:
    """Keys of the scenario that reads a folder of films, or of MIND."""
    films = (folder / "metadata.jsonl").exists()
    part = () if films else ("data.unknown_news=add", "split.kind=held-out-users")
    return (f"data.format={'click-log' if films else 'mind'}", f"data.path={folder}", *part)


def _joined(each: Sequence[Row]) -> Row:
    """Rows of several seeds: numbers become lists."""
    return {
        name: value if isinstance(value, str) else [round(row[name], 4) for row in each]
        for name, value in each[0].items()
    }


def rows(keys: tuple[str, ...], way: str) -> list[Row]:
    """A row for each kind of serving noise of one training: AUC by serving epsilon, and at epsilon
    10 the median signal over noise of a score difference; popularity and exchanged histories
    without noise. keys: of the scenario."""
    torch.set_num_threads(1)
    scenario = load(None, ["recipe=privaterec", "privacy.noise=seeded", *WAYS[way], *keys])
    data = load_news(scenario)
    catalogue = catalogue_of(scenario, data)
    fleet = LocalClients(scenario, catalogue, data.log.train)
    *_, trained = train_news(scenario, catalogue, fleet)
    assert isinstance(trained, TrainedNews)
    served = trained.recommender
    assert isinstance(served, ModelRecommender)
    train, test = data.log.train, data.log.test
    counts = np.bincount(train.candidates[train.clicked], minlength=train.num_news)
    bare = serving_guarantee(math.inf, scenario.privacy.delta)
    key = Streams(scenario.seed).key("serving/inf")
    swapped = history_swap(
        lambda asked: served.serve(asked, guarantee=bare, key=key),
        test,
        rng=Streams(scenario.seed).numpy("news-history-swap"),
    )
    beside = {
        "popularity": evaluate_impressions(counts[test.candidates].astype(np.float32), test).auc,
        "exchanged histories": swapped.auc,
    }
    return [{"noise": noise} | _served(scenario, served, test, noise) | beside for noise in NOISES]


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
