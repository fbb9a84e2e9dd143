"""Privacy-utility curves: one model at several epsilons and seeds, as a frame and as a picture for
a paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
from scipy import stats

from fedrec.api.callbacks import Callback
from fedrec.api.datasets import TestSet, TrainingSet
from fedrec.api.evaluating import (
    Evaluation,
    controls_of,
    cutoffs_of,
    evaluate,
    require_test_set,
    require_untrained,
)
from fedrec.api.recommender import Recommender
from fedrec.api.tables import html_table
from fedrec.errors import SettingsError
from fedrec.numerics.threads import one_blas_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONFIDENCE = 0.95


@dataclass(frozen=True, repr=False)
class PrivacyCurve:
    """Measurements of one method at several epsilons. points: one for each epsilon and seed;
    controls: metrics without privacy.

    Each point is a training of its own. The guarantee of a point covers its model alone: whoever
    publishes several spends their sum.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.ItemBias(noise="seeded")
    >>> curve = fedrec.privacy_curve(model, train, test, epsilons=[5], controls=False)
    >>> curve.metric, curve.to_frame().height
    ('rmse', 1)
    >>> curve.summary().columns
    ['epsilon', 'seeds', 'mean', 'std', 'low', 'high']
    >>> curve.plot().get_xlabel()
    'ε per user (add/remove), δ = 1e-05'
    """

    method: str
    unit: str
    neighbours: str
    delta: float
    metric: str
    lower_is_better: bool
    points: tuple[tuple[float, int, Evaluation], ...]
    controls: Mapping[str, Mapping[str, float | int | None]]

    def to_frame(self) -> pl.DataFrame:
        """A row for each epsilon and seed: method, epsilon, delta, unit, seed and every metric;
        then a row for each control."""
        ours = [
            {
                "method": self.method,
                "epsilon": epsilon,
                "delta": self.delta,
                "unit": self.unit,
                "seed": seed,
                **found.metrics,
            }
            for epsilon, seed, found in self.points
        ]
        theirs = [
            {
                "method": name,
                "epsilon": math.inf,
                "delta": None,
                "unit": None,
                "seed": None,
                **metrics,
            }
            for name, metrics in self.controls.items()
        ]
        return pl.DataFrame([*ours, *theirs], infer_schema_length=None)

    def summary(self, metric: str | None = None) -> pl.DataFrame:
        """Mean, standard deviation and 95% interval (Student's t over the seeds) of one metric at
        each epsilon; null of a single seed."""
        name = self._known(metric)
        rows = []
        for epsilon in dict.fromkeys(epsilon for epsilon, _, _ in self.points):
            values = [
                float(found.metrics[name] or math.nan)
                for at, _, found in self.points
                if at == epsilon
            ]
            mean = sum(values) / len(values)
            n = len(values)
            std = (
                math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else None
            )
            half = (
                None
                if std is None
                else float(stats.t.ppf(0.5 + _CONFIDENCE / 2, n - 1)) * std / math.sqrt(n)
            )
            low, high = (None, None) if half is None else (mean - half, mean + half)
            rows.append(
                {"epsilon": epsilon, "seeds": n, "mean": mean, "std": std, "low": low, "high": high}
            )
        types = {
            "epsilon": pl.Float64,
            "seeds": pl.Int64,
            "mean": pl.Float64,
            "std": pl.Float64,
            "low": pl.Float64,
            "high": pl.Float64,
        }
        return pl.DataFrame(rows, schema=types)

    def plot(self, metric: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw with matplotlib (`pip install 'fedrec[plot]'`) and return the axes;
        `.figure.savefig("curve.pdf")` keeps it.

        Args:
            metric: A column of `to_frame`; without one rmse of ratings, and NDCG at the longest
                cutoff of clicks.
            ax: Where to draw; without one a figure of its own.
        """
        from fedrec.report.plots import draw_curve

        name = self._known(metric)
        levels = {
            method: float(value)
            for method, metrics in self.controls.items()
            if (value := metrics.get(name)) is not None
        }
        promised = f"ε per {self.unit} ({self.neighbours}), δ = {self.delta:g}"
        return draw_curve(
            {self.method: self.summary(name)}, levels, metric=name, x_label=promised, ax=ax
        )

    def _known(self, metric: str | None) -> str:
        known = [name for name, value in self.points[0][2].metrics.items() if value is not None]
        if metric is not None and metric not in known:
            raise SettingsError(f"there is no metric {metric!r}", f"There are: {', '.join(known)}.")
        return metric or self.metric

    def __repr__(self) -> str:
        return f"PrivacyCurve of {self.method}, {self.metric}, {self.unit}\n{self.summary()}"

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{value:.4g}" if isinstance(value, float) else "" if value is None else value
                for value in row
            ]
            for row in self.summary().rows()
        ]
        return html_table(("epsilon", "seeds", f"{self.metric}, mean", "std", "low", "high"), rows)


def privacy_curve(
    model: Recommender,
    train: TrainingSet,
    test: TestSet,
    *,
    epsilons: Sequence[float] = (1, 5, 20),
    seeds: Iterable[int] = (1,),
    k: Sequence[int] = (10, 20),
    controls: bool = True,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> PrivacyCurve:
    """Train and measure copies of a model at every epsilon with every seed.

    Args:
        model: Whose other parameters are kept; it is not changed.
        train: What every copy is trained on.
        test: What every copy is measured on.
        epsilons: Privacy budgets; each must be positive.
        seeds: Of initialisation, and of seeded noise. With noise="system" every training draws
            fresh noise besides.
        k: Lengths of the lists that are measured.
        controls: Also measure methods without privacy, once.
        progress: Show a bar with the time left.
        callbacks: Called after every round and every training.

    >>> import fedrec
    >>> train, test = fedrec.Dataset.planted("small").split()
    >>> model = fedrec.ItemBias(noise="seeded")
    >>> curve = fedrec.privacy_curve(model, train, test, epsilons=[1, 5], controls=False)
    >>> curve.summary()["epsilon"].to_list()
    [1.0, 5.0]
    """
    try:
        chosen = [float(epsilon) for epsilon in epsilons]
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
    points = list[tuple[float, int, Evaluation]]()
    require_test_set(test)
    if isinstance(train, TrainingSet):
        require_untrained(train.split, test)
    for epsilon in chosen:
        for seed in drawn:
            copy = type(model)(**{**model.get_params(), "epsilon": epsilon, "seed": seed})
            copy.fit(train, progress=progress, callbacks=callbacks)
            points.append((epsilon, seed, evaluate(copy, test, k=cutoffs, controls=False)))
    with one_blas_thread():
        rivals = controls_of(test, cutoffs, ranking=True, seed=drawn[0]) if controls else {}
    first = points[0][2]
    guarantee = points[0][2].guarantee
    metric = "rmse" if "rmse" in first.metrics else f"ndcg@{max(cutoffs)}"
    found = {name: outcome.metrics() for name, outcome in rivals.items()}
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
        found,
    )
