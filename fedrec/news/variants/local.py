"""`local`: the gradient stops at the noised attention, so that what leaves a client is a function
of what was released (Alg. 3, mended)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedrec.data.impressions import Impressions
from fedrec.news import attention, labels
from fedrec.news.checkpoints import DeviceNoise, State
from fedrec.news.labels import LabelReports
from fedrec.news.variant import (
    BASIS,
    ENCODER,
    THETA,
    InRounds,
    NewsVariant,
    per_answer,
    promised,
    times_charged,
)
from fedrec.news.variants import in_rounds
from fedrec.privacy.click_accounting import Costs
from fedrec.privacy.selection import PureEvent
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.local_update import Behind, Devices


def device(scenario: NewsScenario, data: Impressions, passes: int, noise: DeviceNoise) -> Behind:
    """Labels randomised once, attention noised at every answer."""
    from fedrec.news.local_update import Behind

    return Behind(randomised_devices(data, scenario, noise), plan_of(scenario, passes), noise)


def randomised_devices(data: Impressions, scenario: NewsScenario, noise: DeviceNoise) -> Devices:
    """Histories, and for every impression an answer randomised over all that it shows: once, also
    where the training is stopped and goes on."""
    from fedrec.news.local_update import Devices

    epsilon = scenario.privacy.epsilon

    def draw() -> State:
        told = labels.reports_by_user(
            data,
            lambda mine, key: labels.report_clicks(mine, epsilon=epsilon, key=key),
            noise,
            epsilon=epsilon,
        )
        return {"reported": told.reported, "null": told.null}

    drawn = noise.kept.once("labels", draw)
    event = PureEvent("label", epsilon)
    answers = LabelReports(data.candidate_ptr, drawn["reported"], drawn["null"], epsilon, event)
    return Devices.of(data, history=scenario.news.history, labels=answers)


def plan_of(scenario: NewsScenario, passes: int) -> attention.Plan:
    """Plan of one answer.

    Laplace answers are pure, so their epsilons add up to the promised one; Gaussian ones compose
    exactly."""
    whole = promised(scenario)
    passes = times_charged(scenario, passes)
    theta = scenario.news.clip or THETA
    padding = scenario.news.padding
    if scenario.news.attention_noise == "laplace":
        return attention.laplace_plan(
            replace(whole, epsilon=whole.epsilon / passes), theta=theta, padding=padding
        )
    return attention.gaussian_plan(per_answer(whole, passes), theta=theta, padding=padding)


def costs(scenario: NewsScenario, passes: int) -> Costs:
    """Attention for every answer, and each label once."""
    return Costs(
        (plan_of(scenario, passes).event,) * passes, (PureEvent("label", scenario.privacy.epsilon),)
    )


def sent(scenario: NewsScenario, passes: int) -> tuple[tuple[str, float], ...]:
    """A gradient of noised attention."""
    std = plan_of(scenario, passes).noise_std
    return ("a function of noised attention and randomised labels", 0.0), (
        "noised on the device",
        std,
    )


VARIANT = NewsVariant(
    name="local",
    train=in_rounds,
    noise_on="attention",
    costs=costs,
    in_rounds=InRounds(1, lambda s: s.news.basis or BASIS, device, sent),
    keys=ENCODER | {"attention_noise", "padding", "accounting"},
)
