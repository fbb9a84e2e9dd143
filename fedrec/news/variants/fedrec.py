"""`fedrec`: federated averaging of bare gradients. No privacy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedrec.data.impressions import Impressions
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.variant import ENCODER, InRounds, NewsVariant
from fedrec.news.variants import in_rounds
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.local_update import Through


def device(scenario: NewsScenario, data: Impressions, passes: int, noise: DeviceNoise) -> Through:
    """Without noise."""
    from fedrec.news.local_update import Devices, Through

    return Through(Devices.of(data, history=scenario.news.history, labels=None), None, noise)


def everything(scenario: NewsScenario, passes: int) -> Costs:
    """Costs of bare gradients, to the history and to every label."""
    gradients = (GaussianEvent("gradient", math.inf, "click", "replace"),) * passes
    return Costs(gradients, gradients)


def sent(scenario: NewsScenario, passes: int) -> tuple[tuple[str, float], ...]:
    """Bare."""
    return (("the bare gradient", 0.0),)


VARIANT = NewsVariant(
    name="fedrec",
    train=in_rounds,
    noise_on="nothing",
    costs=everything,
    in_rounds=InRounds(3, lambda s: s.news.basis, device, sent),
    keys=ENCODER,
)
