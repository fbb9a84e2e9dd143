"""How good are the models? Test RMSE on MovieLens 1M at every epsilon, mean of three splits, beside
what is not private.

Protocol: random 80/10/10 by split seed, the noise's seed being the split's; user vectors from train
ratings alone; predictions clipped to the scale; delta 1e-5, user level. Test is read once, after a
training has ended, and nothing is chosen by it. Lines "trained on 90%" train on validation ratings
too: published splits of MovieLens are of 90% and 10%. `run` keeps every finished row in a folder
and goes on from there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.model import predict
from fedrec.run.data.datasets import public_facts
from fedrec.run.data.sealed import load_sealed
from fedrec.run.outcomes import baselines, evaluate
from fedrec.settings import Scenario, validated
from fedrec.storage import finite
from fedrec_simulations.experiments.ceiling import als_model
from fedrec_simulations.experiments.in_memory import trained
from fedrec_simulations.experiments.row_queue import rows_of
from fedrec_simulations.experiments.rows import (
    Row,
    figure,
    folder_of,
    mean_and_error,
    merged,
    peak_rss_mb,
    table,
)
from fedrec_simulations.experiments.trials import RowFiles, Trial
from fedrec_simulations.experiments.workers import in_own_process

DELTA = 1e-5
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Method:
    """One line of the table before its seeds: a recipe, whether it may use public features,
    epsilon, and whether it trains on validation ratings too, as published splits of 90% and 10%
    are."""

    recipe: str
    features: bool
    epsilon: float
    on_90_percent: bool = False

    @property
    def name(self) -> str:
        """Of its file."""
        features, share = (
            "features" if self.features else "plain",
            "-on-90-percent" if self.on_90_percent else "",
        )
        return f"{self.recipe}-{features}-epsilon-{self.epsilon:g}{share}"


METHODS = (
    *(Method("default", True, epsilon) for epsilon in (0.5, 1.0, 5.0, 10.0, 20.0, math.inf)),
    *(Method("default", False, epsilon) for epsilon in (1.0, 5.0, 20.0)),
    *(
        Method("published", features, epsilon)
        for features in (True, False)
        for epsilon in (1.0, 5.0, 20.0)
    ),
    *(
        Method("default", True, epsilon, on_90_percent=True)
        for epsilon in (0.5, 1.0, 5.0, 10.0, 20.0, math.inf)
    ),
)
QUICK = (Method("default", True, 5.0), Method("published", False, 5.0))


def run(
    data: str, *, quick: bool = False, folder: Path = Path("runs/bench-quality")
) -> dict[str, Any]:
    """The whole table; `quick`: two methods, one split; data "planted" is the small planted set.

    Raises SettingsError without a data folder, DataError on bad data.
    """
    if not data:
        raise SettingsError(
            "the quality benchmark needs a data folder", "Give one, e.g. --data PATH/ml-1m."
        )
    seeds, methods = (SEEDS[:1], QUICK) if quick else (SEEDS, METHODS)
    trials = {
        ("rivals", seed): Trial.of(f"rivals-{seed}", in_own_process, rival_row, data, seed)
        for seed in seeds
    }
    for method, seed in product(methods, seeds):
        trials[method.name, seed] = Trial.of(
            f"{method.name}-{seed}", in_own_process, training_row, data, method, seed
        )
    rows = rows_of(trials, RowFiles(folder_of(folder, data)))
    rivals, private = (
        [rows["rivals", seed] for seed in seeds],
        {m: [rows[m.name, seed] for seed in seeds] for m in methods},
    )
    result = {
        "protocol": {
            "split": "random 80/10/10",
            "seeds": list(seeds),
            "delta": DELTA,
            "read": "test, once",
        },
        "non_private": [_rival(name, [r[name] for r in rivals]) for name in rivals[0]],
        "private": [_summary(method, rows) for method, rows in private.items()],
    }
    return dict(finite(result))


def scenario_of(data: str, method: Method, seed: int) -> Scenario:
    """What `fedrec simulate` would be told.

    Without features `published` is the id-only model of Ada-DPALS."""
    encoder = "features" if method.features else "id"
    content = {
        "recipe": method.recipe,
        "seed": seed,
        "data": {"path": data} if data != "planted" else {"preset": "small"},
        "split": {"seed": seed},
        "privacy": {"epsilon": method.epsilon, "delta": DELTA, "noise": "seeded"},
    }
    return validated(
        merged(content, {"data": {"features": method.features}, "model": {"encoder": encoder}}),
        source=method.name,
    )


def training_row(data: str, method: Method, seed: int) -> Row:
    """Train to the end, then test once."""
    scenario = scenario_of(data, method, seed)
    dataset, sealed = load_sealed(scenario)
    train, fold = sealed.train, sealed.validation
    if method.on_90_percent:
        train = joined(train, fold.targets)
    done = trained(scenario, public_facts(scenario, dataset, sealed), train)
    model, plan = done.model, done.prepared.plan
    validated = (
        math.nan
        if method.on_90_percent
        else rating_metrics(predict(model, fold.history, fold.targets), fold.targets).rmse
    )
    opened = sealed.open(model.arrays())
    test = replace(opened.split.test, history=train)
    outcome = evaluate(model, test, train, cutoffs=(20,), ranking=False)
    return {
        **{name: outcome.metrics()[name] for name in ("rmse", "mae")},
        "validation_rmse": validated,
        "guarantee": asdict(plan.guarantee),
        "accountants": asdict(plan.opinions()),
        "releases": len(plan.releases),
        "model_sha256": opened.model_sha256,
        "seconds": done.seconds,
        "peak_rss_mb": peak_rss_mb(),
    }


def joined(one: Interactions, other: Interactions) -> Interactions:
    """Ratings of the same users and items together, without times."""
    users, items, values = (
        np.concatenate([getattr(part, name) for part in (one, other)])
        for name in ("users", "items", "values")
    )
    return Interactions.from_columns(
        users,
        items,
        values,
        num_users=one.num_users,
        num_items=one.num_items,
        value_range=one.value_range,
        kind=one.kind,
    )


def rival_row(data: str, seed: int) -> Row:
    """Errors of the baselines and of ALS on one split; the table says that they are not private."""
    scenario = scenario_of(data, Method("default", False, math.inf), seed)
    sealed = load_sealed(scenario)[1]
    started = time.perf_counter()
    model = als_model(sealed, scenario)
    seconds = time.perf_counter() - started
    split = sealed.open(model.arrays()).split
    rows: Row = {
        name: {"rmse": found.metrics()["rmse"]}
        for name, found in baselines(split.test, split.train, cutoffs=(20,)).items()
    }
    found = evaluate(model, split.test, split.train, cutoffs=(20,), ranking=False)
    return rows | {"ALS": {"rmse": found.metrics()["rmse"], "seconds": seconds}}


def markdown(result: dict[str, Any]) -> str:
    """The result of `run` as a table for docs."""
    lines = [
        [r["name"], "none", figure(r["rmse"]), figure(r["standard_error"]), "–", "–", "–", "–"]
        for r in result["non_private"]
    ]
    for r in result["private"]:
        recipe = (
            f"published recipe, settings {r.get('settings', 'not tuned')}"
            if r["recipe"] == "published"
            else r["recipe"]
        )
        name = f"{recipe}, {'with' if r['features'] else 'without'} features"
        if r.get("on_90_percent"):
            name += ", trained on 90%"
        opinions = [figure(r["second_opinion"][by], 3) for by in ("pld", "rdp")]
        cost = [figure(r["seconds"], 1), figure(r["peak_rss_mb"], 0)]
        lines.append(
            [
                name,
                f"{r['guarantee']['epsilon']}",
                figure(r["rmse"]),
                figure(r["standard_error"]),
                *opinions,
                *cost,
            ]
        )
    return table(
        (
            "model",
            "epsilon per user (add/remove)",
            "test RMSE",
            "± s.e.",
            "epsilon by PLD",
            "by RDP",
            "seconds",
            "peak MB",
        ),
        lines,
    )


def _rival(name: str, rows: Sequence[Row]) -> Row:
    rmse, error = mean_and_error([r["rmse"] for r in rows])
    seconds = [r["seconds"] for r in rows if "seconds" in r]
    timed = {"seconds": float(np.mean(seconds))} if seconds else {}
    return {
        "name": name,
        "rmse": rmse,
        "standard_error": error,
        "each": [r["rmse"] for r in rows],
        **timed,
    }


def _summary(method: Method, rows: Sequence[Row]) -> Row:
    """Guarantee and opinions are functions of the plan, which no seed changes: those of the first
    row stand for all."""
    rmse, error = mean_and_error([r["rmse"] for r in rows])
    accountants = rows[0]["accountants"]
    if any(r["guarantee"] != rows[0]["guarantee"] or r["accountants"] != accountants for r in rows):
        raise AssertionError(f"{method.name}: the seeds of one method had different guarantees")
    return {
        "recipe": method.recipe,
        "settings": "by rule",
        "features": method.features,
        "on_90_percent": method.on_90_percent,
        "rmse": rmse,
        "standard_error": error,
        "each": [r["rmse"] for r in rows],
        "mae": mean_and_error([r["mae"] for r in rows])[0],
        # "nan" where validation ratings are trained on
        "validation_rmse": mean_and_error([float(r["validation_rmse"]) for r in rows])[0],
        "guarantee": rows[0]["guarantee"],
        "exact": accountants["gdp"],
        "second_opinion": {"pld": accountants["pld"], "rdp": accountants["rdp"]},
        "releases": rows[0]["releases"],
        "seconds": float(np.mean([r["seconds"] for r in rows])),
        "peak_rss_mb": max(r["peak_rss_mb"] for r in rows),
    }
