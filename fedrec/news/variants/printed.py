"""`printed`: the paper to the letter, but for l. 20, whose raw u would leave the mechanism unused.
NOT ESTABLISHED."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedrec.data.impressions import Impressions
from fedrec.news import attention, labels
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.variant import BASIS, ENCODER, NEGATIVES, THETA, InRounds, NewsVariant, promised
from fedrec.news.variants import fedrec as bare
from fedrec.news.variants import in_rounds
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.local_update import Devices, Through


def device(scenario: NewsScenario, data: Impressions, passes: int, noise: DeviceNoise) -> Through:
    """Noise in the forward pass only."""
    from fedrec.encoders.news_model import relu_share, softplus_share
    from fedrec.news.local_update import Through
    from fedrec.news.variants.local import randomised_devices

    plan: attention.Plan | None = None
    each = promised(scenario)
    theta = scenario.news.clip or THETA
    padding = scenario.news.padding
    if each.private and scenario.news.attention_noise == "laplace":
        plan = attention.laplace_plan_as_printed(
            each, theta=theta, basis=scenario.news.basis or BASIS, padding=padding
        )
    elif each.private:
        plan = attention.gaussian_plan_as_printed(each, theta=theta, padding=padding)
    chosen = scenario.news.printed
    if "own-labels" in chosen and math.isfinite(scenario.privacy.epsilon):
        devices = randomised_devices(data, scenario, noise)
    else:
        devices = as_printed_devices(data, scenario, noise=noise)
    renormalise = softplus_share if "softplus" in chosen else relu_share
    return Through(devices, plan, noise, renormalise, raw="raw-score" in chosen)


def as_printed_devices(data: Impressions, scenario: NewsScenario, *, noise: DeviceNoise) -> Devices:
    """Alg. 3 l. 16-18: k negatives first, then the label permuted among the k + 1. Impressions that
    show no k others are left out."""
    from fedrec.news.local_update import Devices

    data = data.select(np.flatnonzero(np.diff(data.candidate_ptr) > NEGATIVES))
    plain = Devices.of(data, history=scenario.news.history, labels=None)
    epsilon = scenario.privacy.epsilon
    if not math.isfinite(epsilon):
        return plain
    places = np.zeros((len(data), NEGATIVES + 1), np.int64)
    for user, rows, mine in data.by_user():
        places[rows], _ = labels.as_printed(
            mine, epsilon=epsilon, negatives=NEGATIVES, key=noise.key(user, "news-labels")
        )
    candidates = np.take_along_axis(plain.candidates, places, 1)
    return replace(
        plain,
        candidates=candidates,
        labels=np.arange(places.shape[1]) == np.zeros((len(places), 1)),
    )


def sent(scenario: NewsScenario, passes: int) -> tuple[tuple[str, float], ...]:
    """A gradient of everything."""
    return (("the gradient of everything, noised in the forward pass only", 0.0),)


VARIANT = NewsVariant(
    name="printed",
    train=in_rounds,
    noise_on="attention",
    costs=bare.everything,
    in_rounds=InRounds(3, lambda s: s.news.basis or BASIS, device, sent, random_basis=True),
    not_established=(
        "as printed: the gradient multiplies activations without noise and names the clicked news"
    ),
    keys=ENCODER | {"attention_noise", "padding", "printed"},
)
