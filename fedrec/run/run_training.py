"""Training of one model of a run: kept in a folder of its own, charged to the data's budget, shown
while it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from fedrec.data.splits import Split
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import Model
from fedrec.run.console import progress_bar
from fedrec.run.data.budget import DataBudget
from fedrec.run.finished import promise_in_short
from fedrec.run.job import Runtime
from fedrec.run.training import RoundRecord, Trained, Training
from fedrec.settings import Scenario

OnRound = Callable[[RoundRecord], None]


def epsilons_of(scenario: Scenario) -> list[float]:
    """At which a run trains, the scenario's own first."""
    return list(dict.fromkeys([scenario.privacy.epsilon, *scenario.compare.epsilons]))


@dataclass(frozen=True)
class Work:
    """What every training of a run is given."""

    facts: PublicFacts
    split: Split
    folder: Path
    console: Console
    runtime: Runtime
    budget: DataBudget | None
    on_round: OnRound | None = None
    validate: Callable[[Model], float] | None = None


VALIDATED_BY = {"ratings": "RMSE", "clicks": "NDCG@20"}
"""What a model is validated by, by kind of data."""


def train_one(scenario: Scenario, work: Work, folder: Path) -> Trained:
    """One training, kept in a folder of its own under `folder`, charged to the data's budget before
    its noise is drawn."""
    kept, split, budget = folder / f"epsilon-{scenario.privacy.epsilon:g}", work.split, work.budget
    name, noise = f"{work.folder.name}/{kept.relative_to(work.folder)}", scenario.privacy.noise
    charge = None if budget is None or noise == "seeded" else partial(budget.charge, name, noise)
    training = Training(
        scenario,
        work.facts,
        split.train,
        split.validation,
        kept,
        runtime=work.runtime,
        charge=charge,
        budget=None if budget is None else budget.path,
        validate=work.validate,
    )
    plan, metric = training.prepared.plan, VALIDATED_BY[split.train.kind]
    if budget is not None and charge is not None:
        # what is charged all together is refused by that charge, or was paid before a stop
        if training.charges_each:
            budget.require_room(training.unreleased())
    elif budget is not None:
        budget.charge(name, noise, training.unreleased())
    with progress_bar(work.console) as progress:
        task, released = (
            progress.add_task(promise_in_short(plan.guarantee), total=len(plan.releases)),
            0,
        )
        for record in training.run():
            released += len(record.releases)
            words = f"{promise_in_short(plan.guarantee)}, release {released}/{len(plan.releases)}"
            measured = (
                f": validation {metric} {record.validation:.3f}"
                if math.isfinite(record.validation)
                else ""
            )
            progress.update(task, completed=released, description=words + measured)
            if work.on_round is not None:
                work.on_round(record)
    return training.result
