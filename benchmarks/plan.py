"""Predictions of `fedrec plan`.

Bytes, core minutes and test error as predicted, beside what trainings then did. Data sets are
folders, whole and cut down (`--users`, `--items`: so many, the most rated items), with and without
public features, and planted ratings. A row trains the default recipe in one process on one core,
user level, delta 1e-5, a random 80/10/10 split; test is read once. Before, it asks the plan for the
same sizes, on the same core, at its middle speed. Core minutes are those of the training alone, of
reports and sums, noise and solving. The error is predicted from users, ε, the spread of the
training ratings and the error at ε = ∞, by a law fitted without any run on the same source; nothing
is predicted without features. Rows without bytes and minutes count for the error alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.results import Row, Tables
from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.errors import DataError
from fedrec.factorization.facts import Model, public_facts
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.preparing import Prepared
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.run.job import limit_of
from fedrec.run.outcomes import evaluate
from fedrec.run.planning import Law, plan, round_bytes
from fedrec.settings import Scenario, load

EPSILONS = (1.0, 5.0, 20.0, math.inf)
DELTA = 1e-5
PLANTED = "planted"
SIZES = ((2_000, 500), (8_000, 2_000))
"""Users and items of planted ratings, 50 a user."""
BARS = {"sent": (0.8, 1.2), "received": (0.8, 1.2), "minutes": (0.5, 2.0)}
"""Least and most of a prediction over what was found."""
RMSE_BAR = 0.01


Source = tuple[str, str, tuple[str, ...]]
"""A data set, whole or cut: its name, of which it is, and the words of `--set`."""


def run(
    *,
    quick: bool,
    data: Sequence[str] = (),
    users: Sequence[int] = (),
    items: Sequence[int] = (),
) -> Tables:
    """Every run, and how many predictions were within the bars."""
    epsilons = (5.0, math.inf) if quick else EPSILONS
    runs = list[Row]()
    for source in _sources(data, users, items, SIZES[: 1 if quick else None]):
        try:
            found = {epsilon: _row(source, epsilon) for epsilon in epsilons}
        except DataError:  # fewer users or items than the cut asks for
            continue
        floor = found.pop(math.inf)["rmse"]
        runs += [{**row, "without_privacy": floor} for row in found.values()]
    return summary(runs)


def _sources(
    data: Sequence[str],
    users: Sequence[int],
    items: Sequence[int],
    planted: Sequence[tuple[int, int]],
) -> Iterator[Source]:
    for path in data:
        name = Path(path).name
        whole = f"data.path={path}"
        yield name, name, (whole,)
        yield from ((f"{name}, {n} users", name, (whole, f"data.keep_users={n}")) for n in users)
        yield from (
            (f"{name}, {m} most rated items", name, (whole, f"data.keep_items={m}")) for m in items
        )
        yield f"{name}, without features", name, (whole, "data.features=false")
    for n, m in planted:
        sizes = {"users": n, "items": m, "events": 50 * n}
        words = tuple(f"data.planted.{key}={value}" for key, value in sizes.items())
        yield f"{PLANTED}, {n} users", PLANTED, words


def _row(source: Source, epsilon: float) -> Row:
    """Found and predicted, of one training."""
    privacy = (f"privacy.epsilon={epsilon}", f"privacy.delta={DELTA}", "privacy.noise=seeded")
    fixed = ("recipe=default", "seed=1", "split.seed=1")
    name, of, words = source
    scenario = load(None, [*words, *fixed, *privacy])
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    events = split.train
    facts = public_facts(scenario.seed, dataset, split)
    sizes = {"users": events.num_users, "items": events.num_items}
    # first: it compiles kernels
    predicted = plan(scenario, users=events.num_users, items=events.num_items, events=len(events))
    model, did = _trained(scenario, prepare(scenario, facts), events)
    ratings = evaluate(model, split.test, events, cutoffs=(10,), ranking=False).ratings
    assert ratings is not None
    said = {
        "sent": predicted["bytes_up_per_user"],
        "received": predicted["bytes_down_per_user"],
        "minutes": predicted["core_hours"] * 60,
    }
    return {
        "run": f"{name}, epsilon {epsilon:g}",
        "source": of,
        **sizes,
        "train": len(events),
        "features": facts.features is not None,
        "mu": mu_for(epsilon, DELTA) if math.isfinite(epsilon) else math.inf,
        "spread": float(np.std(events.values, dtype=np.float64)),
        "rmse": ratings.rmse,
        "standard_error": ratings.rmse_stderr,
        **{f"{what}_over_found": said[what] / did[what] for what in BARS},
    }


def _trained(
    scenario: Scenario, prepared: Prepared, events: Interactions
) -> tuple[Model, dict[str, float]]:
    """A model; bytes that a user sends and receives, and core minutes."""
    ledger = Ledger(limit_of(prepared.plan))
    link = Loopback(events, prepared.steps, prepared.plan, Streams(1), ledger)
    told = dict[str, Any]()
    received = seconds = 0.0
    started = time.process_time()
    for done in train(prepared.recipe, link, prepared.recipe.begin()):
        seconds += time.process_time() - started
        received += round_bytes(scenario.run_id(), prepared.plan, done.question, told)
        told = dict(done.question.public)
        started = time.process_time()
    sent = link.bytes_up / events.num_users
    return prepared.recipe.model(done.state), {
        "sent": sent,
        "received": received,
        "minutes": seconds / 60,
    }


def summary(runs: Sequence[Row]) -> Tables:
    """Runs with the error that is predicted of them, how many predictions were within the bars, and
    the law fitted to all folders."""
    real = [run for run in runs if run["source"] != PLANTED and run["features"]]
    predicted = dict[str, float]()
    tables = Tables()
    if len({run["source"] for run in real}) > 1:
        off = left_out(real)
        predicted = {run["run"]: run["rmse"] + each for run, each in zip(real, off, strict=True)}
        law = fitted(real)
        tables["The law of all folders"] = [{"a": law.a, "b": law.b, "c": law.c}]
        for run in runs:
            if run["source"] == PLANTED:
                asked = {key: run[key] for key in ("users", "mu", "spread", "without_privacy")}
                predicted[run["run"]] = law.rmse(**asked)
    shown = [{**run, "rmse_predicted": predicted.get(run["run"])} for run in runs]
    groups = {
        "folders": [run for run in shown if run["source"] != PLANTED],
        PLANTED: [run for run in shown if run["source"] == PLANTED],
    }
    within = [_within(name, group) for name, group in groups.items() if group]
    return {"Within the bars": within, **tables, "Runs": shown}


def _within(name: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    """How many of a group's predictions are, and the worst of each kind."""
    row: Row = {"data": name, "runs": len(runs)}
    for what, (least, most) in BARS.items():
        ratios = [run[f"{what}_over_found"] for run in runs if run[f"{what}_over_found"]]
        worst = max(ratios, key=lambda ratio: abs(math.log(ratio)), default=None)
        row[what] = f"{sum(least <= ratio <= most for ratio in ratios)} of {len(ratios)}"
        row[f"worst_{what}"] = worst
    errors = [
        abs(run["rmse_predicted"] - run["rmse"])
        for run in runs
        if run["rmse_predicted"] is not None
    ]
    row["rmse"] = f"{sum(error <= RMSE_BAR for error in errors)} of {len(errors)}"
    row["worst_rmse"] = max(errors, default=None)
    return row


def fitted(rows: Sequence[Mapping[str, Any]]) -> Law:
    """By least squares of log(rmse): rows have users, mu, spread, without_privacy and rmse."""
    start = np.array([0.16, 2.8, 0.36])

    def misfit(parameters: Float64s) -> Float64s:
        law = Law(*map(float, parameters))
        return np.array([math.log(_of(law, row) / row["rmse"]) for row in rows])

    return Law(*map(float, least_squares(misfit, start, x_scale=start).x))


def left_out(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return, for each row, what a law fitted to the rows of the other sources says less what was
    found."""
    laws = {
        source: fitted([row for row in rows if row["source"] != source])
        for source in {row["source"] for row in rows}
    }
    return [_of(laws[row["source"]], row) - row["rmse"] for row in rows]


def _of(law: Law, row: Mapping[str, Any]) -> float:
    return law.rmse(
        users=row["users"],
        mu=row["mu"],
        spread=row["spread"],
        without_privacy=row["without_privacy"],
    )
