"""SSP for convex losses (AM-SSP Alg. 7, Krichene et al. 2024), which its authors left without an
evaluation: logistic or quadratic loss?

Private clicks of yelp2018 and amazon-book in the protocol of `bench clicks`: trained on all given
train events, NDCG@20 and Recall@20 of the given test events over the full catalogue. Both losses
have the same start, releases, budget and tuning; our default stands beside them. Rows are means
over noise seeds with their standard error; `each_stderr` is that over users. The last series is the
difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import dot_product
from fedrec.run.data.datasets import public_facts
from fedrec.run.data.sealed import load_sealed
from fedrec.settings import Scenario
from fedrec_simulations.experiments.in_memory import trained
from fedrec_simulations.experiments.papers.paper import Line, Paper, Work
from fedrec_simulations.experiments.papers.starts import Start
from fedrec_simulations.experiments.row_queue import Plan
from fedrec_simulations.experiments.rows import Row
from fedrec_simulations.experiments.trials import Trial

K, METRICS = 20, ("ndcg", "recall")
LOGISTIC, QUADRATIC, DEFAULT = "logistic", "quadratic", "our default"
CURVES, DIFFERENCE = (LOGISTIC, QUADRATIC, DEFAULT), "logistic - quadratic"

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    name: {"how": "nothing is published: App. D leaves Alg. 7's evaluation as future work"}
    for name in ("yelp2018", "amazon_book")
}


def trained_row(start: Start, curve: str, epsilon: float, seed: int) -> Row:
    """One training and its test.

    The source's train events include validation's, which were for choices and are history of all.
    """
    scenario = scenario_of(start, curve, epsilon, seed)
    dataset, sealed = load_sealed(scenario)
    events = sealed.train if dataset.given_test is None else dataset.interactions
    done = trained(scenario, public_facts(scenario, dataset, sealed), events)
    model = done.model
    opened = sealed.open(model.arrays())
    scores = dot_product(
        np.asarray(model.user_vectors(events), np.float32),
        np.asarray(model.item_vectors, np.float32),
    )
    counts, targets = (
        np.bincount(events.items, minlength=events.num_items),
        opened.split.test.targets,
    )
    found = evaluate_ranking(
        scores, history=events, targets=targets, train_counts=counts, cutoffs=(K,)
    ).at[K]
    measured = {f"{name}@{K}": getattr(found, name) for name in METRICS} | {
        f"{name}_stderr": found.stderr[name] for name in METRICS
    }
    told = {
        "guarantee": str(done.prepared.plan.guarantee),
        "model_sha256": opened.model_sha256,
        "train_seconds": done.seconds,
    }
    return {**told, **measured}


def scenario_of(start: Start, curve: str, epsilon: float, seed: int) -> Scenario:
    """What `fedrec simulate` would be told: the curve's line at the nearest epsilon over the file's
    own tables."""
    told: Row = {"seed": seed, "privacy": {"epsilon": epsilon}}
    if curve == DEFAULT:
        return start.laid_over({**told, "recipe": "default"}, leave=frozenset({"model"}))
    return start.laid_over(told, start.settings(curve, epsilon), {"model": {"loss": curve}})


def _privacy_utility(work: Work) -> Plan[list[Line]]:
    """Quality against epsilon. Without noise nothing is random, and one training is all."""
    epsilons = work.start.figure.epsilons
    at = {
        e: work.start.seeds(work.quick or math.isinf(e))
        for e in (epsilons[1:2] if work.quick else epsilons)
    }
    rows = yield {
        (curve, e, seed): _trial(work, curve, e, seed)
        for e, seeds in at.items()
        for curve in CURVES
        for seed in seeds
    }
    lines = list[Line]()
    for (epsilon, seeds), metric in product(at.items(), METRICS):
        found = {curve: [rows[curve, epsilon, seed] for seed in seeds] for curve in CURVES}
        each = {curve: [r[f"{metric}@{K}"] for r in made] for curve, made in found.items()}
        users = {curve: [r[f"{metric}_stderr"] for r in made] for curve, made in found.items()}
        each[DIFFERENCE] = [a - b for a, b in zip(each[LOGISTIC], each[QUADRATIC], strict=True)]
        users[DIFFERENCE] = [
            float(np.hypot(a, b)) for a, b in zip(users[LOGISTIC], users[QUADRATIC], strict=True)
        ]
        for series, values in each.items():
            promise = found[LOGISTIC if series == DIFFERENCE else series][0]["guarantee"]
            lines.append(
                Line(
                    f"{metric}@{K}",
                    series,
                    epsilon,
                    values,
                    promise,
                    {"each_stderr": users[series]},
                )
            )
    return lines


def _trial(work: Work, curve: str, epsilon: float, seed: int) -> Trial:
    return Trial.of(
        f"{curve}-{epsilon:g}-{work.start.key}-{seed}",
        trained_row,
        work.start,
        curve,
        epsilon,
        seed,
    )


PAPER = Paper(
    name="convex SSP",
    prefix="convex_ssp",
    figures=dict.fromkeys(PUBLISHED, _privacy_utility),
    published=PUBLISHED,
    planted=("data.kind=clicks", "split.kind=random", "split.validation_share=0"),
    divided_once=True,
)
"""A figure for each data set; not figures of the paper, which has none."""
