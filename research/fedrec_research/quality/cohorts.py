"""Cost to the model of asking a share of the users in every round: the default recipe on planted
ratings, by epsilon and share.

A new sample of users in every round, as phones would be with `rounds.cohort`; nothing is amplified,
so noise is the same at every share. Read on validation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.evaluation.intervals import mean_and_error
from fedrec.factorization.facts import public_facts
from fedrec.federation.messages import Question, Release, train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.storage import finite
from fedrec_research.quality.sizes import Cell
from fedrec_research.runner import rmse
from fedrec_research.sealed import load_sealed
from fedrec_research.trials import Asked, Row

SIZES = (6_000, 1_000)
EPSILONS = (1.0, 5.0, 20.0)
SHARES = (1.0, 0.5, 0.25)
SEEDS = (1, 2, 3)


@dataclass
class CohortLink:
    """A `Link` that asks a new sample of the users in every round.

    Their sums stand for as many as the recipe counts on."""

    events: Interactions
    prepared: Prepared
    planned: int
    seed: int
    ledger: Ledger

    def answer(self, question: Question) -> Release:
        """One round over the sample."""
        rng = Streams(self.seed).numpy("cohort", round=question.round)
        users = np.sort(rng.choice(self.events.num_users, self.planned, replace=False))
        link = Loopback(
            self.events.users_subset(users),
            self.prepared.steps,
            self.prepared.plan,
            Streams(self.seed),
            self.ledger,
        )
        answer = link.answer(question)
        self.ledger = link.ledger
        return answer.standing_for(self.planned, reported=len(users))


def run(asked: Asked) -> Row:
    """Validation RMSE by epsilon and share, means over seeds with their standard errors; of a small
    part 1,500 users at ε = 5."""
    sizes = (1_500, 100) if asked.quick else SIZES
    epsilons, seeds = ((5.0,), SEEDS[:2]) if asked.quick else (EPSILONS, asked.seeds_of(SEEDS))
    rows = asked.by_seed({at: (cohort_row, *sizes, *at) for at in product(epsilons, SHARES)}, seeds)
    errors = {at: np.array([row["rmse"] for row in found]) for at, found in rows.items()}
    cells = [
        {
            "epsilon": e,
            "rmse": {f"{share:g}": _mean(errors[e, share]) for share in SHARES},
            "cost": {
                f"{share:g}": _mean(errors[e, share] - errors[e, 1.0]) for share in SHARES[1:]
            },
        }
        for e in epsilons
    ]
    about = {"users": sizes[0], "items": sizes[1], "seeds": list(seeds), "shares": list(SHARES)}
    return dict(finite(about | {"cells": cells}))


def cohort_row(users: int, items: int, epsilon: float, share: float, seed: int) -> Row:
    """One training that asks a share of the users in every round."""
    scenario = Cell(users, items, epsilon, seed).scenario()
    dataset, sealed = load_sealed(scenario)
    facts = public_facts(scenario.seed, dataset, sealed)
    planned = math.ceil(share * facts.num_users)
    made = prepare(scenario, replace(facts, num_users=planned))
    link = CohortLink(sealed.train, made, planned, seed, Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    return {"rmse": rmse(made.recipe.model(last.state), sealed.validation)}


def _mean(values: Any) -> dict[str, float]:
    return dict(zip(("mean", "stderr"), mean_and_error(list(values)), strict=True))
