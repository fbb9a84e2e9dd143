"""What a round's users send as printed, beside PrivateRec's Algorithms 2 and 3 read line by line in
NumPy: the upload is the gradient of that loss, by central differences."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.encoders.news_model import NewsModel
from fedrec.news import topics
from fedrec.news.attention import LaplaceAttention
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.local_update import Through
from fedrec.news.models import news_model
from fedrec.news.variant import rounds_of
from fedrec.privacy import laplace
from fedrec.randomness import Streams
from fedrec.settings import load

SHAPE = PlantedNewsShape(
    users=60, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)
USERS = np.arange(8)
ROUND = 1


def loss_of(model: NewsModel, through: Through, noise: np.ndarray) -> float:
    """Algorithms 2 and 3 as printed; news and user vectors are the encoders', whose own reading in
    NumPy is in test_news_models.py."""
    assert model.basis is not None
    assert through.plan is not None
    data = through.devices
    with torch.no_grad():
        news = model.encode_news(np.arange(model.news.anonymous))
        U = model.encode_users(news, torch.from_numpy(data.history[USERS].astype(np.int64)))
        V, u = news.numpy(), U.numpy()
        b = model.basis.vectors.numpy()
    total = []
    for k in USERS:
        exponents = b @ u[k] / np.sqrt(b.shape[1])
        alpha = np.exp(exponents - exponents.max())
        alpha /= alpha.sum()  # Alg. 2 l. 7
        alpha = alpha * min(1.0, through.plan.theta / np.linalg.norm(alpha))  # l. 8
        alpha = np.maximum(alpha + noise[k], 0)  # l. 9, ReLU in training
        alpha = alpha / alpha.sum() if alpha.sum() > 0 else np.full(len(b), 1 / len(b))
        rebuilt = alpha @ b  # Alg. 1 l. 3
        for row in data.rows_of(np.array([k])):
            shown = data.candidates[row][data.candidates[row] >= 0]
            s = V[shown] @ rebuilt  # l. 20, of the reconstructed vector
            label = int(data.labels[row].argmax())
            total.append(np.log(np.exp(s).sum()) - s[label])
    return float(np.mean(total))


def test_an_upload_as_printed_is_the_gradient_of_algorithm_3_read_line_by_line() -> None:
    planted = planted_news(SHAPE, seed=2)
    vectors = topics.public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    keys = (
        "recipe=privaterec",
        "data.format=planted-news",
        "news.variant=printed",
        "news.model=plm-nr",
        "news.attention_noise=laplace",
        "news.history=12",
        "news.clip=0.3",  # shorter than any five shares of 1: every user is clipped
        "privacy.epsilon=10",
        "privacy.noise=seeded",
    )
    scenario = load(None, list(keys))
    model = news_model(scenario, planted.news, vectors, basis=5)
    devices = DeviceNoise.numbered(Streams(3), 60)
    through = rounds_of(scenario).device(scenario, planted.log.train, 1, devices)
    assert isinstance(through, Through)
    plan = through.plan
    assert isinstance(plan, LaplaceAttention)
    noise = np.array(
        [
            laplace.sample(5, parameter=plan.parameter / plan.step, key=key)
            for key in devices.keys(USERS, "news-attention", round=ROUND)
        ]
    )
    noise = noise * plan.step
    assert np.abs(noise).max() > 0.1, "noise is seen"
    sent, said = through(model, USERS, ROUND)

    double = copy.deepcopy(model).double()
    parameters = list(double.parameters())
    start = torch.nn.utils.parameters_to_vector(parameters).detach().clone()
    assert loss_of(double, through, noise) == pytest.approx(said, rel=1e-5)
    sizes = np.cumsum([0, *(p.numel() for p in parameters)])
    rng = np.random.default_rng(0)
    steep = 0.0
    for low, high in itertools.pairwise(sizes):  # every table of numbers apart
        direction = np.zeros(sizes[-1])
        direction[low:high] = rng.standard_normal(high - low)
        ends = []
        for sign in (1, -1):
            moved = start + sign * 1e-5 * torch.from_numpy(direction)
            torch.nn.utils.vector_to_parameters(moved, parameters)
            ends.append(loss_of(double, through, noise))
        slope = (ends[0] - ends[1]) / 2e-5
        steep = max(steep, abs(slope))
        assert slope == pytest.approx(float(sent @ direction), rel=1e-3, abs=2e-5)
    assert steep > 0.01
