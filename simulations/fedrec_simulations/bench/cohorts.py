"""What does it cost the model to ask a share of the users in every round? The default recipe on
planted ratings, by epsilon and share.

A new sample of users in every round, as phones would be with `rounds.cohort`; nothing is amplified,
so noise is the same at every share. Read on validation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.model import predict
from fedrec.federation.messages import Question, Release
from fedrec.federation.rounds import train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.run.data.datasets import public_facts
from fedrec.run.data.sealed import load_sealed
from fedrec.storage import finite
from fedrec_simulations.bench.sizes import Cell
from fedrec_simulations.experiments.rows import table

USERS, ITEMS, EPSILONS, SHARES = 6_000, 1_000, (1.0, 5.0, 20.0), (1.0, 0.5, 0.25)


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
        answer, self.ledger = link.answer(question), link.ledger
        return answer.standing_for(self.planned, reported=len(users))


def run(*, quick: bool = False, seeds: Sequence[int] = (1, 2, 3)) -> dict[str, Any]:
    """Validation RMSE by epsilon and share, means over seeds with their standard errors.

    `quick`: 1,500 users, ε = 5."""
    users, items, epsilons, seeds = (
        (1_500, 100, (5.0,), (1, 2)) if quick else (USERS, ITEMS, EPSILONS, seeds)
    )
    cells = []
    for epsilon in epsilons:
        found = {
            share: np.array([_rmse(Cell(users, items, epsilon, seed), share) for seed in seeds])
            for share in SHARES
        }
        cells.append(
            {"epsilon": epsilon, "rmse": {f"{share:g}": _mean(found[share]) for share in SHARES}}
        )
        cells[-1]["cost"] = {f"{share:g}": _mean(found[share] - found[1.0]) for share in SHARES[1:]}
    return dict(
        finite(
            {
                "users": users,
                "items": items,
                "seeds": list(seeds),
                "shares": list(SHARES),
                "cells": cells,
            }
        )
    )


def _rmse(cell: Cell, share: float) -> float:
    scenario = cell.scenario()
    dataset, sealed = load_sealed(scenario)
    facts = public_facts(scenario, dataset, sealed)
    planned = math.ceil(share * facts.num_users)
    prepared = prepare(scenario, replace(facts, num_users=planned))
    link = CohortLink(
        sealed.train, prepared, planned, scenario.seed, Ledger(prepared.plan.guarantee)
    )
    *_, last = train(prepared.recipe, link, prepared.recipe.begin())
    fold = sealed.validation
    return rating_metrics(
        predict(prepared.recipe.model(last.state), fold.history, fold.targets), fold.targets
    ).rmse


def _mean(values: Any) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "stderr": float(values.std(ddof=1) / math.sqrt(len(values)))
        if len(values) > 1
        else math.nan,
    }


def markdown(result: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    lines = []
    for cell in result["cells"]:
        # a kept file has its keys in another order
        found = [cell["cost"][f"{share:g}"] for share in result["shares"][1:]]
        costs = [f"{cost['mean']:+.4f} ± {cost['stderr']:.4f}" for cost in found]
        lines.append([f"ε = {cell['epsilon']:g}", f"{cell['rmse']['1']['mean']:.4f}", *costs])
    shares = [f"{100 * share:.0f}% of users" for share in result["shares"][1:]]
    return table(
        (
            f"{result['users']:,} users, {result['items']:,} items",
            "everybody asked: RMSE",
            *(f"{s}: more by" for s in shares),
        ),
        lines,
    )
