"""Figures and tables of Ada-DPALS (Krichene et al. 2023), re-made; `PAPER` declares them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed
being the split's), its standard error, every seed's value, and the guarantee. Of the panels of
noisy gradient descent (half of Figures 1-3 and 9) the curves by mu are here, mu = 0 for weights
that are all the same; sampling items of a user, and descent without privacy, are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from fedrec.data.kinds import KINDS
from fedrec_research.papers.ada_dpals_runs import (
    BUCKETS,
    EQ_12,
    TAIL,
    UNIFORM,
    ada,
    loaded,
    metric_of,
    one_run,
    reference_run,
    sgd,
)
from fedrec_research.papers.ada_dpals_tasks import planted_task_lines
from fedrec_research.papers.paper import Keys, Line, Paper, Point, Work
from fedrec_research.runner import item_counts
from fedrec_research.trials import Row

ALS = "ALS (not private)"
IMPROVEMENT = "least improvement over DPALS (tail)"
_SIMPLE = {True: ("global mean", "item mean", "item + user bias"), False: ("popularity",)}


def _point(
    work: Work, method: str, epsilon: float, series: str, x: float, keys: Keys = ""
) -> Point:
    metric = metric_of(work.kind)
    return Point(series, x, one_run, (work.start, method, epsilon), {metric: keys or metric})


def _privacy_utility(work: Work) -> list[Line]:
    """Figures 1 and 2: quality against epsilon; Ada-DPALS at mu = 1/4, with weights to the whole
    budget and as printed; descent at mu = 1/4 and 0."""
    metric = metric_of(work.kind)
    methods = (UNIFORM, TAIL, ada("1/4"), EQ_12, sgd("1/4"), sgd(0))
    references: dict[str, Keys] = {ALS: metric} | {
        f"{name} (not private)": ("baselines", name) for name in _SIMPLE[KINDS[work.kind].rated]
    }
    return work.lines(
        [
            *(_point(work, method, e, method, e) for method, e in product(methods, work.epsilons)),
            *(
                Point(series, "inf", reference_run, (work.start,), {metric: keys})
                for series, keys in references.items()
            ),
        ]
    )


def _exponents(work: Work) -> list[Line]:
    """Figures 3 and 9: quality against mu, of sufficient statistics and of descent."""
    panels = {"": ada, "DPSGD, ": sgd}
    return work.lines(
        _point(work, panels[panel](mu), epsilon, f"{panel}epsilon = {epsilon:g}", mu)
        for panel, epsilon, mu in product(panels, work.epsilons, work.points)
    )


def _slices(work: Work) -> list[Line]:
    """Figures 4 and 8: quality against the popularity of items; for ratings also the least
    improvement over tail sampling."""
    methods = (UNIFORM, TAIL, *map(ada, work.points))
    lines = list[Line]()
    for epsilon in work.epsilons:
        at = f", epsilon = {epsilon:g}"
        lines += work.lines(
            _point(work, method, epsilon, f"{method}{at}", b, ("buckets", b))
            for method, b in product(methods, range(BUCKETS))
        )
        if KINDS[work.kind].rated:
            asked = {method: (one_run, work.start, method, epsilon) for method in methods[1:]}
            rows = work.by_seed(asked)
            tail = rows.pop(TAIL)
            lines += [
                Line("share", f"{IMPROVEMENT}{at}", b, each, tail[0]["guarantee"])
                for b, each in enumerate(_improvements(tail, rows.values()))
            ]
    return lines


def _improvements(tail: Sequence[Row], others: Iterable[Sequence[Row]]) -> list[list[float]]:
    """1 - RMSE / RMSE of tail sampling, of the worst mu, by bucket and seed."""
    errors = np.array([[row["buckets"] for row in rows] for rows in others])
    base = np.array([row["buckets"] for row in tail])
    found: list[list[float]] = (1 - errors.max(axis=0) / base).T.tolist()
    return found


def _skew(work: Work) -> list[Line]:
    """Figure 7: which share of the training events the most frequent items have, and the size of
    the item there. Not private."""
    trains = [loaded(work.start, seed)[1].train for seed in work.seeds]
    sizes = [np.sort(item_counts(train))[::-1] for train in trains]
    lines = list[Line]()
    for share in (0.01, 0.05, *np.arange(1, 11) / 10):
        at = [(s, max(round(share * len(s)), 1)) for s in sizes]
        shares = [float(s[:place].sum() / s.sum()) for s, place in at]
        there = [float(s[place - 1]) for s, place in at]
        lines.append(Line("share", "share of events", float(share), shares))
        lines.append(Line("count", "events of the item there", float(share), there))
    return lines


def _overlap(work: Work) -> list[Line]:
    """Figure 10: share of the 20 nearest neighbours by ALS that the private models at epsilon 1
    find too."""
    methods = (UNIFORM, TAIL, *map(ada, work.points))
    return work.lines(
        Point(method, b, one_run, (work.start, method, epsilon), {"share": ("overlap", b)})
        for epsilon, method, b in product(work.epsilons, methods, range(BUCKETS))
    )


def _neighbours(work: Work) -> list[Line]:
    """Tables 3 and 4, of the first seed: x is the query, the value its count in train, `list` its
    neighbours."""
    asked: dict[str, tuple[Any, ...]] = {ALS: (reference_run, work.start)} | {
        method: (one_run, work.start, method, work.epsilons[0])
        for method in (TAIL, *map(ada, work.points))
    }
    return [
        Line(
            "count",
            series,
            query["item"],
            [float(query["frequency"])] * len(work.seeds),
            rows[0]["guarantee"],
            {"list": query["list"]},
        )
        for series, rows in work.by_seed(asked).items()
        for query in rows[0]["neighbours"]
    ]


PAPER = Paper(
    name="Ada-DPALS",
    prefix="ada_dpals",
    figures={
        "figure1": _privacy_utility,
        "figure2": _privacy_utility,
        "figure3": _exponents,
        "figure4": _slices,
        "figure4b": _slices,
        "figure5": planted_task_lines,
        "figure7": _skew,
        "figure8": _slices,
        "figure8b": _slices,
        "figure9": _exponents,
        "figure10": _overlap,
        "tables": _neighbours,
    },
    no_data=("figure5",),
)
"""The paper's Figures 1-10 and Tables 3-4 (2, 4b, 8b, 9: clicks); 6 is Figure 2 on another data
set."""
