"""Is the default recipe sound at every size? Planted ratings, 25 a user, over users, items and
epsilon, beside `dp-bias`.

Random 80/10/10, user level, delta 1e-5, test RMSE after the last round, means over seeds of world,
split and noise. Of every cell it is asked whether its error is above that (a) of biases alone at
the same epsilon, (b) of the same with a smaller epsilon, (c) of the same with fewer users, by more
than two standard errors of the difference. The worlds are made up: what fails here is a defect,
what passes is no figure of quality. Validation RMSE after every round, from 1,000 users at most,
says where a training went wrong; choices are made by that, on other seeds, and never by test. Of
two cells that are equal, three seeds mark one in about one of eleven cases (Student's t with two
degrees of freedom passes 2): a small rise in a few cells is looked at again with more seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.dataset import Dataset
from fedrec.evaluation.controls import paired
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.model import Model, predict
from fedrec.recipes import prepare
from fedrec.run.data.datasets import public_facts
from fedrec.run.data.sealed import SealedSplit, load_sealed
from fedrec.settings import Scenario, validated
from fedrec_simulations.experiments.in_memory import rounds
from fedrec_simulations.experiments.progress import Tell
from fedrec_simulations.experiments.row_queue import result_of
from fedrec_simulations.experiments.rows import Row, figure, mean_and_error, peak_rss_mb, table
from fedrec_simulations.experiments.trials import Trial

USERS, ITEMS, EPSILONS = (
    (2_000, 20_000, 150_000, 350_000),
    (500, 2_000, 10_000),
    (0.5, 1.0, 5.0, 20.0, math.inf),
)
QUICK_USERS, QUICK_ITEMS, QUICK_EPSILONS = (2_000, 8_000), (100,), (1.0, 20.0, math.inf)
SEEDS, EVENTS_PER_USER, DELTA = 3, 25, 1e-5
CONTROLS = {"a": "biases alone", "b": "a smaller epsilon", "c": "fewer users"}
_SOME = 1_000  # users of validation


@dataclass(frozen=True)
class Cell:
    """One training."""

    users: int
    items: int
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """Of its row."""
        return f"{self.users} users, {self.items} items, epsilon {self.epsilon:g}, seed {self.seed}"

    def scenario(self) -> Scenario:
        """What `fedrec simulate` would be told."""
        planted = {"users": self.users, "items": self.items, "events": EVENTS_PER_USER * self.users}
        content = {
            "seed": self.seed,
            "data": {"planted": planted},
            "split": {"seed": self.seed},
            "privacy": {"epsilon": self.epsilon, "delta": DELTA, "noise": "seeded"},
        }
        return validated(content, source=self.name)


def run(
    *,
    users: Sequence[int] = (),
    items: Sequence[int] = (),
    epsilons: Sequence[float] = (),
    seeds: int = SEEDS,
    quick: bool = False,
    jobs: int = 1,
    output: Path | None = None,
    tell: Tell,
) -> dict[str, Any]:
    """The grid as a JSON-able dict, with every row; rows that `output` holds already are not made
    again. `quick`: a grid of seconds."""
    users = users or (QUICK_USERS if quick else USERS)
    items = items or (QUICK_ITEMS if quick else ITEMS)
    epsilons = epsilons or (QUICK_EPSILONS if quick else EPSILONS)
    grid = itertools.product(
        range(1, (1 if quick else seeds) + 1), sorted(users), sorted(items), sorted(epsilons)
    )
    # seeds outermost: stopped, it has all cells of the first
    cells = [Cell(n, m, epsilon, seed) for seed, n, m, epsilon in grid]
    trials = [Trial.of(cell.name, size_row, cell) for cell in cells]
    return result_of(trials, output=output, jobs=jobs, summary=partial(summary, cells), tell=tell)


def size_row(cell: Cell) -> Row:
    """The default and `dp-bias` on the same events: RMSE of both on test, of the default on
    validation after every round."""
    scenario = cell.scenario()
    dataset, sealed = load_sealed(scenario)
    alone = sealed.again()
    models = _trained(scenario, dataset, sealed)
    validation = [_validated(model, sealed) for model in models]
    [*_, biases] = _trained(scenario.model_copy(update={"recipe": "dp-bias"}), dataset, alone)
    test = sealed.open(models[-1].arrays()).split.test
    last, simple = (
        rating_metrics(predict(model, test.history, test.targets), test.targets)
        for model in (models[-1], biases)
    )
    return {
        "users": cell.users,
        "items": cell.items,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        "train": len(alone.train),
        "rmse": last.rmse,
        "rmse_stderr": last.rmse_stderr,
        "biases": simple.rmse,
        "above_biases_stderr": paired(last.influence, simple.influence),
        "validation": validation,
        "peak_rss_mb": peak_rss_mb(),
    }


def _trained(scenario: Scenario, dataset: Dataset, sealed: SealedSplit) -> list[Model]:
    """After every round."""
    made = prepare(scenario, public_facts(scenario, dataset, sealed))
    return [made.recipe.model(done.state) for done in rounds(made, sealed.train, scenario.seed)]


def _validated(model: Model, sealed: SealedSplit) -> float:
    some = np.arange(min(sealed.validation.targets.num_users, _SOME))
    history, targets = (
        sealed.validation.history.users_subset(some),
        sealed.validation.targets.users_subset(some),
    )
    return rating_metrics(predict(model, history, targets), targets).rmse


def summary(cells: Sequence[Cell], rows: Mapping[str, Row]) -> Row:
    """Means of every cell that has a row, what is above which control and by how much, and how many
    cells are above none."""
    groups: dict[tuple[int, int, float], dict[int, Row]] = {}
    for cell in cells:
        if cell.name in rows:
            groups.setdefault((cell.users, cell.items, cell.epsilon), {})[cell.seed] = rows[
                cell.name
            ]
    found = [_cell(key, of_seeds, groups) for key, of_seeds in sorted(groups.items())]
    return {
        "protocol": {
            "split": "random 80/10/10",
            "delta": DELTA,
            "events_per_user": EVENTS_PER_USER,
            "read": "test, once",
        },
        "cells": found,
        "above": {
            name: sum(cell["above"][letter] > 0 for cell in found)
            for letter, name in CONTROLS.items()
        },
        "sound": sum(not any(x > 0 for x in cell["above"].values()) for cell in found),
    }


def _cell(
    key: tuple[int, int, float],
    rows: Mapping[int, Row],
    groups: Mapping[tuple[int, int, float], Mapping[int, Row]],
) -> Row:
    users, items, epsilon = key
    less = [
        other for (n, m, e), other in groups.items() if (n, m) == (users, items) and e < epsilon
    ]
    fewer = [
        other for (n, m, e), other in groups.items() if (m, e) == (items, epsilon) and n < users
    ]
    above = {
        "a": _rise(
            [(row["rmse"] - row["biases"], row["above_biases_stderr"]) for row in rows.values()]
        ),
        "b": max((_above(rows, other) for other in less), default=0.0),
        "c": max((_above(rows, other) for other in fewer), default=0.0),
    }
    rmse, error = mean_and_error([row["rmse"] for row in rows.values()])
    return {
        "users": users,
        "items": items,
        "epsilon": epsilon,
        "seeds": sorted(rows),
        "rmse": rmse,
        "standard_error": error,
        "biases": mean_and_error([row["biases"] for row in rows.values()])[0],
        "above": above,
        "seconds": mean_and_error([row.get("seconds", math.nan) for row in rows.values()])[0],
    }


def _above(ours: Mapping[int, Row], theirs: Mapping[int, Row]) -> float:
    """How far our RMSE is above theirs, paired by seed; the errors of one seed are taken as
    independent, for the users may be others."""
    common = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[seed], theirs[seed]) for seed in common]
    return _rise(
        [
            (one["rmse"] - other["rmse"], math.hypot(one["rmse_stderr"], other["rmse_stderr"]))
            for one, other in pairs
        ]
    )


def _rise(differences: Sequence[tuple[float, float]]) -> float:
    """The mean of differences where it is more than two of its standard errors, else 0.

    One difference has a standard error of its own, over users: that of the noise's draw is not in
    it.
    """
    if not differences:
        return 0.0
    mean, error = mean_and_error([difference for difference, _ in differences])
    if len(differences) == 1:
        error = differences[0][1]
    return mean if mean > 2 * error else 0.0


def markdown(result: Row) -> str:
    """The result of `run` as a table for docs: a line for each size, its error and that of biases
    by epsilon; letters say what is wrong."""
    epsilons = sorted({float(cell["epsilon"]) for cell in result["cells"]})
    lines = dict[tuple[int, int], dict[float, str]]()
    for cell in result["cells"]:
        letters = ", ".join(letter for letter, rise in cell["above"].items() if rise > 0)
        words = (
            f"{figure(cell['rmse'])} "
            f"({figure(cell['biases'])}){f' **{letters}**' if letters else ''}"
        )
        lines.setdefault((cell["items"], cell["users"]), {})[float(cell["epsilon"])] = words
    header = ("items", "users", *(f"ε = {epsilon:g}" for epsilon in epsilons))
    body = [
        [f"{m:,}", f"{n:,}", *(found.get(e, "–") for e in epsilons)]
        for (m, n), found in sorted(lines.items())
    ]
    total, counts = (
        len(result["cells"]),
        ", ".join(f"{count} above {name}" for name, count in result["above"].items()),
    )
    legend = ", ".join(f"{letter}: above {name}" for letter, name in CONTROLS.items())
    words = (
        f"No error in the {total} cells is larger than it should be: none exceeds that of a "
        "smaller epsilon, of item biases alone, or of fewer users."
        if result["sound"] == total
        else f"{result['sound']} of {total} cells have no error larger than it should be; "
        f"{counts}. Marks: {legend}."
    )
    return f"{table(header, body)}\n\n{words}"
