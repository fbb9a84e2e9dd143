"""Figures of AM-SSP (Krichene et al. 2024), re-made; `figure(name, ...)` gives rows, `PUBLISHED` what the paper says of them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed being the split's), its standard error,
every seed's value, and the guarantee. Guarantees are per user and exact; the series "as printed" has the paper's own calibration, and
says what it is worth. DP-CMF is a curve of Figures 1 and 2 too: see `dp_cmf`. Figure 7 shows a property of the paper's metadata.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.encoders import items as encoder
from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_simulations.experiments.papers import am_ssp_costs as costs
from fedrec_simulations.experiments.papers.ada_dpals_runs import BUCKETS, Kind
from fedrec_simulations.experiments.papers.am_ssp_runs import (
    DPSGD,
    LOOPBACK,
    OURS,
    PLAIN,
    PRINTED,
    SSP,
    SSP1,
    Bench,
    Curve,
    resampled,
    timed,
    with_best_rate,
)
from fedrec_simulations.experiments.papers.starts import started
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error, row

EPOCHS = (1, 10, 100, 1_000)
ALS = "ALS (not private)"

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "figure1": {
        "how": "printed in 4.2, of ML-10M; the curves have no printed values",
        "order, best first": ("AM-SSP", "DP-CMF and AM-DPSGD", LOOPBACK.label),
        "AM-SSP ahead of DP-CMF, RMSE by epsilon": {1: 0.025, 20: 0.0123},
        "DP-SGD": "worse at epsilon 20 than the others at 5",
    },
    "figure2": {
        "how": "printed in 4.2 and E.1, of ML-20M; the curves have no printed values",
        "features": "help AM-SSP and harm AM-DPSGD",
        "Recall@20 of DP-SGD at epsilon 20": 0.206,
        "all others at epsilon 1": "better than that",
    },
    "figure3": {"how": "printed in 4.3, of ML-10M on one P100", "seconds of AM-DPSGD over AM-SSP": "about 100"},
    "figure4": {"how": "printed in 4.4, of ML-10M", "more resamples": "worse, the more so the smaller epsilon"},
    "figure5": {"how": "printed in App. C", "visits per item": "more than 100 for batches up to a few thousand"},
    "figure6": {
        "how": "printed in App. C",
        "c = d^2": "SSP is cheaper in a large region, by orders of magnitude for batches of 100 to 1,000",
        "c = d": "SSP is dearer, unless epochs are very many",
    },
    "figure8": {"how": "printed in E.2, of ML-20M", "seconds of AM-DPSGD over AM-SSP": "about 1,000"},
    "figure9": {
        "how": "printed in E.3, of ML-10M",
        "rare buckets": "AM-DPSGD and AM-SSP far ahead of DP-ALS",
        "AM-SSP against AM-DPSGD": "better on frequent, worse on rare items",
    },
    "figure9b": {"how": "printed in E.3, of ML-20M", "AM-DPSGD": "worst in all buckets", "AM-SSP over DP-ALS": "most on rare items"},
}
"""What the paper prints. Its curves were not read off their axes, and it prints no hyper-parameters by epsilon."""


@dataclass(frozen=True)
class _Work:
    """What a figure is made of: epsilons, and batch sizes or numbers of resamples as points."""

    bench: Bench
    epsilons: Sequence[float]
    points: Sequence[int]
    quick: bool


@dataclass(frozen=True)
class _Line:
    """A point before its mean: one value for each seed."""

    metric: str
    series: str
    x: float | str
    each: Sequence[float]
    guarantee: str = ""


def figure(name: str, data: str, quick: bool, folder: Path, *, overrides: Sequence[str] = ()) -> list[Row]:
    """Rows of one figure of `FIGURES`, from `simulations/am_ssp_NAME.toml`; `data` "planted" is the small planted set.

    `quick`: one seed, and one epsilon where there are several; overrides: `table.key=value` of the scenario. Resumed from `folder`.
    Raises SettingsError on another name, on a wrong key, or without data.
    """
    if name not in FIGURES:
        raise SettingsError(f"AM-SSP has no {name!r}", f"Use one of: {', '.join(FIGURES)}.")
    start, (make, kind) = started(f"am_ssp_{name}", data, tuple(overrides)), FIGURES[name]
    asked, seeds = start.figure, start.seeds(quick)
    some = [e for e in asked.epsilons if e == 5] or asked.epsilons[:1]
    points = [int(p) for p in asked.points]
    bench = Bench(start, kind, seeds, folder_of(folder, data))
    lines = make(_Work(bench, some if quick else asked.epsilons, points[:: len(points) - 1] if quick and points else points, quick))
    return [dict(finite(_row(name, line, seeds))) for line in lines]


def _row(name: str, line: _Line, seeds: Sequence[int]) -> Row:
    value, error = mean_and_error(line.each)
    content = {"figure": name, "metric": line.metric, "series": line.series, "x": line.x, "value": value, "standard_error": error}
    return content | {"each": list(line.each), "seeds": list(seeds[: len(line.each)]), "guarantee": line.guarantee}


def _privacy_utility(work: _Work) -> Iterator[_Line]:
    """Figures 1 and 2: quality against epsilon; SSP1 on ratings alone, as its 16 releases a step are 16 times the work."""
    bench = work.bench
    of_ratings = (SSP1, DPSGD) if bench.kind == "ratings" else ()
    for curve, epsilon in product((LOOPBACK, SSP, *of_ratings, PRINTED, OURS), work.epsilons):
        yield _point(bench, curve, epsilon)
    for curve in (LOOPBACK, SSP):
        yield _point(bench, curve, math.inf)
    for epsilon in work.epsilons if bench.kind == "ratings" else ():
        found = bench.central(epsilon)
        yield _Line(bench.metric, PLAIN, epsilon, [r[bench.metric] for r in found], found[0]["guarantee"])
    reference = bench.reference()
    yield _Line(bench.metric, ALS, "inf", [r[bench.metric] for r in reference], "no privacy")


def _point(bench: Bench, curve: Curve, epsilon: float) -> _Line:
    found = bench.rows(curve, epsilon)
    return _Line(bench.metric, curve.label, epsilon, [r[bench.metric] for r in found], found[0]["guarantee"])


def _rival(bench: Bench) -> tuple[Curve, ...]:
    """AM-DPSGD, which our recipe fits to ratings alone."""
    return (DPSGD,) if bench.kind == "ratings" else ()


def _time(work: _Work) -> Iterator[_Line]:
    """Figures 3 and 8: quality on validation against seconds of training, of the first split."""
    bench = work.bench
    for curve, epsilon in product((SSP, *_rival(bench)), work.epsilons):
        made = bench.row(f"time of {curve.label}", timed, curve, epsilon, bench.seeds[0])
        for point in made["points"]:
            yield _Line(
                f"validation {bench.metric}", f"{curve.label}, epsilon = {epsilon:g}", point["seconds"], [point["value"]], made["guarantee"]
            )


def _resampling(work: _Work) -> Iterator[_Line]:
    """Figure 4: one item update, with noise drawn 1 to 16 times; the learning rate of every point chosen on validation."""
    points = list(product(work.epsilons, work.points, ("all examples (Alg. 2)", "batches (Alg. 4)")))
    curves = [resampled(times, 1 / times if words.startswith("batches") else 1.0) for _, times, words in points]
    chosen = [with_best_rate(work.bench, curve, point[0]) for curve, point in zip(curves, points, strict=True)]
    for (epsilon, times, words), curve in zip(points, chosen, strict=True):
        found = work.bench.rows(curve, epsilon)
        each = [r[work.bench.metric] for r in found]
        yield _Line(work.bench.metric, f"epsilon = {epsilon:g}, {words}", times, each, found[0]["guarantee"])


def _slices(work: _Work) -> Iterator[_Line]:
    """Figure 9: quality by popularity, the rarest fifth of the items first."""
    bench = work.bench
    for curve, epsilon in product((LOOPBACK, SSP, *_rival(bench)), work.epsilons):
        found = bench.rows(curve, epsilon)
        for b in range(BUCKETS):
            each = [r["buckets"][b] for r in found]
            yield _Line(bench.metric, f"{curve.label}, epsilon = {epsilon:g}", b, each, found[0]["guarantee"])


def _visits(work: _Work) -> Iterator[_Line]:
    """Figure 5: counts of items, and visits of an item in an epoch against the batch size."""
    train = work.bench.loaded(work.bench.seeds[0])[1].train
    counts = np.bincount(train.items, minlength=train.num_items)
    for metric, series, x, value in costs.visits_rows(counts, train.items, work.points):
        yield _Line(metric, series, x, [value])


def _complexity(work: _Work) -> Iterator[_Line]:
    """Figure 6: what SSP2 costs over what DP-SGD costs, by eq. 9 and, on this machine, measured."""
    d, D, m = costs.DIMENSION, costs.EXAMPLES, costs.ITEMS
    counts = costs.power_law(0.3)
    for (words, c), e, size in product({"c = d^2": d**2, "c = d": d}.items(), EPOCHS, work.points):
        ratio = costs.cost_ratio(visits=costs.visits(counts, size), epochs=e, pass_cost=c, dimension=d, examples_per_item=D / m)
        yield _Line("cost ratio", f"{words}, {e} epochs", size, [ratio])
    for words, width in product(("all features", "one feature"), (8,) if work.quick else (16, costs.DIMENSION)):
        yield from _measured(work, words, width)


def _measured(work: _Work, words: str, width: int) -> Iterator[_Line]:
    found = row(work.bench.folder, f"costs-{words.replace(' ', '-')}-{width}", costs_row, work.bench, words, width)
    series = f"{words}, d = {width}"
    yield _Line("seconds of the statistics", f"SSP2, {series}", "once", [found["statistics"]])
    for metric, key in (
        ("seconds of an epoch by items per batch", "by_items"),
        ("seconds of an epoch by examples per batch", "by_examples"),
    ):
        yield from (_Line(metric, series, int(size) or "all", [seconds]) for size, seconds in found[key].items())
    for e, (size, seconds) in product(EPOCHS, found["by_examples"].items()):
        ratio = (found["statistics"] + e * found["by_items"]["0"]) / (e * seconds)
        yield _Line("measured cost ratio", f"{series}, {e} epochs", int(size), [ratio])


def costs_row(bench: Bench, words: str, width: int) -> Row:
    """Seconds of `am_ssp_costs.measure` with all categories of features, or with the first alone."""
    dataset, split = bench.loaded(bench.seeds[0])
    names = list(dataset.features.bags)
    inputs = encoder.prepare(dataset.features.only(names if words == "all features" else names[:1]))
    sizes = tuple(size for size in (100, 1_000, 10_000) if size <= len(split.train))
    found = costs.measure(split.train, inputs, width, item_batches=(0, 256), batches=sizes)
    tables = {"by_items": found.by_items, "by_examples": found.by_examples}
    return {"statistics": found.statistics} | {name: {str(size): s for size, s in table.items()} for name, table in tables.items()}


FIGURES: Mapping[str, tuple[Callable[[_Work], Iterator[_Line]], Kind]] = {
    "figure1": (_privacy_utility, "ratings"),
    "figure2": (_privacy_utility, "clicks"),
    "figure3": (_time, "ratings"),
    "figure4": (_resampling, "ratings"),
    "figure5": (_visits, "ratings"),
    "figure6": (_complexity, "ratings"),
    "figure8": (_time, "clicks"),
    "figure9": (_slices, "ratings"),
    "figure9b": (_slices, "clicks"),
}
"""The paper's Figures 1-6, 8 and 9 (b: clicks), of ratings or clicks."""
