"""Soundness of the default recipe at every size: planted ratings, 25 a user, over users, items and
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
from dataclasses import asdict, dataclass

import numpy as np

from fedrec.data.interactions import Dataset
from fedrec.data.splits import Fold
from fedrec.evaluation.controls import paired
from fedrec.evaluation.intervals import mean_and_error
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.facts import predict, public_facts
from fedrec.factorization.rankers import Model
from fedrec.recipes import prepare
from fedrec.settings import Scenario, validated
from fedrec.storage import finite
from fedrec_research.runner import peak_rss_mb, rmse, rounds
from fedrec_research.sealed import SealedSplit, load_sealed
from fedrec_research.trials import Asked, Row

USERS = (2_000, 20_000, 150_000, 350_000)
ITEMS = (500, 2_000, 10_000)
EPSILONS = (0.5, 1.0, 5.0, 20.0, math.inf)
QUICK = ((2_000, 8_000), (100,), (1.0, 20.0, math.inf))
SEEDS = (1, 2, 3)
EVENTS_PER_USER = 25
DELTA = 1e-5
CONTROLS = {"a": "biases alone", "b": "a smaller epsilon", "c": "fewer users"}
_SOME = 1_000  # users of validation
Key = tuple[int, int, float]


@dataclass(frozen=True)
class Cell:
    """One training."""

    users: int
    items: int
    epsilon: float
    seed: int

    def scenario(self) -> Scenario:
        """What `fedrec simulate` would be told."""
        planted = {"users": self.users, "items": self.items, "events": EVENTS_PER_USER * self.users}
        content = {
            "seed": self.seed,
            "data": {"planted": planted},
            "split": {"seed": self.seed},
            "privacy": {"epsilon": self.epsilon, "delta": DELTA, "noise": "seeded"},
        }
        return validated(content, source=f"{self}")


def run(asked: Asked) -> Row:
    """The grid, with every row; of a small part a grid of seconds."""
    users, items, epsilons = QUICK if asked.quick else (USERS, ITEMS, EPSILONS)
    grid = itertools.product(
        sorted(asked.users or users),
        sorted(asked.items or items),
        sorted(asked.epsilons or epsilons),
    )
    seeds = asked.seeds_of(SEEDS)
    rows = asked.by_seed({key: (size_row, *key) for key in grid}, seeds)
    by_seed = {key: dict(zip(seeds, found, strict=True)) for key, found in rows.items()}
    return dict(finite(summary(by_seed)))


def size_row(users: int, items: int, epsilon: float, seed: int) -> Row:
    """The default and `dp-bias` on the same events: RMSE of both on test, of the default on
    validation after every round."""
    cell = Cell(users, items, epsilon, seed)
    scenario = cell.scenario()
    dataset, sealed = load_sealed(scenario)
    alone = sealed.again()
    models = _trained(scenario, dataset, sealed)
    validation = [rmse(model, _some(sealed.validation)) for model in models]
    [*_, biases] = _trained(scenario.model_copy(update={"recipe": "dp-bias"}), dataset, alone)
    test = sealed.open(models[-1].arrays()).split.test
    last, simple = (
        rating_metrics(predict(model, test.history, test.targets), test.targets)
        for model in (models[-1], biases)
    )
    return {
        **asdict(cell),
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
    made = prepare(scenario, public_facts(scenario.seed, dataset, sealed))
    return [made.recipe.model(done.state) for done in rounds(made, sealed.train, scenario.seed)]


def _some(fold: Fold) -> Fold:
    users = np.arange(min(fold.targets.num_users, _SOME))
    return Fold(fold.history.users_subset(users), fold.targets.users_subset(users))


def summary(groups: Mapping[Key, Mapping[int, Row]]) -> Row:
    """Summarise rows by seed: means of every cell, what is above which control and by how much, and
    how many cells are above none."""
    found = [_cell(key, groups) for key in sorted(groups)]
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
        "rows": [row for rows in groups.values() for row in rows.values()],
    }


def _cell(key: Key, groups: Mapping[Key, Mapping[int, Row]]) -> Row:
    users, items, epsilon = key
    rows = groups[key]
    less = [found for (n, m, e), found in groups.items() if (n, m) == key[:2] and e < epsilon]
    fewer = [found for (n, m, e), found in groups.items() if (m, e) == key[1:] and n < users]
    over_biases = [(r["rmse"] - r["biases"], r["above_biases_stderr"]) for r in rows.values()]
    mean, error = mean_and_error([row["rmse"] for row in rows.values()])
    return {
        "users": users,
        "items": items,
        "epsilon": epsilon,
        "seeds": sorted(rows),
        "rmse": mean,
        "standard_error": error,
        "biases": float(np.mean([row["biases"] for row in rows.values()])),
        "above": {
            "a": _rise(over_biases),
            "b": max((_above(rows, other) for other in less), default=0.0),
            "c": max((_above(rows, other) for other in fewer), default=0.0),
        },
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
