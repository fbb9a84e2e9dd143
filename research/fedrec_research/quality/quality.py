"""Quality of the models: test RMSE on MovieLens 1M at every epsilon, mean of three splits, beside
what is not private.

Protocol: random 80/10/10 by split seed, the noise's seed being the split's; user vectors from train
ratings alone; predictions clipped to the scale; delta 1e-5, user level. Test is read once, after a
training has ended, and nothing is chosen by it. Lines "trained on 90%" train on validation ratings
too: published splits of MovieLens are of 90% and 10%.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.evaluation.als import als_model
from fedrec.evaluation.intervals import mean_and_error
from fedrec.factorization.facts import public_facts
from fedrec.run.outcomes import baselines
from fedrec.settings import Scenario, validated
from fedrec.storage import finite
from fedrec_research.runner import Fitted, fitted, on_test, peak_rss_mb, rmse
from fedrec_research.sealed import load_sealed
from fedrec_research.trials import Asked, Row, merged
from fedrec_research.workers import in_own_process

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
        """Name of its file."""
        features = "features" if self.features else "plain"
        share = "-on-90-percent" if self.on_90_percent else ""
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


def run(asked: Asked) -> Row:
    """The whole table; of a small part two methods and one split."""
    methods = QUICK if asked.quick else METHODS
    seeds = asked.seeds_of(SEEDS)
    rivals = asked.by_seed({"": (in_own_process, rival_row, asked.path)}, seeds)[""]
    private = asked.by_seed(
        {method: (in_own_process, training_row, asked.path, method) for method in methods}, seeds
    )
    about = {"split": "random 80/10/10", "seeds": list(seeds), "delta": DELTA, "read": "test, once"}
    return dict(
        finite(
            {
                "protocol": about,
                "non_private": [_rival(name, [r[name] for r in rivals]) for name in rivals[0]],
                "private": [_summary(method, rows) for method, rows in private.items()],
            }
        )
    )


def scenario_of(data: str, method: Method, seed: int) -> Scenario:
    """What `fedrec simulate` would be told.

    Without features `published` is the id-only model of Ada-DPALS."""
    content = {
        "recipe": method.recipe,
        "seed": seed,
        "data": {"path": data} if data != "planted" else {"preset": "small"},
        "split": {"seed": seed},
        "privacy": {"epsilon": method.epsilon, "delta": DELTA, "noise": "seeded"},
    }
    model = {"encoder": "features" if method.features else "id"}
    told = merged(content, {"data": {"features": method.features}, "model": model})
    return validated(told, source=method.name)


def training_row(data: str, method: Method, seed: int) -> Row:
    """Train to the end, then test once."""
    scenario = scenario_of(data, method, seed)
    dataset, sealed = load_sealed(scenario)
    fold = sealed.validation
    train = joined(sealed.train, fold.targets) if method.on_90_percent else sealed.train
    found = fitted(scenario, public_facts(scenario.seed, dataset, sealed), train)
    assert found.plan is not None
    validation = math.nan if method.on_90_percent else rmse(found.model, fold)
    row = on_test(found, sealed, known=train)[0]
    more = {"releases": len(found.plan.releases), "peak_rss_mb": peak_rss_mb()}
    return row | found.exact_costs | more | {"validation_rmse": validation}


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
    sealed = load_sealed(scenario_of(data, Method("default", False, math.inf), seed))[1]
    started = time.perf_counter()
    model = als_model(sealed.train, sealed.validation, seed=seed)
    als = Fitted(model, "no privacy", time.perf_counter() - started)
    row, _, split = on_test(als, sealed)
    simple = baselines(split.test, split.train, cutoffs=(20,))
    rivals = {name: {"rmse": found.metrics()["rmse"]} for name, found in simple.items()}
    return rivals | {"ALS": {"rmse": row["rmse"], "seconds": row["seconds"]}}


def _rival(name: str, rows: Sequence[Row]) -> Row:
    seconds = [r["seconds"] for r in rows if "seconds" in r]
    timed = {"seconds": float(np.mean(seconds))} if seconds else {}
    return {"name": name, **_errors(rows), **timed}


def _errors(rows: Sequence[Row]) -> Row:
    each = [row["rmse"] for row in rows]
    mean, error = mean_and_error(each)
    return {"rmse": mean, "standard_error": error, "each": each}


def _summary(method: Method, rows: Sequence[Row]) -> Row:
    """Guarantee and opinions are functions of the plan, which no seed changes: those of the first
    row stand for all."""
    first = rows[0]
    if any(r[key] != first[key] for r in rows for key in ("guarantee", "accountants")):
        raise AssertionError(f"{method.name}: the seeds of one method had different guarantees")
    # "nan" where validation ratings are trained on
    validation = [float(row["validation_rmse"]) for row in rows]
    return {
        "recipe": method.recipe,
        "settings": "by rule",
        "features": method.features,
        "on_90_percent": method.on_90_percent,
        **_errors(rows),
        "mae": float(np.mean([row["mae"] for row in rows])),
        "validation_rmse": float(np.mean(validation)),
        "guarantee": first["guarantee"],
        "exact": first["accountants"]["gdp"],
        "second_opinion": {by: first["accountants"][by] for by in ("pld", "rdp")},
        "releases": first["releases"],
        "seconds": float(np.mean([row["seconds"] for row in rows])),
        "peak_rss_mb": max(row["peak_rss_mb"] for row in rows),
    }
