"""Tables and figures of PrivateRec (Liu et al. 2022) as `bench paper` names them; every row is one of `bench.news_paper`'s.

A row's guarantee is that of training, per click; what serving adds stands in the series or on the x axis. Published values are of MIND.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.privacy.guarantee import Guarantee
from fedrec.storage import finite
from fedrec_simulations.experiments.news import Method, kept_row
from fedrec_simulations.experiments.news_paper import (
    BASES,
    FIGURE_4,
    FIGURE_5,
    FIGURE_6,
    FIGURE_7,
    MODELS,
    PADDINGS,
    SERVED,
    methods,
    tables_of,
)
from fedrec_simulations.experiments.papers.starts import started
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error
from fedrec_simulations.report.news_published import TABLES

_TOLD = ("figure.seeds", "data.path")
_METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "table1": {
        "how": "printed in Table 1, of MIND, served without noise: AUC in percent",
        **{f"{p.model}, {p.method}": round(100 * p.metrics["AUC"], 2) for p in TABLES if math.isinf(p.serving)},
    },
    "table2": {
        "how": "printed in Table 2, of MIND, served at epsilon 10: AUC in percent",
        **{f"{p.model}, {p.method}": round(100 * p.metrics["AUC"], 2) for p in TABLES if p.serving == 10},
    },
    "figure4": {"how": "the curves have no printed values", "AUC": "falls with the epsilon of serving"},
    "figure5": {"how": "the curves have no printed values", "best p by B": {5: 0.5, 3: 0.2}},
    "figure6": {"how": "printed in the text, of NewsFeeds", "AUC of PrivateRec at epsilon 5, in percent": 61.35},
    "figure7": {"how": "the curves have no printed values", "best B": 3},
}
"""What the paper prints."""


def figure(name: str, data: str, quick: bool, folder: Path, *, overrides: Sequence[str] = ()) -> list[Row]:
    """Rows of one table or figure of `FIGURES`; `data` "planted" is the small planted log. `quick`: one run.

    overrides: only `figure.seeds`, which draw noise and initialisation, and `data.path`. Finished runs are kept in `folder`.
    Raises SettingsError on another name, on another key, or without data.
    """
    if name not in FIGURES:
        raise SettingsError(f"PrivateRec has no {name!r}", f"Use one of: {', '.join(FIGURES)}.")
    if other := [said for said in overrides if said.partition("=")[0].strip() not in _TOLD]:
        raise SettingsError(
            f"{other[0]} changes no figure of PrivateRec, whose runs are fixed",
            f"fedrec simulate simulations/privaterec_{name}.toml --set ...",
        )
    start = started(f"privaterec_{name}", data, tuple(overrides))
    place, seeds = data or start.scenario.data.path, start.seeds(quick)
    kept = folder_of(folder, place)
    points = (_rows(name, point, place, seeds, kept) for point in (FIGURES[name][:1] if quick else FIGURES[name]))
    return [dict(finite(row)) for rows in points for row in rows]


@dataclass(frozen=True)
class _Point:
    """One run as one point: `served` is the epsilon of serving, inf for none."""

    method: Method
    series: str
    x: float | str
    served: float = math.inf
    metrics: tuple[str, ...] = _METRICS[:1]


def _rows(name: str, point: _Point, data: str, seeds: tuple[int, ...], folder: Path) -> Iterator[Row]:
    method = replace(point.method, seeds=seeds)
    found = [kept_row(folder, data, method, seed, SERVED) for seed in seeds]
    for metric in point.metrics:
        each = [_value(one, point.served, metric) for one in found]
        value, error = mean_and_error(each)
        content = {"figure": name, "metric": metric, "series": point.series, "x": point.x, "value": value, "standard_error": error}
        yield content | {"each": each, "seeds": list(seeds), "guarantee": _promise(found[0])}


def _value(found: Row, served: float, metric: str) -> float:
    metrics = [answer["metrics"][metric] for answer in found["serving"]["answers"] if float(answer["epsilon"]) == served]
    return float(metrics[0]) if metrics else math.nan


def _promise(found: Row) -> str:
    stated: Row = {key: float(value) if key == "epsilon" else value for key, value in found["guarantee"].items()}
    return str(Guarantee(**stated)) if stated else ""


def _table(served: float) -> tuple[_Point, ...]:
    return tuple(
        _Point(method, f"{model}, {method.variant}", method.epsilon, served, _METRICS) for model in MODELS for method in tables_of(model)
    )


FIGURES: Mapping[str, tuple[_Point, ...]] = {
    "table1": _table(math.inf),
    "table2": _table(10.0),
    "figure4": tuple(_Point(method, method.name, served, served) for method in FIGURE_4 for served in SERVED),
    "figure5": tuple(
        _Point(method, f"B = {B}, served at epsilon {served:g}", padding, served)
        for B, methods in FIGURE_5.items()
        for served in SERVED[1:4]
        for method, padding in zip(methods, PADDINGS, strict=True)
    ),
    "figure6": (
        *(_Point(method, variant, method.epsilon) for variant, some in FIGURE_6.items() for method in some),
        *(_Point(m, f"plm-nr, {m.variant}", m.epsilon) for m in methods().values() if m.news.get("model") == "plm-nr" and m.epsilon < 10),
    ),
    "figure7": tuple(_Point(m, variant, B) for variant, methods in FIGURE_7.items() for m, B in zip(methods, BASES, strict=True)),
}
"""The paper's Tables 1 and 2 and Figures 4-7. x: epsilon of training, or of serving (4), padding (5), basis vectors (7)."""
