"""Variants of news training, a module each: what it promises, what its releases cost, and how it
trains (`fedrec.news.variant`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it loads PyTorch
    from fedrec.news.checkpoints import Kept
    from fedrec.news.clients import NewsClients
    from fedrec.news.trained import Catalogue, Progress, TrainedNews
    from fedrec.settings import NewsScenario


def in_rounds(
    scenario: NewsScenario, catalogue: Catalogue, clients: NewsClients, kept: Kept
) -> Iterator[Progress | TrainedNews]:
    """Training of a variant whose devices answer in rounds."""
    from fedrec.news import federated

    return federated.in_rounds(scenario, catalogue, clients, kept)
