"""`fedrec`: federated averaging of bare gradients. No privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedrec.data.impressions import Impressions
from fedrec.news.checkpoints import Kept
from fedrec.news.device_noise import DeviceNoise
from fedrec.news.trained import Catalogue, Progress, TrainedNews
from fedrec.news.variant import InRounds, NewsVariant
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.settings import Scenario

if TYPE_CHECKING:
    from fedrec.news.clients import NewsClients
    from fedrec.news.local_update import Through


def train(
    scenario: Scenario, catalogue: Catalogue, fleet: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """In rounds."""
    from fedrec.news.federated import in_rounds

    return in_rounds(scenario, catalogue, fleet, kept)


def device(scenario: Scenario, data: Impressions, passes: int, noise: DeviceNoise) -> Through:
    """Without noise."""
    from fedrec.news.local_update import Devices, Through

    return Through(Devices.of(data, history=scenario.news.history, labels=None), None, noise)


def everything(scenario: Scenario, passes: int) -> Costs:
    """Costs of bare gradients, to the history and to every label."""
    gradients = (GaussianEvent("gradient", math.inf, "click", "replace"),) * passes
    return Costs(gradients, gradients)


def sent(scenario: Scenario, passes: int) -> tuple[tuple[str, float], ...]:
    """Bare."""
    return (("the bare gradient", 0.0),)


VARIANT = NewsVariant(
    name="fedrec",
    train=train,
    noise_on="nothing",
    costs=everything,
    in_rounds=InRounds(3, lambda s: s.news.basis, device, sent),
    keys=frozenset({"word_vectors", "language_model"}),
)
