"""Content of a report, as plain frozen values. Everything but the title and the data's description
may be left out.

An epsilon is never a bare number here: it comes in a `Guarantee`, or in a curve that names unit,
neighbours and delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedrec.privacy.guarantee import Guarantee, Neighbours, Unit

TO_THE_AGGREGATOR = (
    "All of it goes to the aggregator, which adds noise to the sum over all users; the server "
    "sees only that."
)
TO_THREE = (
    "Shares of it go to three aggregators, none of which can read it alone; each adds noise to "
    "its part of the sum over all users."
)


@dataclass(frozen=True)
class Opinion:
    """What another accountant makes of the same releases, at the same delta, unit and neighbours.

    exact: it may not lie above the guarantee; others may over-estimate.
    """

    accountant: str
    epsilon: float
    exact: bool = False


@dataclass(frozen=True)
class Promise:
    """A guarantee, what it covers, the accountant that established it, and second opinions. `name`
    tells it from others on the page.

    compared: the two inputs that cannot be told apart; spent: what all runs on the same data have
    cost so far, a sentence each. against: adversary and promise, where they differ by adversary;
    warnings: what is missing of them.
    """

    guarantee: Guarantee
    covers: str = "everything this run released"
    accountant: str = "exact Gaussian (GDP)"
    second_opinions: tuple[Opinion, ...] = ()
    name: str = ""
    compared: str = ""
    not_covered: tuple[str, ...] = ()
    spent: tuple[str, ...] = ()
    against: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextTable:
    """A section of words: a title, what it says, and rows whose first cell names them."""

    title: str
    lead: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Method:
    """One row of the table of methods. bytes: per client over the whole run, None where nothing is
    sent.

    instead: words in the place of the guarantee's, where nothing was trained that could have one.
    """

    name: str
    guarantee: Guarantee
    metrics: Mapping[str, float]
    bytes_up: int | None = None
    bytes_down: int | None = None
    ours: bool = False
    note: str = ""
    instead: str = ""


@dataclass(frozen=True)
class CurvePoint:
    """One training run, or the mean of several with their standard deviation `spread`."""

    epsilon: float
    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class Series:
    """A named line through (x, y)."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or not self.x:
            raise ValueError(
                f"series {self.name!r} has {len(self.x)} x and {len(self.y)} y: expected "
                "equally many, at least one"
            )


@dataclass(frozen=True)
class PrivacyCurve:
    """A metric against epsilon, all points with the same delta, unit and neighbours; baselines are
    (name, value).

    each: what one point is, levels: what the baselines are, in words.
    """

    metric: str
    lines: Mapping[str, tuple[CurvePoint, ...]]
    baselines: tuple[tuple[str, float], ...]
    delta: float
    unit: Unit
    neighbours: Neighbours
    lower_is_better: bool = True
    each: str = "a training run of its own"
    levels: str = "methods without privacy"

    def __post_init__(self) -> None:
        for name, points in self.lines.items():
            if not points or not all(0 < point.epsilon < math.inf for point in points):
                raise ValueError(
                    f"line {name!r} needs points of positive, finite epsilon; what has none "
                    "is a baseline"
                )


@dataclass(frozen=True)
class Point:
    """One point of a line; `spread` is half the length of its bar, 0 for none."""

    x: float
    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class LineChart:
    """A metric of named lines against x; `axis` is written below it. Baselines are (name, value).

    log, log_y: x, and the metric, on a logarithmic scale. lower_is_better: None where neither is.
    """

    title: str
    axis: str
    lines: Mapping[str, tuple[Point, ...]]
    baselines: tuple[tuple[str, float], ...] = ()
    log: bool = False
    log_y: bool = False
    lower_is_better: bool | None = None

    def __post_init__(self) -> None:
        if not self.lines or not all(self.lines.values()):
            raise ValueError(f"chart {self.title!r} needs lines, and every line a point")


@dataclass(frozen=True)
class BucketBars:
    """A metric in each popularity bucket, rarest first, for each named method."""

    metric: str
    methods: Mapping[str, tuple[float, ...]]
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        if len({len(values) for values in self.methods.values()}) != 1:
            raise ValueError(
                "all methods need the same number of buckets, found "
                f"{ {k: len(v) for k, v in self.methods.items()} }"
            )


@dataclass(frozen=True)
class BudgetLine:
    """One release: its share of the budget (of mu squared, adding up to 1) and the noise std in
    real units."""

    release: str
    share: float
    noise_std: float
    note: str = ""


@dataclass(frozen=True)
class Convergence:
    """A metric by round."""

    metric: str
    lines: tuple[Series, ...]
    baselines: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Departure:
    """One thing that left a client's device: for which release, of what shape, how many bytes, what
    is in it, and who sees it."""

    release: str
    shape: str
    bytes: int
    contains: str
    goes: str = TO_THE_AGGREGATOR


@dataclass(frozen=True)
class ExampleReport:
    """The integers that one planted (invented) user sent: `payload` are the very bytes, `integers`
    named groups of them."""

    who: str
    integers: Mapping[str, tuple[int, ...]]
    payload: bytes


@dataclass(frozen=True)
class NeighbourList:
    """The nearest items in one model: (title, cosine similarity), nearest first."""

    model: str
    items: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class NeighbourCard:
    """A queried item, a word about it (its count in train), and its neighbours in each model."""

    query: str
    note: str
    lists: tuple[NeighbourList, ...]


@dataclass(frozen=True)
class ReportContent:
    """The page, top to bottom.

    `metrics` orders the table's columns; empty parts leave no trace on the page. answer: what the
    main model is worth, in one line; details: each comparison with a control, a sentence each.
    seeded: whether noise is."""

    title: str
    data: str
    promises: tuple[Promise, ...] = ()
    persons: tuple[TextTable, ...] = ()
    methods: tuple[Method, ...] = ()
    curve: PrivacyCurve | None = None
    lists_curve: PrivacyCurve | None = None
    buckets: tuple[BucketBars, ...] = ()
    budget: tuple[BudgetLine, ...] = ()
    convergence: Convergence | None = None
    departures: tuple[Departure, ...] = ()
    example: ExampleReport | None = None
    neighbours: tuple[NeighbourCard, ...] = ()
    answer: str = ""
    details: tuple[str, ...] = ()
    settings: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    made: str = ""
    seeded: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of all methods, in the order of first appearance."""
        return tuple(dict.fromkeys(name for method in self.methods for name in method.metrics))
