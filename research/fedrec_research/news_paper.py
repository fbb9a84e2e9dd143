"""The tables and figures of the PrivateRec paper on a click log, with what the paper prints for
MIND beside them.

Protocol: that of `fedrec research measure news` (`fedrec.data.clicklog`, split.seed 20), one
division; seeds draw noise and initialisation, and are said with each row. Test users were looked at
for these tables only. Learning rate, passes and the public start were chosen on validation users,
at first of another division, whose validation users may be test users here. DP-FedRec at infinite
epsilon is FedRec. Published figures are of MIND, which is other data: compare orders, not values.
Every row is a run of `fedrec simulate` in a process of its own, kept in a folder: the benchmark
goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_research.news import Method, news_row
from fedrec_research.trials import Asked, Row, code, paragraph

SERVED = (math.inf, 10.0, 5.0, 1.0, 0.1, 0.01, 0.001)
"""Epsilons of serving: Figure 4's."""
MODELS = ("nrms", "naml", "plm-nr")
PADDINGS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)
"""Figure 5's."""
BASES = (1, 3, 5, 10, 32)
"""Figure 7's."""
_METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")
_PRIVATE = ("local", "printed", "dp-fedrec")


def _method(variant: str, epsilon: float, model: str = "nrms", **news: float) -> Method:
    chosen = {
        key: value
        for key, value in news.items()
        if (key, value) not in {("padding", 0.0), ("basis", 5)}
    }
    return Method(
        variant, epsilon, ({"model": model} if model != "nrms" else {}) | chosen, seeds=(1,)
    )


FIGURE_4 = (
    *(_method(v, e) for v in ("local", "printed") for e in (1.0, 10.0, 20.0)),
    _method("fedrec", math.inf),
)
FIGURE_5 = {B: tuple(_method("local", 10.0, basis=B, padding=p) for p in PADDINGS) for B in (3, 5)}
FIGURE_6 = {v: tuple(_method(v, e) for e in (1.0, 5.0, 10.0, 20.0)) for v in _PRIVATE}
FIGURE_7 = {v: tuple(_method(v, 10.0, basis=B) for B in BASES) for v in ("local", "printed")}


def tables_of(model: str) -> tuple[Method, ...]:
    """Rows of Tables 1 and 2."""
    free = [_method(variant, math.inf, model) for variant in ("centralized", "fedrec")]
    return (*free, *(_method(variant, 10.0, model) for variant in _PRIVATE))


def methods() -> dict[str, Method]:
    """Every run that a table or a figure shows, once, by name: those of Table 1 first."""
    figures = (*FIGURE_6.values(), FIGURE_4, *FIGURE_7.values(), *FIGURE_5.values())
    others = [_method(v, e, "plm-nr") for e in (5.0, 1.0) for v in ("local", "dp-fedrec")]
    listed = [
        *(m for model in MODELS for m in tables_of(model)),
        *(m for part in figures for m in part),
        *others,
    ]
    return {m.name: m for m in listed}


def chosen(only: Sequence[str]) -> dict[str, Method]:
    """Return those of all runs that one of `only` names: a run's whole name, or its variant,
    encoder, "epsilon 5", "basis 3", "padding 0.1", or several of these with commas between; without
    any, all.

    Raises SettingsError where one of them names no run."""
    listed = methods()
    parts = {name: {*name.split(", "), m.news.get("model", "nrms")} for name, m in listed.items()}
    wanted = dict[str, Method]()
    for said in only:
        asked = {part.strip() for part in said.split(",")}
        names = [said] if said in listed else [name for name in listed if asked <= parts[name]]
        if not names:
            known = ", ".join(sorted(set[Any]().union(*parts.values())))
            raise SettingsError(
                f"no run of news-paper is {said!r}",
                f"Use one of: {known}; or several with commas between, as 'local, naml'.",
            )
        wanted |= {name: listed[name] for name in names}
    return {name: m for name, m in listed.items() if name in wanted} if only else listed


def run(asked: Asked) -> Row:
    """Every run, or those of `chosen`; data "planted" is the small planted set.

    Raises SettingsError on an unknown run."""
    some = chosen(asked.only or (["local, epsilon 10"] if asked.quick else []))
    if asked.quick:
        some = dict(list(some.items())[:1])
    seeds = asked.seeds_of((1,))
    rows = asked.by_seed(
        {name: (news_row, asked.path, method, SERVED) for name, method in some.items()}, seeds
    )
    found = {
        name: summary(dict(zip(seeds, rows_of_one, strict=True)))
        for name, rows_of_one in rows.items()
    }
    return {"protocol": paragraph(__doc__), "code": code(), "methods": found}


def summary(by_seed: Mapping[int, Row]) -> Row:
    """What is shown of one run: means over seeds, and at each epsilon of serving the values of
    every seed."""
    rows = list(by_seed.values())
    found = rows[0]
    each = dict[str, Row]()
    for at, answer in enumerate(found["serving"]["answers"]):
        seen = [row["serving"]["answers"][at]["metrics"] for row in rows]
        each[f"{answer['epsilon']}"] = {name: [m[name] for m in seen] for name in _METRICS}
    content = {
        "guarantee": found["guarantee"],
        "seeds": list(by_seed),
        "each": each,
        "served": {e: {name: _mean(values) for name, values in m.items()} for e, m in each.items()},
        "auc_stderr": _mean([row["metrics"]["auc_stderr"] for row in rows]),
        "history_swap_auc": _mean([row["controls"]["history_swap_auc"] for row in rows]),
        "rounds": found["rounds"],
        "seconds": max(row["training_seconds"] for row in rows),
        "bytes_up_per_client": found["bytes_up_per_client"],
        "baselines": {
            name: metrics["auc"]
            for name, metrics in found["baselines"].items()
            if "served at" not in name
        },
    }
    return dict(finite(content))


def ignores_history(found: Row) -> bool:
    """Whether exchanged histories change its AUC by no more than a standard error."""
    gap = abs(found["history_swap_auc"] - found["served"]["inf"]["auc"])
    return bool(gap <= found["auc_stderr"])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
