"""What are PrivateRec's variants worth on a click log? AUC, MRR and nDCG per impression, mean over
seeds, beside controls.

Protocol: `fedrec.data.clicklog` with users held out at random, one division (split.seed 20) for
every row; seeds draw noise and initialisation. The public rows, the schedules of training and the
settings of `central` and `central-encoder` were chosen before, on validation users of other
divisions, so that some of these test users took part in those choices; the test users were looked
at for this table alone. Every row is a run of `fedrec simulate` in a process of its own, kept in a
folder: the benchmark goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.news.variant import require
from fedrec.settings import Scenario, validated
from fedrec.storage import finite
from fedrec_simulations.experiments.row_queue import rows_of
from fedrec_simulations.experiments.rows import (
    Row,
    folder_of,
    in_order,
    mean_and_error,
    merged,
    table,
)
from fedrec_simulations.experiments.trials import RowFiles, Trial
from fedrec_simulations.experiments.workers import in_own_process

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
        """Of its row."""
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


def run(
    data: str,
    *,
    methods: Sequence[Method] = METHODS,
    quick: bool = False,
    folder: Path = Path("runs/bench-news"),
) -> dict[str, Any]:
    """Every method as a JSON-able dict.

    Data "planted" is the small planted set. Raises SettingsError without data."""
    if not data:
        raise SettingsError(
            "the news benchmark needs a data folder", "Give MovieLens 1M: --data PATH/ml-1m."
        )
    methods = [Method("additive", 5.0, seeds=(1,))] if quick else methods
    trials = {
        (m.name, seed): news_trial(data, m, SERVED, seed) for m in methods for seed in m.seeds
    }
    rows = rows_of(trials, RowFiles(folder_of(folder, data)))
    found = {m.name: _summary([rows[m.name, seed] for seed in m.seeds]) for m in methods}
    return {"protocol": (__doc__ or "").split("\n\n")[1], "methods": found}


def news_trial(data: str, method: Method, served: Sequence[float], seed: int) -> Trial:
    """What `fedrec simulate --json` prints for one method and seed, served at so many epsilons."""
    return Trial.of(f"{method.name}-seed-{seed}", in_own_process, _made, data, method, seed, served)


def _made(data: str, method: Method, seed: int, served: Sequence[float]) -> Row:
    """The whole run of one scenario."""
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
        "run": {"directory": f"runs/bench-news/{unit}"},
    }
    return validated(merged(asked, {"news": dict(method.news)}), source="the news benchmark")


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


def markdown(result: Row) -> str:
    """A line per method: the promise of training, AUC / MRR / nDCG@10 at each epsilon of serving,
    and the history swap."""
    methods = result["methods"]
    first = next(
        (m for name, m in methods.items() if "categories" not in name), next(iter(methods.values()))
    )
    served, lines = sorted(first["served"], key=float, reverse=True), []
    for name, found in in_order(methods):
        promise = found["guarantee"]
        unit = f"{promise['unit']}, {promise['neighbours']}" + (
            "" if promise["established"] else ", NOT ESTABLISHED"
        )
        per = unit if promise["epsilon"] != "inf" else "none"
        lines.append(
            [
                name,
                per,
                *(_triple(found["served"][e]) for e in served),
                _percent(found["history_swap_auc"]),
            ]
        )
    controls = "; ".join(
        f"{name} {_triple(metrics)}" for name, metrics in first["baselines"].items()
    )
    head = (
        "variant, ε of training",
        "per",
        *(f"served at ε = {float(e):g}" for e in served),
        "swap",
    )
    return (
        f"{table(head, lines)}\n\nWithout training: {controls}. Served answers: ε per click "
        "(replace). AUC / MRR / nDCG@10 in percent."
    )


def _triple(metrics: Row) -> str:
    return " / ".join(_percent(metrics[name]["mean"]) for name in _METRICS)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
