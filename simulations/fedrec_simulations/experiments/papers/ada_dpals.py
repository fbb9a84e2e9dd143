"""Figures and tables of Ada-DPALS (Krichene et al. 2023), re-made; `PAPER` declares them,
`PUBLISHED` is what the paper says of them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed
being the split's), its standard error, every seed's value, and the guarantee. Of the panels of
noisy gradient descent (half of Figures 1-3 and 9) the curves by mu are here, mu = 0 for weights
that are all the same; sampling items of a user, and descent without privacy, are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fedrec.data.kinds import KINDS
from fedrec_simulations.experiments.papers.ada_dpals_runs import (
    BUCKETS,
    EQ_12,
    TAIL,
    UNIFORM,
    ada,
    item_counts,
    metric_of,
    reference_trial,
    sgd,
    trained_trial,
)
from fedrec_simulations.experiments.papers.ada_dpals_tasks import planted_task_lines
from fedrec_simulations.experiments.papers.paper import BySeed, Line, Paper, Work, by_seed
from fedrec_simulations.experiments.row_queue import Plan
from fedrec_simulations.experiments.rows import Row

ALS, IMPROVEMENT = "ALS (not private)", "least improvement over DPALS (tail)"


PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "figure1": {
        "how": "printed in Sec. 5; the curves have no printed values",
        "order, best first": ("Ada-DPALS", TAIL, UNIFORM),
    },
    "figure2": {
        "how": "printed in Sec. 5; the curves have no printed values",
        "order, best first": ("Ada-DPALS", TAIL, UNIFORM),
    },
    "figure3": {
        "how": "printed in Sec. 5",
        "best mu": ("1/4", "1/2"),
        "mu = 1": "a clear degradation",
    },
    "figure4": {
        "how": "printed in Sec. 5",
        "rare buckets": "better with larger mu",
        "most frequent bucket": "worse with larger mu",
    },
    "figure5": {
        "how": "printed in App. C",
        "mu = 0": "poor, most at small epsilon",
        "best mu": "1/2 by theory, varies by case",
    },
    "figure7": {
        "how": "printed in Sec. 5, of ML-20M",
        "share of events of the most frequent tenth": 0.86,
    },
    "figure8": {
        "how": "printed in D.2, of ML-10M at epsilon 1; buckets as numbered there",
        "improvement is at least, by bucket": {0: 0.216, 1: 0.237, 3: 0.228, 4: 0.084},
    },
    "figure9": {"how": "printed in D.2", "best mu": "1/4, and 1/4 to 1/2 stays good"},
    "figure10": {"how": "printed in D.3", "order, most overlap first": (ada("1/3"), TAIL)},
    "tables": {
        "how": "Tables 3 and 4 of ML-20M",
        "frequent films": "privacy changes little",
        "rare films": "Ada-DPALS is closer to ALS",
    },
}
"""What the paper prints. Its curves were not read off their axes."""


def _rows(work: Work, wanted: Iterable[tuple[str, float]]) -> BySeed[tuple[str, float]]:
    """Rows of these methods and epsilons, for every seed."""
    return by_seed(
        work.seeds, {(method, e): partial(trained_trial, work, method, e) for method, e in wanted}
    )


def _privacy_utility(work: Work) -> Plan[list[Line]]:
    """Figures 1 and 2: quality against epsilon; Ada-DPALS at mu = 1/4, with weights to the whole
    budget and as printed; descent at mu = 1/4 and 0."""
    metric = metric_of(work.kind)
    methods = (UNIFORM, TAIL, ada("1/4"), EQ_12, sgd("1/4"), sgd(0))
    found = yield from _rows(work, product(methods, work.epsilons))
    reference = (yield from _reference(work))[ALS]
    lines = [_line(work, method, epsilon, rows) for (method, epsilon), rows in found.items()]
    lines.append(Line(metric, ALS, "inf", [row[metric] for row in reference], "no privacy"))
    simple = {
        name: [row["baselines"][name] for row in reference] for name in reference[0]["baselines"]
    }
    return [
        *lines,
        *(
            Line(metric, f"{name} (not private)", "inf", each, "no privacy")
            for name, each in simple.items()
        ),
    ]


def _reference(work: Work) -> BySeed[str]:
    return by_seed(work.seeds, {ALS: partial(reference_trial, work)})


def _exponents(work: Work) -> Plan[list[Line]]:
    """Figures 3 and 9: quality against mu, of sufficient statistics and of descent."""
    panels = {"": ada, "DPSGD, ": sgd}
    at = list(product(panels, work.epsilons, work.points))
    found = yield from _rows(work, [(panels[panel](mu), epsilon) for panel, epsilon, mu in at])
    return [
        _line(work, f"{panel}epsilon = {epsilon:g}", mu, found[panels[panel](mu), epsilon])
        for panel, epsilon, mu in at
    ]


def _line(work: Work, series: str, x: float, rows: Sequence[Row]) -> Line:
    metric = metric_of(work.kind)
    return Line(metric, series, x, [row[metric] for row in rows], rows[0]["guarantee"])


def _slices(work: Work) -> Plan[list[Line]]:
    """Figures 4 and 8: quality against the popularity of items; for ratings also the least
    improvement over tail sampling."""
    methods, metric = (UNIFORM, TAIL, *map(ada, work.points)), metric_of(work.kind)
    found = yield from _rows(work, product(methods, work.epsilons))
    lines = list[Line]()
    for epsilon in work.epsilons:
        at = {method: found[method, epsilon] for method in methods}
        for (method, rows), b in product(at.items(), range(BUCKETS)):
            lines.append(
                Line(
                    metric,
                    f"{method}, epsilon = {epsilon:g}",
                    b,
                    _in_bucket(rows, b),
                    rows[0]["guarantee"],
                )
            )
        for b in range(BUCKETS) if KINDS[work.kind].rated else ():
            lines.append(
                Line(
                    "share",
                    f"{IMPROVEMENT}, epsilon = {epsilon:g}",
                    b,
                    _improvement(at, b),
                    at[TAIL][0]["guarantee"],
                )
            )
    return lines


def _in_bucket(rows: Sequence[Row], b: int) -> list[float]:
    return [row["buckets"][b] for row in rows]


def _improvement(found: Mapping[str, Sequence[Row]], b: int) -> list[float]:
    """1 - RMSE / RMSE of tail sampling, of the worst mu, for each seed."""
    worst = np.max(
        [_in_bucket(rows, b) for method, rows in found.items() if method not in {UNIFORM, TAIL}],
        axis=0,
    )
    return [float(1 - w / tail) for w, tail in zip(worst, _in_bucket(found[TAIL], b), strict=True)]


def _skew(work: Work) -> Plan[list[Line]]:
    """Figure 7: which share of the training events the most frequent items have, and the size of
    the item there. Not private."""
    yield {}  # nothing is trained
    sizes, lines = [np.sort(item_counts(work, seed))[::-1] for seed in work.seeds], list[Line]()
    for share in (0.01, 0.05, *np.arange(1, 11) / 10):
        places = [max(round(share * len(s)), 1) for s in sizes]
        shares = [float(s[:p].sum() / s.sum()) for s, p in zip(sizes, places, strict=True)]
        lines.append(Line("share", "share of events", float(share), shares))
        lines.append(
            Line(
                "count",
                "events of the item there",
                float(share),
                [float(s[p - 1]) for s, p in zip(sizes, places, strict=True)],
            )
        )
    return lines


def _overlap(work: Work) -> Plan[list[Line]]:
    """Figure 10: share of the 20 nearest neighbours by ALS that the private models at epsilon 1
    find too."""
    found = yield from _rows(
        work,
        [(method, e) for e in work.epsilons for method in (UNIFORM, TAIL, *map(ada, work.points))],
    )
    return [
        Line("share", method, b, [row["overlap"][b] for row in rows], rows[0]["guarantee"])
        for (method, _), rows in found.items()
        for b in range(BUCKETS)
    ]


def _neighbours(work: Work) -> Plan[list[Line]]:
    """Tables 3 and 4, of the first seed: x is the query, the value its count in train, `list` its
    neighbours."""
    reference = (yield from _reference(work))[ALS]
    found = yield from _rows(
        work, [(method, work.epsilons[0]) for method in (TAIL, *map(ada, work.points))]
    )
    first = {ALS: reference[0], **{method: rows[0] for (method, _), rows in found.items()}}
    return [
        Line(
            "count",
            series,
            query["item"],
            [float(query["frequency"])] * len(work.seeds),
            row["guarantee"],
            {"list": query["list"]},
        )
        for series, row in first.items()
        for query in row["neighbours"]
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
    published=PUBLISHED,
    no_data=("figure5",),
)
"""The paper's Figures 1-10 and Tables 3-4 (2, 4b, 8b, 9: clicks); 6 is Figure 2 on another data
set."""
