"""A paper's figures as data: points of series, each a trial for every seed and what of its row is
shown; and the lines that they become."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedrec.data.kinds import Kind, assumed
from fedrec.evaluation.intervals import interval, mean_and_error
from fedrec.storage import finite
from fedrec_research.papers.starts import Start
from fedrec_research.trials import Row, Trial, rows_of, trial

K = TypeVar("K")
Keys = str | tuple[str | int, ...]
"""Where in a row a value stands: a key, or keys of tables and places of lists on the way to it."""


@dataclass(frozen=True)
class Point:
    """One point of a series: the rows `make(*arguments, seed)`, and which values of them are shown,
    by metric. more: what else its lines say."""

    series: str
    x: float | str
    make: Callable[..., Row]
    arguments: tuple[Any, ...]
    values: Mapping[str, Keys]
    more: Mapping[str, Any] = field(default_factory=dict)


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
            "each": list(self.each),
            "seeds": list(seeds[: len(self.each)]),
            "guarantee": self.guarantee,
            **self.more,
        }
        if len(self.each) > 1 and all(map(math.isfinite, self.each)):
            found = interval(self.each)
            content["interval"] = [found.mean - found.half, found.mean + found.half]
        return dict(finite(content))


@dataclass(frozen=True)
class Work:
    """What a figure is made of: its scenario, whether a small part of it will do, and who makes
    rows."""

    start: Start
    quick: bool
    rows: Callable[[Mapping[Any, Trial]], dict[Any, Row]] = rows_of

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of splits and noise; settings are chosen on the first."""
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
        """Kind of the data."""
        return assumed(self.start.scenario.data.kind)

    def by_seed(self, asked: Mapping[K, tuple[Any, ...]]) -> dict[K, list[Row]]:
        """Rows of (function, arguments...) for every seed, by the same keys."""
        trials = {(key, seed): trial(*of, seed) for key, of in asked.items() for seed in self.seeds}
        rows = self.rows(trials)
        return {key: [rows[key, seed] for seed in self.seeds] for key in asked}

    def lines(self, points: Iterable[Point]) -> list[Line]:
        """A line for each point and metric."""
        listed = list(points)
        rows = self.by_seed({n: (one.make, *one.arguments) for n, one in enumerate(listed)})
        return [
            Line(
                metric,
                one.series,
                one.x,
                [value(row, keys) for row in rows[n]],
                rows[n][0].get("guarantee", ""),
                one.more,
            )
            for n, one in enumerate(listed)
            for metric, keys in one.values.items()
        ]


def value(row: Any, keys: Keys) -> float:
    """What stands there."""
    for key in (keys,) if isinstance(keys, str) else keys:
        row = row[key]
    return float(row)


Figure = Callable[[Work], list[Line]]


@dataclass(frozen=True)
class Paper:
    """name: for people. figures: by name; `research/scenarios/PREFIX_NAME.toml` is the scenario of
    each.

    timed: figures that show seconds. planted: overrides that make the small planted set fit.
    no_data: figures that need none. fixed: the only keys that an override may change, where the
    trials are fixed. divided_once: whether seeds leave the split as it is.
    """

    name: str
    prefix: str
    figures: Mapping[str, Figure]
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
    """Join the same points of every seed, place by place: the values of all, at the mean of x where
    x is a number that was measured too."""
    return [_join(same) for same in zip(*of_seeds, strict=True)]


def _join(same: Sequence[Line]) -> Line:
    first = same[0]
    places = [line.x for line in same if not isinstance(line.x, str)]
    x = math.fsum(places) / len(places) if places else first.x
    return replace(first, x=x, each=[value for line in same for value in line.each])
