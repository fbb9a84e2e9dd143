"""What `fedrec plan` predicts beside what trainings then did: bytes, core minutes and test error.

Data sets are folders, whole and cut down (data.keep_users, data.keep_items), with and without
public features, and planted ratings. A row trains the default recipe in one process on one core,
user level, delta 1e-5, a random 80/10/10 split; test is read once. Before, it asks the plan for the
same sizes, on the same core. Core minutes are those of the training alone, of reports and sums,
noise and solving. The error is predicted from users, epsilon, the spread of the training ratings
and the error at epsilon infinity, by a law that was fitted without any run on the same source
(`planned_error.left_out`); nothing is predicted without features.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.errors import DataError
from fedrec.factorization.model import Model
from fedrec.federation.rounds import train
from fedrec.in_process.loopback import Loopback
from fedrec.preparing import Prepared
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.run.data.sealed import SealedSplit
from fedrec.run.job import limit_of
from fedrec.run.outcomes import evaluate
from fedrec.run.planned_error import fitted, left_out
from fedrec.run.planning import plan, round_bytes
from fedrec.settings import Scenario
from fedrec_simulations.bench.simple import DELTA, Cut, Place
from fedrec_simulations.experiments.progress import Tell
from fedrec_simulations.experiments.row_queue import result_of
from fedrec_simulations.experiments.rows import Row, table
from fedrec_simulations.experiments.trials import Trial

EPSILONS, QUICK_EPSILONS = (1.0, 5.0, 20.0, math.inf), (5.0, math.inf)
PLANTED = {
    "planted, 2000 users": ("data.planted.users=2000", "data.planted.items=500"),
    "planted, 8000 users": ("data.planted.users=8000", "data.planted.items=2000"),
}
EVENTS_PER_USER = 50
BYTES_BAR, MINUTES_BAR, RMSE_BAR = 0.2, 2.0, 0.01


def run(
    data: Sequence[str],
    *,
    users: Sequence[int] = (),
    items: Sequence[int] = (),
    epsilons: Sequence[float] = (),
    quick: bool = False,
    jobs: int = 1,
    output: Path | None = None,
    tell: Tell,
) -> dict[str, Any]:
    """Every row, and how many predictions were within the bars; rows that `output` holds already
    are not made again."""
    grid = epsilons or (QUICK_EPSILONS if quick else EPSILONS)
    cuts = [Cut(), *(Cut(users=n) for n in users), *(Cut(items=m) for m in items)]
    places = [(path, Place(path, (), cut), True) for path in data for cut in cuts]
    places += [
        (path, Place(path, ("data.features=false",), cut), False)
        for path in data
        for cut in cuts[:1]
    ]
    for name, sizes in list(PLANTED.items())[: 1 if quick else None]:
        number = int(sizes[0].split("=")[1]) * EVENTS_PER_USER
        places.append((name, Place("", (*sizes, f"data.planted.events={number}"), Cut()), True))
    trials, tasks = list[Trial](), dict[str, tuple[str, str]]()
    for path, place, features in places:
        title = f"{Path(path).name}{place.cut.words}{'' if features else ', without features'}"
        for epsilon in grid:
            name = f"{title}, epsilon {epsilon:g}"
            tasks[name] = title, (Path(path).name if path in data else "planted")
            trials.append(Trial.of(name, plan_row, place, epsilon))
    return result_of(trials, output=output, jobs=jobs, summary=partial(summary, tasks), tell=tell)


def plan_row(place: Place, epsilon: float) -> Row:
    """Found and predicted, of one training."""
    scenario = place.scenario("default", epsilon, 1)
    try:
        dataset = load_dataset(scenario)
    except DataError as failure:
        if place.cut == Cut():
            raise
        return {"refused": failure.cause}  # fewer users or items than the cut asks for
    sealed = SealedSplit(load_split(scenario, dataset))
    events, facts = sealed.train, public_facts(scenario, dataset, sealed)
    # first: it compiles kernels
    predicted = plan(scenario, users=events.num_users, items=events.num_items, events=len(events))
    prepared = prepare(scenario, facts)
    done = _trained(scenario, prepared, events)
    opened = sealed.open(done.model.arrays()).split
    found = evaluate(done.model, opened.test, events, cutoffs=(10,), ranking=False).ratings
    assert found is not None
    return {
        "users": events.num_users,
        "items": events.num_items,
        "train": len(events),
        "features": facts.features is not None,
        "epsilon": epsilon,
        "spread": float(np.std(events.values, dtype=np.float64)),
        "rmse": found.rmse,
        "standard_error": found.rmse_stderr,
        "found": {"up": done.up, "down": done.down, "minutes": done.seconds / 60},
        "predicted": {
            "up": predicted["bytes_up_per_user"],
            "down": predicted["bytes_down_per_user"],
            "minutes": predicted["core_hours"] * 60,
        },
    }


@dataclass(frozen=True)
class _Done:
    """A model, bytes of a user up and down, and core seconds."""

    model: Model
    up: float
    down: float
    seconds: float


def _trained(scenario: Scenario, prepared: Prepared, events: Interactions) -> _Done:
    link = Loopback(
        events, prepared.steps, prepared.plan, Streams(1), Ledger(limit_of(prepared.plan))
    )
    told, down, seconds, started = dict[str, Any](), 0.0, 0.0, time.process_time()
    for done in train(prepared.recipe, link, prepared.recipe.begin()):
        seconds += time.process_time() - started
        down += round_bytes(scenario, prepared.plan, done.question, told)
        told, started = dict(done.question.public), time.process_time()
    up = link.bytes_up / events.num_users
    return _Done(prepared.recipe.model(done.state), up, down, seconds)


def summary(tasks: Mapping[str, tuple[str, str]], rows: Mapping[str, Row]) -> Row:
    """What was found and predicted of each run, how many predictions were within the bars, and the
    law fitted to all films. Rows without bytes and minutes count for the error alone."""
    made = {name: row for name, row in rows.items() if name in tasks and "rmse" in row}
    floors = {tasks[n][0]: row["rmse"] for n, row in made.items() if math.isinf(_epsilon(row))}
    runs = [
        {
            "run": name,
            "source": tasks[name][1],
            "without_privacy": floors[tasks[name][0]],
            "mu": mu_for(_epsilon(row), DELTA),
            **{key: row[key] for key in ("users", "items", "train", "features", "spread")},
            **{key: row.get(key) for key in ("rmse", "standard_error", "found", "predicted")},
        }
        for name, row in made.items()
        if tasks[name][0] in floors and math.isfinite(_epsilon(row))
    ]
    if len({run["source"] for run in runs}) < 2:
        return {"protocol": {"delta": DELTA}, "runs": runs}
    real = [run for run in runs if run["source"] != "planted" and run["features"]]
    for run, off in zip(real, left_out(real), strict=True):
        run["rmse_predicted"] = run["rmse"] + off
    law = fitted(real)
    for run in runs:
        if run["source"] == "planted":
            run["rmse_predicted"] = law.rmse(
                users=run["users"],
                mu=run["mu"],
                spread=run["spread"],
                without_privacy=run["without_privacy"],
            )
    return {
        "protocol": {
            "delta": DELTA,
            "read": "test, once",
            "law": "of other sources than the run's",
        },
        "law": asdict(law),
        "within": {
            group: _within([run for run in runs if (run["source"] == "planted") == planted])
            for group, planted in (("films", False), ("planted", True))
        },
        "runs": runs,
    }


def _within(runs: Sequence[Mapping[str, Any]]) -> Row:
    measured = [run for run in runs if run["found"]]
    ratios = {
        what: [run["predicted"][what] / run["found"][what] for run in measured]
        for what in ("up", "down", "minutes")
    }
    errors = [abs(run["rmse_predicted"] - run["rmse"]) for run in runs if "rmse_predicted" in run]
    return {
        "runs": len(runs),
        "measured": len(measured),
        "with_error": len(errors),
        "up": sum(abs(ratio - 1) <= BYTES_BAR for ratio in ratios["up"]),
        "down": sum(abs(ratio - 1) <= BYTES_BAR for ratio in ratios["down"]),
        "minutes": sum(1 / MINUTES_BAR <= ratio <= MINUTES_BAR for ratio in ratios["minutes"]),
        "rmse": sum(error <= RMSE_BAR for error in errors),
        "largest": {
            **{
                what: max(found, key=lambda ratio: abs(math.log(ratio)))
                for what, found in ratios.items()
                if found
            },
            "rmse": max(errors, default=0.0),
        },
    }


def _epsilon(row: Row) -> float:
    return float(row["epsilon"])


def text(found: Mapping[str, Any]) -> str:
    """A table for a terminal."""
    header = ["run", "sent", "received", "minutes", "rmse", "predicted"]
    lines = [
        [
            run["run"],
            *(
                f"{run['predicted'][what] / run['found'][what]:.2f}" if run["found"] else ""
                for what in ("up", "down", "minutes")
            ),
            f"{run['rmse']:.4f}",
            f"{run.get('rmse_predicted', math.nan):.4f}",
        ]
        for run in found["runs"]
    ]
    return table(header, lines)
