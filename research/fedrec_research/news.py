"""Quality of PrivateRec's variants on a click log: AUC, MRR and nDCG per impression, mean over
seeds, beside controls.

Protocol: `fedrec.data.clicklog` with users held out at random, one division (split.seed 20) for
every row; seeds draw noise and initialisation. The public rows, the schedules of training and the
settings of `central` and `central-encoder` were chosen before, on validation users of other
divisions, so that some of these test users took part in those choices; the test users were looked
at for this table alone. Every row is a run of `fedrec simulate` in a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedrec.evaluation.intervals import mean_and_error
from fedrec.news.variant import require
from fedrec.settings import Scenario, validated
from fedrec.storage import finite
from fedrec_research.trials import ROWS, Asked, Row, merged, paragraph
from fedrec_research.workers import in_own_process

SEEDS = (1, 2, 3)
_SPLIT = {"kind": "held-out-users", "seed": 20}
_METRICS = ("auc", "mrr", "ndcg@10")
SERVED = (math.inf, 10.0, 5.0, 1.0)
"""Epsilons of serving that every row is measured at."""


@dataclass(frozen=True)
class Method:
    """One line before its seeds: a variant at an epsilon of training, and what else its scenario
    says under [news]."""

    variant: str
    epsilon: float
    news: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        """Name of its row."""
        more = "".join(
            f", {value}" if isinstance(value, str) else f", {key} {value:g}"
            for key, value in self.news.items()
        )
        return f"{self.variant}{more}, epsilon {self.epsilon:g}"


METHODS = (
    *(Method("additive", epsilon) for epsilon in (math.inf, 10.0, 5.0, 1.0)),
    Method("additive", 5.0, {"topics": "categories"}),
    *(Method("central", epsilon) for epsilon in (10.0, 5.0, 1.0)),
    Method("central-encoder", 5.0, {"model": "plm-nr"}),
    Method("central-encoder", 5.0, {"model": "plm-nr", "bands": 4}),
    Method("central-encoder", 5.0, {"model": "nrms"}),
    Method("local", 10.0, {"model": "plm-nr"}),
    Method("local", 10.0, {"model": "plm-nr", "attention_noise": "laplace"}),
)


def run(asked: Asked) -> Row:
    """Every method; data "planted" is the small planted set."""
    methods = (Method("additive", 5.0, seeds=(1,)),) if asked.quick else METHODS
    found = {}
    for method in methods:
        rows = asked.by_seed({"": (news_row, asked.path, method, SERVED)}, method.seeds)
        found[method.name] = _summary(rows[""])
    return {"protocol": paragraph(__doc__), "methods": found}


def news_row(data: str, method: Method, served: tuple[float, ...], seed: int) -> Row:
    """What `fedrec simulate --json` prints for one method and seed, served at so many epsilons."""
    return in_own_process(_simulated, data, method, seed, served)


def _simulated(data: str, method: Method, seed: int, served: Sequence[float]) -> Row:
    from fedrec.run.simulate import run as simulate

    return dict(simulate(scenario_of(data, method, seed, served), name=method.variant, quiet=True))


def scenario_of(data: str, method: Method, seed: int, served: Sequence[float] = SERVED) -> Scenario:
    """What one row runs."""
    unit = require(method.variant).unit
    source = (
        {"format": "planted-news", "preset": "small"}
        if data == "planted"
        else {"format": "click-log", "path": data}
    )
    asked = {
        "recipe": "privaterec",
        "seed": seed,
        "split": {"seed": 1} if data == "planted" else _SPLIT,
        "data": source,
        "privacy": {"epsilon": method.epsilon, "unit": unit, "noise": "seeded"},
        "news": {"variant": method.variant, "serving_epsilons": list(served)},
        "run": {"directory": f"{ROWS}/news-{unit}"},
    }
    return validated(merged(asked, {"news": dict(method.news)}), source="the measurement of news")


def _summary(seeds: list[Row]) -> Row:
    first = seeds[0]
    epsilons = [f"{answer['epsilon']}" for answer in first["serving"]["answers"]]
    answers = [[answer["metrics"] for answer in s["serving"]["answers"]] for s in seeds]
    served = {
        epsilon: _means(list(some))
        for epsilon, some in zip(epsilons, zip(*answers, strict=True), strict=True)
    }
    baselines = {name: _means([s["baselines"][name] for s in seeds]) for name in first["baselines"]}
    return {
        "guarantee": first["guarantee"],
        "seeds": len(seeds),
        "served": served,
        "history_swap_auc": mean_and_error([s["controls"]["history_swap_auc"] for s in seeds])[0],
        "baselines": baselines,
        "seconds": max(s["training_seconds"] for s in seeds),
        "peak_rss_mb": max(s["peak_rss_mb"] for s in seeds),
        "bytes_up_per_client": first["bytes_up_per_client"],
    }


def _means(rows: list[Row]) -> Row:
    means = {name: mean_and_error([r[name] for r in rows]) for name in _METRICS}
    return dict(
        finite({name: {"mean": mean, "stderr": error} for name, (mean, error) in means.items()})
    )
