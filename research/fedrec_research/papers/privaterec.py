"""Tables and figures of PrivateRec (Liu et al. 2022) as `fedrec research figures` names them; every
row is one of `news_paper`'s.

A row's guarantee is that of training, per click; what serving adds stands in the series or on the x
axis. Published values are of MIND.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from fedrec.news.attention import gaussian_plan, gaussian_plan_as_printed
from fedrec.privacy.guarantee import Guarantee
from fedrec_research.news import Method, news_row
from fedrec_research.news_paper import (
    BASES,
    FIGURE_4,
    FIGURE_5,
    FIGURE_6,
    FIGURE_7,
    MODELS,
    PADDINGS,
    SERVED,
    ignores_history,
    methods,
    summary,
    tables_of,
)
from fedrec_research.papers.paper import Line, Paper, Work
from fedrec_research.papers.starts import Start, heading
from fedrec_research.trials import Row

_METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")
_OTHER_DATA = (
    "NOT the paper's data (MIND and NewsFeeds): this is a click log of ml-1m. Compare orders, not "
    "values. plm-nr has no language model here: its rows are an SVD of the films' metadata."
)


@dataclass(frozen=True)
class _Point:
    """One run as one point: `served` is the epsilon of serving, inf for none."""

    method: Method
    series: str
    x: float | str
    served: float = math.inf
    metrics: tuple[str, ...] = _METRICS[:1]


def _figure(name: str, work: Work) -> list[Line]:
    """Every run once for each seed, of a small part the first run."""
    points = POINTS[name][:1] if work.quick else POINTS[name]
    data = work.start.data or work.start.scenario.data.path
    asked = {p.method.name: (news_row, data, p.method, SERVED) for p in points}
    found = {
        run: summary(dict(zip(work.seeds, rows, strict=True)))
        for run, rows in work.by_seed(asked).items()
    }
    return [line for line, _ in _lines(name, points, found)]


def _lines(
    name: str, points: Sequence[_Point], found: Mapping[str, Row]
) -> Iterator[tuple[Line, Sequence[int]]]:
    """With their seeds, of what `news_paper.summary` found."""
    for point in points:
        if row := found.get(point.method.name):
            served = f"{point.served}"
            for metric in point.metrics:
                # rows that were made before seeds were kept have one
                usual = [row["served"][served][metric]]
                each = row.get("each", {}).get(served, {}).get(metric, usual)
                promise = _promise(row)
                seeds = list(row.get("seeds", [1]))
                yield Line(metric, point.series, point.x, each, promise), seeds
    if name == "figure5":
        yield from ((line, ()) for line in _noise_scales())


def _noise_scales() -> Iterator[Line]:
    """Figure 5's first panel: the noise of one weight that padding leaves, for weights that are
    not clipped; ours, and as printed (Alg. 2, l. 1)."""
    plans = {"": gaussian_plan, ", as printed": gaussian_plan_as_printed}
    for served, (form, plan), padding in product(SERVED[1:4], plans.items(), PADDINGS):
        promise = Guarantee(served, 1e-5, unit="click", neighbours="replace")
        found = plan(promise, theta=1.0, padding=padding)
        series = f"one answer at epsilon {served:g}{form}"
        metric = "noise std of an attention weight"
        yield Line(metric, series, padding, [found.noise_std], str(found.guarantee))


def of_news_paper(result: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    """Name and content, as `figures.run` gives it, of every table and figure that `bench
    news-paper` made a run of."""
    found = result["methods"]
    for name, points in POINTS.items():
        rows = [line.row(name, seeds) for line, seeds in _lines(name, points, found)]
        if any(point.method.name in found for point in points):
            start = Start(f"{PAPER.prefix}_{name}")
            yield (
                name,
                {
                    "heading": heading(start.name),
                    "scenario": f"research/scenarios/{start.name}.toml",
                    "x": start.figure.x,
                    "each_seed": PAPER.each_seed,
                    "rows": rows,
                    "data": {"words": _OTHER_DATA},
                    "code": result.get("code", ""),
                    "note": " ".join([*_said(result), *_blind(points, found)]),
                },
            )


def _said(result: Mapping[str, Any]) -> list[str]:
    return [result["note"]] if result.get("note") else []


def _blind(points: Sequence[_Point], found: Mapping[str, Row]) -> list[str]:
    """Which runs ignore the history: they compare nothing."""
    names = dict.fromkeys(
        p.method.name
        for p in points
        if p.method.name in found and ignores_history(found[p.method.name])
    )
    listed = "; ".join(names)
    return [f"Exchanged histories do not change the AUC of: {listed}."] if names else []


def _promise(found: Row) -> str:
    stated: Row = {
        key: float(value) if key == "epsilon" else value
        for key, value in found["guarantee"].items()
    }
    return str(Guarantee(**stated)) if stated else ""


def _table(served: float) -> tuple[_Point, ...]:
    return tuple(
        _Point(method, f"{model}, {method.variant}", method.epsilon, served, _METRICS)
        for model in MODELS
        for method in tables_of(model)
    )


POINTS: Mapping[str, tuple[_Point, ...]] = {
    "table1": _table(math.inf),
    "table2": _table(10.0),
    "figure4": tuple(
        _Point(method, method.name, served, served) for method in FIGURE_4 for served in SERVED
    ),
    "figure5": tuple(
        _Point(method, f"B = {B}, served at epsilon {served:g}", padding, served)
        for B, methods in FIGURE_5.items()
        for served in SERVED[1:4]
        for method, padding in zip(methods, PADDINGS, strict=True)
    ),
    "figure6": (
        *(
            _Point(method, variant, method.epsilon)
            for variant, some in FIGURE_6.items()
            for method in some
        ),
        *(
            _Point(m, f"plm-nr, {m.variant}", m.epsilon)
            for m in methods().values()
            if m.news.get("model") == "plm-nr" and m.epsilon < 10
        ),
    ),
    "figure7": tuple(
        _Point(m, variant, B)
        for variant, methods in FIGURE_7.items()
        for m, B in zip(methods, BASES, strict=True)
    ),
}
"""The paper's Tables 1 and 2 and Figures 4-7. x: epsilon of training, or of serving (4), padding
(5), basis vectors (7)."""

PAPER = Paper(
    name="PrivateRec",
    prefix="privaterec",
    figures={name: partial(_figure, name) for name in POINTS},
    fixed=("figure.seeds", "data.path"),  # seeds draw noise and initialisation
    divided_once=True,
)
