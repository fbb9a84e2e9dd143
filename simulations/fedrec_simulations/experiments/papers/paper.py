"""A paper's figures as declarations: each is a plan over its scenario that asks for trials and
returns lines, points before their means."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fedrec.data.kinds import Kind, assumed
from fedrec.storage import finite
from fedrec_simulations.experiments.intervals import interval
from fedrec_simulations.experiments.papers.starts import Start
from fedrec_simulations.experiments.row_queue import Plan, Stage
from fedrec_simulations.experiments.rows import Row, mean_and_error
from fedrec_simulations.experiments.trials import Trial

K = TypeVar("K")
BySeed = Generator[Stage, dict[Any, Row], dict[K, list[Row]]]
"""Part of a plan that returns rows for every seed, by key."""


@dataclass(frozen=True)
class Work:
    """What a figure is made of: its scenario, whether a small part of it will do, and the folder of
    its rows."""

    start: Start
    quick: bool
    folder: Path

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of splits and noise; settings are chosen on the first."""
        return self.start.seeds(self.quick)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The scenario's; `quick`: 5, or the first."""
        asked = self.start.figure.epsilons
        return tuple([e for e in asked if e == 5] or asked[:1]) if self.quick else asked

    @property
    def points(self) -> tuple[float, ...]:
        """What else the scenario varies."""
        return self.start.figure.points

    @property
    def kind(self) -> Kind:
        """Of the data."""
        return assumed(self.start.scenario.data.kind)


@dataclass(frozen=True)
class Line:
    """One point of a series before its mean: a value for each seed. more: what else its row
    says."""

    metric: str
    series: str
    x: float | str
    each: Sequence[float]
    guarantee: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def row(self, figure: str, seeds: Sequence[int]) -> Row:
        """With mean, standard error, and the ends of the mean's 95% interval over the seeds."""
        value, error = mean_and_error(self.each)
        content = {
            "figure": figure,
            "metric": self.metric,
            "series": self.series,
            "x": self.x,
            "value": value,
            "standard_error": error,
        }
        used = {
            "each": list(self.each),
            "seeds": list(seeds[: len(self.each)]),
            "guarantee": self.guarantee,
        }
        return dict(finite({**content, **used, **self.more})) | self._interval()

    def _interval(self) -> Row:
        each = list(self.each)
        if len(each) < 2 or not all(map(math.isfinite, each)):
            return {}
        found = interval(each)
        return {"interval": [found.mean - found.half, found.mean + found.half]}


Figure = Callable[[Work], Plan[list[Line]]]


@dataclass(frozen=True)
class Paper:
    """name: for people. figures: by name; `simulations/PREFIX_NAME.toml` is the scenario of each.
    published: what the paper says.

    timed: figures that show seconds. planted: overrides that make the small planted set fit.
    no_data: figures that need none. fixed: the only keys that an override may change, where the
    trials are fixed. divided_once: whether seeds leave the split as it is.
    """

    name: str
    prefix: str
    figures: Mapping[str, Figure]
    published: Mapping[str, Mapping[str, Any]]
    timed: tuple[str, ...] = ()
    planted: tuple[str, ...] = ()
    no_data: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    divided_once: bool = False

    @property
    def each_seed(self) -> str:
        """What a seed changes."""
        return (
            "draws the noise and initial values, the data being divided once"
            if self.divided_once
            else "divides the data and draws the noise"
        )


def joined(of_seeds: Sequence[Sequence[Line]]) -> list[Line]:
    """The same points of every seed, place by place: the values of all, at the mean of x where x is
    a number that was measured too."""
    return [_join(same) for same in zip(*of_seeds, strict=True)]


def _join(same: Sequence[Line]) -> Line:
    first = same[0]
    places = [line.x for line in same if not isinstance(line.x, str)]
    x = math.fsum(places) / len(places) if places else first.x
    return replace(first, x=x, each=[value for line in same for value in line.each])


def by_seed(seeds: Sequence[int], trials: Mapping[K, Callable[[int], Trial]]) -> BySeed[K]:
    """Rows of these trials for every seed, by the same keys."""
    rows = yield {(key, seed): trial(seed) for key, trial in trials.items() for seed in seeds}
    return {key: [rows[key, seed] for seed in seeds] for key in trials}
