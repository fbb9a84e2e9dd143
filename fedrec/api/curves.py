"""Privacy-utility curves: one model at several epsilons and seeds, as a frame and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl
from scipy.special import ndtri, stdtrit

from fedrec.api.callbacks import Callback
from fedrec.api.datasets import Dataset, TestSet, TrainingSet
from fedrec.api.evaluating import (
    Evaluation,
    controls_of,
    cutoffs_of,
    evaluate,
    require_test_set,
    require_untrained,
)
from fedrec.api.promises import html_table
from fedrec.api.recommender import Recommender
from fedrec.errors import SettingsError
from fedrec.numerics.threads import one_blas_thread

if TYPE_CHECKING:
    from fedrec.report.figures import Chart

_CONFIDENCE = 0.95  # the level that intervals of means usually have
_UPPER = 0.5 + _CONFIDENCE / 2


@dataclass(frozen=True, repr=False)
class PrivacyCurve:
    """Measurements of one method at several epsilons.

    Each point is a training of its own. The guarantee of a point covers its model alone: whoever
    publishes several spends their sum.

    Args:
        method: The recipe's name.
        unit: Who is protected.
        neighbours: What two neighbouring data sets differ by.
        delta: At which epsilons are stated.
        metric: The one that `summary` and `plot` take by default.
        lower_is_better: Whether small values of it are good.
        points: Epsilon, seed, measurement and seed of the split, one for each training.
        controls: Metrics without privacy, on the first split.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.ItemBias(noise="seeded")
    >>> curve = fedrec.privacy_curve(model, train, test, epsilons=[5], controls=False)
    >>> curve.metric, curve.to_frame().height
    ('rmse', 1)
    >>> curve.summary().columns
    ['epsilon', 'seeds', 'splits', 'mean', 'std', 'people', 'low', 'high']
    >>> print(curve.intervals)
    95% intervals over 258 people; one split and one draw of noise, which vary too
    >>> [line.split(",")[0] for line in curve.plot().numbers.splitlines()]
    ['line', 'ItemBias']
    """

    method: str
    unit: str
    neighbours: str
    delta: float
    metric: str
    lower_is_better: bool
    points: tuple[tuple[float, int, Evaluation, int], ...]
    controls: Mapping[str, Mapping[str, float | int | None]]

    def to_frame(self) -> pl.DataFrame:
        """A row for each training: method, epsilon, delta, unit, seed, split and every metric;
        then a row for each control.

        Returns:
            The rows; a metric that was not measured is null.
        """
        ours = [
            {
                "method": self.method,
                "epsilon": epsilon,
                "delta": self.delta,
                "unit": self.unit,
                "seed": seed,
                "split": split,
                **found.metrics,
            }
            for epsilon, seed, found, split in self.points
        ]
        theirs = [
            {
                "method": name,
                "epsilon": math.inf,
                "delta": None,
                "unit": None,
                "seed": None,
                "split": None,
                **metrics,
            }
            for name, metrics in self.controls.items()
        ]
        return pl.DataFrame([*ours, *theirs], infer_schema_length=None)

    def summary(self, metric: str | None = None) -> pl.DataFrame:
        """Mean, standard deviation of its draws and 95% interval of one metric at each epsilon.

        The draws are the splits, each the mean of its seeds; of one split they are the seeds, whose
        noise differs. people: standard error for the people who were measured, who are the same in
        all draws. The interval has both: Student's t over the draws, and people in squares beside
        it. `intervals` says how many there were.

        Args:
            metric: A column of `to_frame`; without one rmse of ratings, and NDCG at the longest
                cutoff of clicks.

        Returns:
            A row for each method and epsilon.

        Raises:
            SettingsError: There is no such metric.
        """
        name = self._known(metric)
        part, _, cutoff = name.partition("@")
        error = f"{part}_stderr" + (f"@{cutoff}" if cutoff else "")
        rows = []
        for epsilon in dict.fromkeys(epsilon for epsilon, *_ in self.points):
            runs = [point for point in self.points if point[0] == epsilon]
            by_split = dict[int, list[float]]()
            for _, _, found, split in runs:
                by_split.setdefault(split, []).append(float(found.metrics[name] or math.nan))
            seeds = next(iter(by_split.values()))
            draws = [float(np.mean(own)) for own in by_split.values()]
            draws = seeds if len(draws) == 1 else draws
            errors = [found.metrics.get(error) for _, _, found, _ in runs]
            known = [value for value in errors if value is not None]
            people = math.sqrt(float(np.mean(np.square(known)))) if known else None
            n = len(draws)
            mean = float(np.mean(draws))
            std = float(np.std(draws, ddof=1)) if n > 1 else None
            halves = list[float]()
            if std is not None:
                halves.append(float(stdtrit(n - 1, _UPPER)) * std / math.sqrt(n))
            if people is not None:
                halves.append(float(ndtri(_UPPER)) * people)
            half = math.hypot(*halves) if halves else None
            low, high = (None, None) if half is None else (mean - half, mean + half)
            counts = (epsilon, len(seeds), len(by_split))
            rows.append((*counts, mean, std, people, low, high))
        types = {"epsilon": pl.Float64, "seeds": pl.Int64, "splits": pl.Int64}
        types |= dict.fromkeys(("mean", "std", "people", "low", "high"), pl.Float64)
        return pl.DataFrame(rows, schema=types, orient="row")

    @property
    def intervals(self) -> str:
        """What the intervals of `summary` and `plot` are of, and what they leave out."""
        outcome = self.points[0][2].outcome
        ranking = None if outcome.ranking is None else next(iter(outcome.ranking.at.values()))
        measured = outcome.ratings or ranking
        splits = len({split for *_, split in self.points})
        seeds = len({seed for _, seed, *_ in self.points})
        people = f"{measured.users:,} people" if measured else "people"
        drawn = [
            *([f"{splits} random splits"] if splits > 1 else []),
            *([f"{seeds} draws of noise"] if seeds > 1 else []),
        ]
        fixed = [
            *(["one split"] if splits == 1 else []),
            *(["one draw of noise"] if seeds == 1 and splits == 1 else []),
        ]
        said = f"{_CONFIDENCE:.0%} intervals over {', '.join([people, *drawn])}"
        if not fixed:
            return said
        return f"{said}; {' and '.join(fixed)}, which {'vary' if len(fixed) > 1 else 'varies'} too"

    def plot(self, metric: str | None = None) -> Chart:
        """Draw each epsilon's mean with its interval, and controls as levels.

        Args:
            metric: A column of `to_frame`; without one rmse of ratings, and NDCG at the longest
                cutoff of clicks.

        Returns:
            A drawing that a notebook shows; `.save("curve.svg")` keeps it, `.save("curve.csv")`
            its numbers.

        Raises:
            SettingsError: There is no such metric, or no finite epsilon.
        """
        from fedrec.report.content import LineChart, Point
        from fedrec.report.figures import Chart

        name = self._known(metric)
        levels = [
            (method, float(value))
            for method, metrics in self.controls.items()
            if (value := metrics.get(name)) is not None
        ]
        points = tuple(
            Point(epsilon, mean, 0.0 if low is None else mean - low)
            for epsilon, mean, low in self.summary(name)
            .filter(pl.col("epsilon").is_finite())
            .sort("epsilon")
            .select("epsilon", "mean", "low")
            .iter_rows()
        )
        if not points:
            raise SettingsError("no epsilon is finite: there is no curve", "Name some epsilons.")
        promised = f"ε per {self.unit} ({self.neighbours}), δ = {self.delta:g}"
        chart = LineChart(
            f"{name} against {promised}",
            f"{promised}. {self.intervals}",
            {self.method: points},
            tuple(levels),
            log=True,
            lower_is_better=name in {"rmse", "mae"},
        )
        return Chart.of(chart, "curve")

    def _known(self, metric: str | None) -> str:
        known = [name for name, value in self.points[0][2].metrics.items() if value is not None]
        if metric is not None and metric not in known:
            raise SettingsError(f"there is no metric {metric!r}", f"There are: {', '.join(known)}.")
        return metric or self.metric

    def __repr__(self) -> str:
        head = f"PrivacyCurve of {self.method}, {self.metric}, {self.unit}; {self.intervals}"
        return f"{head}\n{self.summary()}"

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{value:.4g}" if isinstance(value, float) else "" if value is None else value
                for value in row
            ]
            for row in self.summary().rows()
        ]
        names = (
            "epsilon",
            "seeds",
            "splits",
            f"{self.metric}, mean",
            "std",
            "people",
            "low",
            "high",
        )
        return html_table(names, rows) + f"<p>{self.intervals}</p>"


def privacy_curve(
    model: Recommender,
    train: TrainingSet | Dataset,
    test: TestSet | None = None,
    *,
    epsilons: Sequence[float] = (1, 5, 20),
    seeds: Iterable[int] = (1,),
    splits: Iterable[int] = (1, 2, 3),
    k: Sequence[int] = (10, 20),
    controls: bool = True,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> PrivacyCurve:
    """Train and measure copies of a model at every epsilon with every seed.

    Args:
        model: Whose other parameters are kept; it is not changed.
        train: What every copy is trained on; or a whole `Dataset`, which is divided at random.
        test: What every copy is measured on, of data that is divided already.
        epsilons: Privacy budgets; each must be positive.
        seeds: Of initialisation, and of seeded noise. With noise="system" every training draws
            fresh noise besides.
        splits: Seeds of the random splits of a whole `Dataset`, for intervals over splits too.
        k: Lengths of the lists that are measured.
        controls: Also measure methods without privacy, once.
        progress: Show a bar with the time left.
        callbacks: Called after every round and every training.

    Returns:
        What was measured, of every copy.

    Raises:
        SettingsError: An epsilon is not positive, or `test` is missing or one too many.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.ItemBias(noise="seeded")
    >>> curve = fedrec.privacy_curve(model, train, test, epsilons=[1, 5], controls=False)
    >>> curve.summary()["epsilon"].to_list()
    [1.0, 5.0]
    """
    try:
        chosen = [] if isinstance(epsilons, str) else [float(epsilon) for epsilon in epsilons]
        drawn = [int(seed) for seed in seeds]
    except (TypeError, ValueError):
        chosen = []
        drawn = []
    if not chosen or not drawn:
        raise SettingsError(
            f"a curve needs a list of epsilons and one of seeds, found {epsilons!r} and {seeds!r}",
            "For example epsilons=[1, 5, 20], seeds=range(3).",
        )
    cutoffs = cutoffs_of(k)
    points = list[tuple[float, int, Evaluation, int]]()
    if isinstance(train, Dataset):
        if test is not None:
            raise SettingsError(
                "a whole data set holds the test rows too",
                "Leave test out, or give train and test.",
            )
        parts = {int(seed): train.split("random", seed=int(seed)) for seed in splits}
        if not parts:
            raise SettingsError("splits is empty", "Give seeds, for example splits=range(3).")
    else:
        require_test_set(test)
        parts = {0: (train, cast(TestSet, test))}
    for own, held in parts.values():
        if isinstance(own, TrainingSet):
            require_untrained(own.split, held)
    for epsilon in chosen:
        for split, (own, held) in parts.items():
            for seed in drawn:
                copy = type(model)(**{**model.get_params(), "epsilon": epsilon, "seed": seed})
                copy.fit(own, progress=progress, callbacks=callbacks)
                points.append(
                    (epsilon, seed, evaluate(copy, held, k=cutoffs, controls=False), split)
                )
    held = next(iter(parts.values()))[1]
    with one_blas_thread():
        rivals = controls_of(held, cutoffs, ranking=True, seed=drawn[0]) if controls else {}
    first = points[0][2]
    guarantee = points[0][2].guarantee
    metric = "rmse" if "rmse" in first.metrics else f"ndcg@{max(cutoffs)}"
    without = {name: outcome.metrics() for name, outcome in rivals.items()}
    unit = guarantee.unit
    neighbours = guarantee.neighbours
    of_ratings = metric == "rmse"
    return PrivacyCurve(
        type(model).__name__,
        unit,
        neighbours,
        guarantee.delta,
        metric,
        of_ratings,
        tuple(points),
        without,
    )
