"""Figures of AM-SSP (Krichene et al. 2024), re-made; `PAPER` declares them, `PUBLISHED` is what the
paper says of them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed
being the split's), its standard error, every seed's value, and the guarantee. Guarantees are per
user and exact; the series "as printed" has the paper's own calibration, and says what it is worth.
DP-CMF is a curve of Figures 1 and 2 too: see `dp_cmf`. Figure 7 shows a property of the paper's
metadata.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from fedrec.data.kinds import KINDS
from fedrec.encoders import items as encoder
from fedrec_simulations.experiments.papers import am_ssp_costs as costs
from fedrec_simulations.experiments.papers.ada_dpals_runs import (
    BUCKETS,
    STARTS,
    metric_of,
    reference_trial,
)
from fedrec_simulations.experiments.papers.am_ssp_runs import (
    CLICK_DPSGD,
    DPSGD,
    LOOPBACK,
    OURS,
    PLAIN,
    PRINTED,
    SSP,
    SSP1,
    Curve,
    at_rate,
    best_rate,
    central_run,
    curve_trial,
    loaded,
    one_run,
    resampled,
    timed,
)
from fedrec_simulations.experiments.papers.paper import (
    BySeed,
    Line,
    Paper,
    Work,
    by_seed,
    joined,
)
from fedrec_simulations.experiments.papers.starts import Start
from fedrec_simulations.experiments.row_queue import Choices, Plan
from fedrec_simulations.experiments.rows import Row
from fedrec_simulations.experiments.trials import Trial

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
    "figure3": {
        "how": "printed in 4.3, of ML-10M on one P100",
        "seconds of AM-DPSGD over AM-SSP": "about 100",
    },
    "figure4": {
        "how": "printed in 4.4, of ML-10M",
        "more resamples": "worse, the more so the smaller epsilon",
    },
    "figure5": {
        "how": "printed in App. C",
        "visits per item": "more than 100 for batches up to a few thousand",
    },
    "figure6": {
        "how": "printed in App. C",
        "c = d^2": (
            "SSP is cheaper in a large region, by orders of magnitude for batches of 100 to 1,000"
        ),
        "c = d": "SSP is dearer, unless epochs are very many",
    },
    "figure8": {
        "how": "printed in E.2, of ML-20M",
        "seconds of AM-DPSGD over AM-SSP": "about 1,000",
    },
    "figure9": {
        "how": "printed in E.3, of ML-10M",
        "rare buckets": "AM-DPSGD and AM-SSP far ahead of DP-ALS",
        "AM-SSP against AM-DPSGD": "better on frequent, worse on rare items",
    },
    "figure9b": {
        "how": "printed in E.3, of ML-20M",
        "AM-DPSGD": "worst in all buckets",
        "AM-SSP over DP-ALS": "most on rare items",
    },
}
"""What the paper prints.

