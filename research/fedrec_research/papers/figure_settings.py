"""[figure]: what a figure of a paper varies."""

from __future__ import annotations

from pydantic import Field

from fedrec.settings_tables import Table
from fedrec.settings_tables.collective import CollectiveSettings
from fedrec.settings_tables.data import Epsilon
from fedrec.settings_tables.training import ModelSettings


class FigureLine(Table):
    """Keys that a curve of a published figure has at one epsilon, laid over the scenario's own
    tables."""

    curve: str = Field("", description="name in the legend; empty for every curve")
    epsilon: Epsilon = Field(description="an epsilon without a line takes the nearest one's")
    model: ModelSettings = ModelSettings()
    collective: CollectiveSettings = CollectiveSettings()


class FigureSettings(Table):
    """What `fedrec research figures` varies around a scenario to make a published figure."""

    seeds: tuple[int, ...] = Field(
        (), description="split seeds; the seed of the noise is the split's"
    )
    epsilons: tuple[Epsilon, ...] = Field((), description="epsilons of the figure")
    points: tuple[float, ...] = Field(
        (), description="what else its curves or its x axis take: mu, k, users, dimensions"
    )
    x: str = Field("epsilon", description="what its x axis shows")
    settings: tuple[FigureLine, ...] = Field(
        (), description="keys by curve and epsilon: {curve = ..., epsilon = ..., model = {...}}"
    )
