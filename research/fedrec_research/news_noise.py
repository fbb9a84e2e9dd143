"""PrivateRec's Table 2 beside what decides it: three news models, trained as printed and with one
departure at a time, served with three kinds of noise.

    fedrec research measure news-noise --seeds 3
    fedrec research measure news-noise --data PATH/ml-1m --users 1280 --seeds 3

With a folder of films (titles and plots) or of MIND, NRMS and NAML start from GloVe and plm-nr has
MiniLM, both out of the package registry. On planted news, whose words mean nothing elsewhere, all
start from the texts. Every row is a training of its own, kept: what is stopped goes on.

Order of candidates depends on score differences s = u'(r - r') alone. Noise of std sigma on each of
the d numbers of a vector clipped to theta changes s by sigma |r - r'|, whatever d is: signal over
noise is cos(u, r - r') theta / sigma. Noise on attention changes s by sigma |b'(r - r')|, and what
is personal in s is (alpha - mean alpha)' b (r - r'): attention's mean tells nothing of a person,
and takes most of theta.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from fedrec.data.impressions import Impressions
from fedrec.encoders.news import Dropout
from fedrec.errors import SettingsError
from fedrec.evaluation.impressions import evaluate_impressions, history_swap
from fedrec.news import attention
from fedrec.news.local_clients import LocalClients
from fedrec.news.local_update import recentre, user_vectors
from fedrec.news.model_recommender import ModelRecommender
from fedrec.news.trained import TrainedNews
from fedrec.news.variant import train_news
from fedrec.randomness import Streams
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.run.news_run import serving_guarantee
from fedrec.settings import load
from fedrec_research.trials import Asked, Row, trial
from fedrec_research.weights import Weights, glove, minilm

EPSILONS = (math.inf, 10.0, 5.0, 1.0)
NOISES: tuple[attention.ServingNoise, ...] = ("gaussian", "laplace", "laplace-printed")
RELU = ", ReLU"
"""Ends the name of noise that is renormalised by ReLU, as in training, and not by SoftPlus."""
_FEDREC = ("news.variant=fedrec", "privacy.epsilon=inf")
_PRINTED = (
    "news.variant=printed",
    "privacy.epsilon=10",
    "news.attention_noise=laplace",
    "news.padding=0.5",
)
WAYS: Mapping[str, tuple[str, ...]] = {
    "FedRec": _FEDREC,
    "as printed": _PRINTED,
    "made sound": (*_PRINTED, "news.variant=local", "news.padding=0"),
    "published sizes": (*_PRINTED, "news.sizes=published"),
    "Gaussian in training": (*_PRINTED, "news.attention_noise=gaussian"),
    "no padding": (*_PRINTED, "news.padding=0"),
    "epsilon of all rounds": (*_PRINTED, "privacy.epsilon=3.333333"),
    "no language model": _PRINTED,
    "no noise in training": (*_PRINTED, "privacy.epsilon=inf"),
    "FedRec, published sizes": (*_FEDREC, "news.sizes=published"),
    "FedRec, no language model": _FEDREC,
}
"""What is trained, at width 64. FedRec is served with its whole user vector noised; "made sound" is
`local`; those after it are `as printed`, or FedRec, but for one thing. Three passes over all
readers, each charged alone in the paper: with "epsilon of all rounds" together they cost 10."""
TABLE = ("FedRec", "as printed")
"""Those that every model is asked for, with every seed; the others are of plm-nr, with the first
unless `only` names them."""
MODELS = ("nrms", "naml", "plm-nr")


def run(asked: Asked) -> Row:
    """Rows on planted news, on films with titles and plots (`--data ml-1m`) or on MIND, by news
    model, way and noise; users: so many readers train, 0 for all."""
    if unknown := set(asked.only) - set(WAYS) - set(MODELS):
        raise SettingsError(f"there is no way {min(unknown)!r}", f"Use: {'; '.join(WAYS)}.")
    shape = ("data.preset=small", "news.rounds=1") if asked.quick else ("data.preset=demo",)
    planted = ("data.format=planted-news", *shape)
    keys = (*(_keys_of(Path(asked.path)) if asked.data else planted), *asked.overrides)
    pairs = _chosen(asked)
    readers = (asked.users or (0,))[0]
    with ExitStack() as unpacked:
        weights = dict[str, Weights]()
        if asked.data and {model for model, _ in pairs} & {"nrms", "naml"}:
            weights["word_vectors"] = unpacked.enter_context(glove())
        if asked.data and "plm-nr" in {model for model, _ in pairs}:
            weights["language_model"] = unpacked.enter_context(minilm())
        rows = asked.rows(
            {
                (model, way, seed): trial(
                    row, keys, model, WAYS[way], readers, _of(model, way, weights), seed
                )
                for seed in asked.seeds_of((1,))
                for model, way in pairs
                if seed == 1 or way in TABLE or asked.only
            }
        )
    found = {
        pair: [one for (model, way, _), one in rows.items() if (model, way) == pair]
        for pair in pairs
    }
    said = {"readers": readers} if readers else {}
    return {
        "keys": list(asked.overrides),
        **said,
        "seconds": sum(one["seconds"] for one in rows.values()),
        "rows": [
            {"model": model, "way": way, "noise": noise, **_joined(each, noise)}
            for (model, way), each in found.items()
            for noise in each[0]["served"]
        ],
    }


def _chosen(asked: Asked) -> list[tuple[str, str]]:
    """Pairs of model and way: of the table all models, of the departures plm-nr."""
    models = [model for model in MODELS if model in asked.only]
    ways = [way for way in WAYS if way in asked.only]
    if asked.quick and not asked.only:
        return [("nrms", "FedRec"), ("nrms", "as printed")]
    return [
        (model, way)
        for way, model in itertools.product(ways or WAYS, models or MODELS)
        if way in TABLE or models or model == "plm-nr"
    ]


def _of(model: str, way: str, weights: Mapping[str, Weights]) -> tuple[str, Weights] | None:
    key = "language_model" if model == "plm-nr" else "word_vectors"
    return (key, weights[key]) if key in weights and "no language model" not in way else None


def _keys_of(folder: Path) -> tuple[str, ...]:
    """Keys of the scenario that reads a folder of films, or of MIND."""
    films = (folder / "metadata.jsonl").exists()
    part = () if films else ("data.unknown_news=add", "split.kind=held-out-users")
    return (f"data.format={'click-log' if films else 'mind'}", f"data.path={folder}", *part)


def _joined(each: list[Row], noise: str) -> Row:
    """What several seeds found: a list for each number."""
    served = [row["served"][noise] | row["beside"] for row in each]
    return {name: [round(one[name], 4) for one in served] for name in served[0]}


def row(
    keys: tuple[str, ...],
    model: str,
    way: tuple[str, ...],
    readers: int,
    weights: tuple[str, Weights] | None,
    seed: int,
) -> Row:
    """One training. served: by noise, AUC by serving epsilon, and at epsilon 10 the median signal
    over noise of a score difference; of attention, which SoftPlus renormalises (Alg. 2 l. 10), also
    with ReLU instead, and without noise with SoftPlus. beside: AUC of popularity, and of exchanged
    histories without noise. keys, way: of the scenario."""
    started = time.process_time()
    torch.set_num_threads(1)
    said = [
        "recipe=privaterec",
        "privacy.noise=seeded",
        f"seed={seed}",
        f"news.model={model}",
    ]
    if weights:
        key, given = weights
        said += [f"news.{key}={given.path}", f"run.directory={given.path.parent}/runs"]
    scenario = load(None, [*said, *way, *keys])
    data = load_news(scenario)
    train = data.log.train
    if readers:
        train = train.users_subset(np.arange(min(readers, train.num_users)))
    test = data.log.test
    catalogue = catalogue_of(scenario, data)
    *_, trained = train_news(scenario, catalogue, LocalClients(scenario, catalogue, train))
    assert isinstance(trained, TrainedNews)
    served = trained.recommender
    assert isinstance(served, ModelRecommender)
    with torch.no_grad():
        served.model.news = _Encoded(served.model.encode_news(np.arange(train.num_news + 1)))
    counts = np.bincount(train.candidates[train.clicked], minlength=train.num_news)
    privacy = scenario.privacy
    streams = Streams(scenario.seed)
    bare = serving_guarantee(math.inf, privacy.delta)
    unnoised = streams.key("serving/inf")
    swapped = history_swap(
        lambda asked: served.serve(asked, guarantee=bare, key=unnoised),
        test,
        rng=streams.numpy("news-history-swap"),
    )
    popular = evaluate_impressions(counts[test.candidates].astype(np.float32), test).auc
    found = {f"{noise}": _served(served, test, noise, privacy.delta, streams) for noise in NOISES}
    if served.model.basis:
        with patch.object(attention, "renormalise_softplus", attention.renormalise_relu):
            for noise in NOISES:
                found[noise + RELU] = _served(served, test, noise, privacy.delta, streams)
        with patch.object(attention, "renormalise_relu", attention.renormalise_softplus):
            scores = served.serve(test, guarantee=bare, key=unnoised)
        found["gaussian"]["SoftPlus at inf"] = float(evaluate_impressions(scores, test).auc)
    return {
        "served": found,
        "beside": {"popularity": float(popular), "exchanged histories": float(swapped.auc)},
        "seconds": time.process_time() - started,
    }


class _Encoded(nn.Module):
    """A news encoder that is trained no more: (m + 1, d) vectors, the anonymous news last."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors
        self.anonymous = len(vectors) - 1
        self.width = vectors.shape[1]
        self.first = np.arange(len(vectors))

    def encode(self, items: Tensor, dropout: Dropout | None = None) -> Tensor:
        """(r, d) vectors of the news of rows `items`."""
        return self.vectors[items]


def _served(
    model: ModelRecommender,
    test: Impressions,
    noise: attention.ServingNoise,
    delta: float,
    streams: Streams,
) -> Row:
    one = replace(model, noise=noise)
    found: dict[str, Any] = {}
    for epsilon in EPSILONS:
        scores = one.serve(
            test,
            guarantee=serving_guarantee(epsilon, delta),
            key=streams.key(f"serving/{epsilon:g}"),
        )
        found[f"auc at {epsilon:g}"] = float(evaluate_impressions(scores, test).auc)
    return found | {"signal over noise at 10": _signal_over_noise(delta, one, test)}


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