Its curves were not read off their axes, and it prints no hyper-parameters by epsilon."""


def _points(work: Work) -> list[int]:
    """Batch sizes or numbers of resamples; of a small part the first and the last."""
    points = [int(p) for p in work.points]
    return points[:: len(points) - 1] if work.quick and points else points


def _privacy_utility(work: Work) -> Plan[list[Line]]:
    """Figures 1 and 2: quality against epsilon; SSP1 on ratings alone, as its 16 releases a step
    are 16 times the work."""
    ratings, metric = KINDS[work.kind].rated, metric_of(work.kind)
    curves = (LOOPBACK, SSP, *((SSP1,) if ratings else ()), *_rival(work), PRINTED, OURS)
    wanted = [*product(curves, work.epsilons), *((curve, math.inf) for curve in (LOOPBACK, SSP))]
    found = yield from _rows(work, wanted)
    lines = [_line(work, label, epsilon, rows) for (label, epsilon), rows in found.items()]
    if ratings:
        central = {
            e: partial(curve_trial, work, PLAIN, central_run, OURS, e) for e in work.epsilons
        }
        by_curator = yield from by_seed(work.seeds, central)
        lines += [_line(work, PLAIN, e, rows) for e, rows in by_curator.items()]
    # by the settings that Ada-DPALS' figures give it
    als = replace(work, start=Start(STARTS[work.kind], work.start.data))
    reference = yield from by_seed(work.seeds, {ALS: partial(reference_trial, als)})
    return [*lines, Line(metric, ALS, "inf", [row[metric] for row in reference[ALS]], "no privacy")]


def _rows(work: Work, wanted: Iterable[tuple[Curve, float]]) -> BySeed[tuple[str, float]]:
    """One tested training for each seed of these curves and epsilons, by label and epsilon."""
    return by_seed(
        work.seeds,
        {
            (curve.label, e): partial(curve_trial, work, curve.label, one_run, curve, e)
            for curve, e in wanted
        },
    )


def _line(work: Work, series: str, x: float, rows: Sequence[Row]) -> Line:
    metric = metric_of(work.kind)
    return Line(metric, series, x, [row[metric] for row in rows], rows[0]["guarantee"])


def _rival(work: Work) -> tuple[Curve, ...]:
    """AM-DPSGD; of clicks it has no biases."""
    return (DPSGD,) if KINDS[work.kind].rated else (CLICK_DPSGD,)


def _time(work: Work) -> Plan[list[Line]]:
    """Figures 3 and 8: quality on validation against processor seconds of training, round by
    round."""
    metric = f"validation {metric_of(work.kind)}"
    trials = {
        f"{curve.label}, epsilon = {e:g}": partial(
            curve_trial, work, f"time of {curve.label}", timed, curve, e
        )
        for curve, e in product((SSP, *_rival(work)), work.epsilons)
    }
    found = yield from by_seed(work.seeds, trials)
    return [
        line
        for series, rows in found.items()
        for line in joined([_points_in_time(metric, series, row) for row in rows])
    ]


def _points_in_time(metric: str, series: str, row: Row) -> list[Line]:
    return [
        Line(metric, series, point["seconds"], [point["value"]], row["guarantee"])
        for point in row["points"]
    ]


def _resampling(work: Work) -> Plan[list[Line]]:
    """Figure 4: one item update, with noise drawn 1 to 16 times; the learning rate of every point
    chosen on validation."""
    points = list(
        product(work.epsilons, _points(work), ("all examples (Alg. 2)", "batches (Alg. 4)"))
    )
    curves = {
        point: resampled(point[1], 1 / point[1] if point[2].startswith("batches") else 1.0)
        for point in points
    }
    rates = yield Choices(
        {
            at: curve_trial(work, f"rate of {curve.label}", best_rate, curve, at[0], work.seeds[0])
            for at, curve in curves.items()
        }
    )
    chosen = {at: at_rate(curve, rates[at]["learning_rate"]) for at, curve in curves.items()}
    found = yield from _rows(work, [(curve, at[0]) for at, curve in chosen.items()])
    return [
        _line(work, f"epsilon = {at[0]:g}, {at[2]}", at[1], found[curve.label, at[0]])
        for at, curve in chosen.items()
    ]


def _slices(work: Work) -> Plan[list[Line]]:
    """Figure 9: quality by popularity, the rarest fifth of the items first."""
    found = yield from _rows(work, product((LOOPBACK, SSP, *_rival(work)), work.epsilons))
    return [
        Line(
            metric_of(work.kind),
            f"{label}, epsilon = {epsilon:g}",
            b,
            [row["buckets"][b] for row in rows],
            rows[0]["guarantee"],
        )
        for (label, epsilon), rows in found.items()
        for b in range(BUCKETS)
    ]


def _visits(work: Work) -> Plan[list[Line]]:
    """Figure 5: counts of items, and visits of an item in an epoch against the batch size."""
    yield {}  # nothing is trained
    batches, of_splits = _points(work), list[list[Line]]()
    for seed in work.seeds:
        train = loaded(work.start, seed)[1].train
        found = costs.visits_of_data(train.items, train.num_items, batches, seed)
        of_splits.append(_lines(found))
    return [*_lines(costs.visits_of_power_laws(batches)), *joined(of_splits)]


def _lines(found: Iterable[tuple[str, str, float, float]]) -> list[Line]:
    return [Line(metric, series, x, [value]) for metric, series, x, value in found]


def _complexity(work: Work) -> Plan[list[Line]]:
    """Figure 6: what SSP2 costs over what DP-SGD costs, by eq. 9 and, in processor seconds of this
    machine, measured."""
    d, D, m = costs.DIMENSION, costs.EXAMPLES, costs.ITEMS
    counts, lines = costs.power_law(0.3), list[Line]()
    for (words, c), e, size in product(
        {"c = d^2": d**2, "c = d": d}.items(), EPOCHS, _points(work)
    ):
        ratio = costs.cost_ratio(
            visits=costs.visits(counts, size),
            epochs=e,
            pass_cost=c,
            dimension=d,
            examples_per_item=D / m,
        )
        lines.append(Line("cost ratio", f"{words}, {e} epochs", size, [ratio]))
    asked = product(("all features", "one feature"), (8,) if work.quick else (16, costs.DIMENSION))
    found = yield from by_seed(work.seeds, {at: partial(_costs, work, *at) for at in asked})
    return [
        *lines,
        *(
            line
            for (words, width), rows in found.items()
            for line in joined([list(_measured(f"{words}, d = {width}", row)) for row in rows])
        ),
    ]


def _costs(work: Work, words: str, width: int, seed: int) -> Trial:
    name = f"costs-{words}-{width}-{seed}-{work.start.key}"
    return Trial.of(name, costs_row, work.start, words, width, seed)


def _measured(series: str, row: Row) -> Iterator[Line]:
    yield Line(
        "processor seconds of the statistics", f"SSP2, {series}", "once", [row["statistics"]]
    )
    for metric, key in (
        ("processor seconds of an epoch by items per batch", "by_items"),
        ("processor seconds of an epoch by examples per batch", "by_examples"),
    ):
        yield from (
            Line(metric, series, int(size) or "all", [seconds])
            for size, seconds in row[key].items()
        )
    for e, (size, seconds) in product(EPOCHS, row["by_examples"].items()):
        ratio = (row["statistics"] + e * row["by_items"]["0"]) / (e * seconds)
        yield Line("measured cost ratio", f"{series}, {e} epochs", int(size), [ratio])


def costs_row(start: Start, words: str, width: int, seed: int) -> Row:
    """Processor seconds of `am_ssp_costs.measure` on one split, with all categories of features, or
    with the first alone."""
    dataset, split = loaded(start, seed)
    names = list(dataset.features.bags)
    inputs = encoder.prepare(dataset.features.only(names if words == "all features" else names[:1]))
    sizes = tuple(size for size in (100, 1_000, 10_000) if size <= len(split.train))
    found = costs.measure(split.train, inputs, width, item_batches=(0, 256), batches=sizes)
    tables = {"by_items": found.by_items, "by_examples": found.by_examples}
    return {"statistics": found.statistics} | {
        name: {str(size): s for size, s in table.items()} for name, table in tables.items()
    }


PAPER = Paper(
    name="AM-SSP",
    prefix="am_ssp",
    figures={
        "figure1": _privacy_utility,
        "figure2": _privacy_utility,
        "figure3": _time,
        "figure4": _resampling,
        "figure5": _visits,
        "figure6": _complexity,
        "figure8": _time,
        "figure9": _slices,
        "figure9b": _slices,
    },
    published=PUBLISHED,
    timed=("figure3", "figure6", "figure8"),
)
"""The paper's Figures 1-6, 8 and 9 (2, 8, 9b: clicks)."""
