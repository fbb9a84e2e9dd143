"""Figures of AM-SSP (Krichene et al. 2024), re-made; `PAPER` declares them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed
being the split's), its standard error, every seed's value, and the guarantee. Guarantees are per
user and exact; the series "as printed" has the paper's own calibration, and says what it is worth.
DP-CMF is a curve of Figures 1 and 2 too: see `dp_cmf`. Figure 7 shows a property of the paper's
metadata.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

from fedrec.data.kinds import KINDS
from fedrec.encoders import items as encoder
from fedrec_research.papers import am_ssp_costs as costs
from fedrec_research.papers.ada_dpals_runs import BUCKETS, STARTS, metric_of, reference_run
from fedrec_research.papers.am_ssp_runs import (
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
    loaded,
    one_run,
    resampled,
    timed,
)
from fedrec_research.papers.paper import Keys, Line, Paper, Point, Work, joined
from fedrec_research.papers.starts import Start
from fedrec_research.trials import Row, trial

EPOCHS = (1, 10, 100, 1_000)
ALS = "ALS (not private)"


def _points(work: Work) -> list[int]:
    """Batch sizes or numbers of resamples; of a small part the first and the last."""
    points = [int(p) for p in work.points]
    return points[:: len(points) - 1] if work.quick and points else points


def _point(
    work: Work, curve: Curve, epsilon: float, series: str, x: float, keys: Keys = ""
) -> Point:
    metric = metric_of(work.kind)
    return Point(series, x, one_run, (work.start, curve, epsilon), {metric: keys or metric})


def _privacy_utility(work: Work) -> list[Line]:
    """Figures 1 and 2: quality against epsilon; SSP1 on ratings alone, as its 16 releases a step
    are 16 times the work."""
    ratings = KINDS[work.kind].rated
    metric = metric_of(work.kind)
    curves = (LOOPBACK, SSP, *((SSP1,) if ratings else ()), _rival(work), PRINTED, OURS)
    wanted = [*product(curves, work.epsilons), *((curve, math.inf) for curve in (LOOPBACK, SSP))]
    central = work.epsilons if ratings else ()
    # by the settings that Ada-DPALS' figures give it
    als = Start(STARTS[work.kind], work.start.data)
    return work.lines(
        [
            *(_point(work, curve, e, curve.label, e) for curve, e in wanted),
            *(
                Point(PLAIN, e, central_run, (work.start, OURS, e), {metric: metric})
                for e in central
            ),
            Point(ALS, "inf", reference_run, (als,), {metric: metric}),
        ]
    )


def _rival(work: Work) -> Curve:
    """AM-DPSGD; of clicks it has no biases."""
    return DPSGD if KINDS[work.kind].rated else CLICK_DPSGD


def _time(work: Work) -> list[Line]:
    """Figures 3 and 8: quality on validation against processor seconds of training, round by
    round."""
    metric = f"validation {metric_of(work.kind)}"
    found = work.by_seed(
        {
            f"{curve.label}, epsilon = {e:g}": (timed, work.start, curve, e)
            for curve, e in product((SSP, _rival(work)), work.epsilons)
        }
    )
    return [
        line
        for series, rows in found.items()
        for line in joined(
            [
                [
                    Line(metric, series, point["seconds"], [point["value"]], row["guarantee"])
                    for point in row["points"]
                ]
                for row in rows
            ]
        )
    ]


def _resampling(work: Work) -> list[Line]:
    """Figure 4: one item update, with noise drawn 1 to 16 times; the learning rate of every point
    chosen on validation."""
    ways = {"all examples (Alg. 2)": lambda n: 1.0, "batches (Alg. 4)": lambda n: 1 / n}
    curves = {
        (epsilon, n, way): resampled(n, share(n))
        for epsilon, n, (way, share) in product(work.epsilons, _points(work), ways.items())
    }
    rates = work.rows(
        {
            at: trial(best_rate, work.start, curve, at[0], work.seeds[0])
            for at, curve in curves.items()
        }
    )
    return work.lines(
        _point(
            work,
            at_rate(curves[e, n, way], row["learning_rate"]),
            e,
            f"epsilon = {e:g}, {way}",
            n,
        )
        for (e, n, way), row in rates.items()
    )


def _slices(work: Work) -> list[Line]:
    """Figure 9: quality by popularity, the rarest fifth of the items first."""
    return work.lines(
        _point(work, curve, e, f"{curve.label}, epsilon = {e:g}", b, ("buckets", b))
        for curve, e, b in product((LOOPBACK, SSP, _rival(work)), work.epsilons, range(BUCKETS))
    )


def _visits(work: Work) -> list[Line]:
    """Figure 5: counts of items, and visits of an item in an epoch against the batch size."""
    batches = _points(work)
    of_splits = list[list[Line]]()
    for seed in work.seeds:
        train = loaded(work.start, seed)[1].train
        found = costs.visits_of_data(train.items, train.num_items, batches, seed)
        of_splits.append(_lines(found))
    return [*_lines(costs.visits_of_power_laws(batches)), *joined(of_splits)]


def _lines(found: Iterable[tuple[str, str, float, float]]) -> list[Line]:
    return [Line(metric, series, x, [value]) for metric, series, x, value in found]


def _complexity(work: Work) -> list[Line]:
    """Figure 6: what SSP2 costs over what DP-SGD costs, by eq. 9 and, in processor seconds of this
    machine, measured."""
    d = costs.DIMENSION
    D = costs.EXAMPLES
    m = costs.ITEMS
    counts = costs.power_law(0.3)
    lines = list[Line]()
    passes = {"c = d^2": d**2, "c = d": d}
    for (words, c), e, size in product(passes.items(), EPOCHS, _points(work)):
        ratio = costs.cost_ratio(
            visits=costs.visits(counts, size),
            epochs=e,
            pass_cost=c,
            dimension=d,
            examples_per_item=D / m,
        )
        lines.append(Line("cost ratio", f"{words}, {e} epochs", size, [ratio]))
    widths = (8,) if work.quick else (16, costs.DIMENSION)
    found = work.by_seed(
        {
            f"{words}, d = {width}": (costs_row, work.start, words, width)
            for words, width in product(("all features", "one feature"), widths)
        }
    )
    measured = [
        joined([list(_measured(series, row)) for row in rows]) for series, rows in found.items()
    ]
    return [*lines, *(line for some in measured for line in some)]


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
    timed=("figure3", "figure6", "figure8"),
)
"""The paper's Figures 1-6, 8 and 9 (2, 8, 9b: clicks)."""
