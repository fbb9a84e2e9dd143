"""`dp-fedrec`: the paper's baseline.

Noise on the whole gradient, on the device: sound, at sensitivity 2 theta."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.data.impressions import Impressions
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.variant import (
    ENCODER,
    GRADIENT_CLIP,
    NEGATIVES,
    InRounds,
    NewsVariant,
    per_answer,
    promised,
    times_charged,
)
from fedrec.news.variants import in_rounds
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.click_accounting import Costs
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.local_update import NoisedGradients


def device(
    scenario: NewsScenario, data: Impressions, passes: int, noise: DeviceNoise
) -> NoisedGradients:
    """Clipped, then noised."""
    from fedrec.news.local_update import Devices, NoisedGradients

    clip = clip_of(scenario)
    few = Devices.of(data, history=scenario.news.history, labels=None).with_few(
        NEGATIVES, noise=noise
    )
    return NoisedGradients(few, clip, 2 * clip / _gradient_mu(scenario, passes), noise)


def clip_of(scenario: NewsScenario) -> float:
    """theta: the longest gradient."""
    return scenario.news.clip or GRADIENT_CLIP


def _gradient_mu(scenario: NewsScenario, passes: int) -> float:
    each = per_answer(promised(scenario), times_charged(scenario, passes))
    return mu_for(each.epsilon, each.delta)


def costs(scenario: NewsScenario, passes: int) -> Costs:
    """A gradient is of the whole loss: of the history and of every label."""
    gradients = (
        GaussianEvent("gradient", _gradient_mu(scenario, passes), "click", "replace"),
    ) * passes
    return Costs(gradients, gradients)


def sent(scenario: NewsScenario, passes: int) -> tuple[tuple[str, float], ...]:
    """With the noise of each number."""
    return (
        (
            "the whole gradient, clipped and noised on the device",
            2 * clip_of(scenario) / _gradient_mu(scenario, passes),
        ),
    )


VARIANT = NewsVariant(
    name="dp-fedrec",
    train=in_rounds,
    noise_on="gradients",
    costs=costs,
    in_rounds=InRounds(1, lambda s: 0, device, sent, clip=clip_of),
    keys=ENCODER | {"accounting"},
)
