"""`centralized`: the clicks themselves are collected. No privacy, the ceiling of the others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedrec.news.checkpoints import Kept
from fedrec.news.trained import Catalogue, Progress, TrainedNews
from fedrec.news.variant import ENCODER, NewsVariant
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.click_accounting import Costs
from fedrec.settings import NewsScenario

if TYPE_CHECKING:
    from fedrec.news.clients import NewsClients


def train(
    scenario: NewsScenario, catalogue: Catalogue, fleet: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """See `news.collected`."""
    from fedrec.news.collected import centralized

    return centralized(scenario, catalogue, fleet, kept)


def costs(scenario: NewsScenario, passes: int) -> Costs:
    """Everything, once."""
    return Costs((GaussianEvent("data", math.inf, "click", "replace"),), ())


VARIANT = NewsVariant(
    name="centralized",
    train=train,
    noise_on="nothing",
    costs=costs,
    on_devices=False,
    keys=ENCODER,
)
