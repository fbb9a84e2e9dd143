"""SSP for convex losses (AM-SSP Alg. 7, Krichene et al. 2024), which its authors left without an
evaluation: logistic or quadratic loss?

Private clicks of yelp2018 and amazon-book in the protocol of `measure clicks`: trained on all given
train events, NDCG@20 and Recall@20 of the given test events over the full catalogue. Both losses
have the same start, releases, budget and tuning; our default stands beside them. Rows are means
over noise seeds with their standard error; `each_stderr` is that over users. The last series is the
difference.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from fedrec.factorization.facts import public_facts
from fedrec.settings import Scenario
from fedrec_research.papers.paper import Line, Paper, Work
from fedrec_research.papers.starts import Start
from fedrec_research.runner import fitted, load_whole, on_test
from fedrec_research.trials import Row, trial

K = 20
METRICS = ("ndcg", "recall")
LOGISTIC = "logistic"
QUADRATIC = "quadratic"
DEFAULT = "our default"
CURVES = (LOGISTIC, QUADRATIC, DEFAULT)
DIFFERENCE = "logistic - quadratic"


def trained_row(start: Start, curve: str, epsilon: float, seed: int) -> Row:
    """One training and its test, with standard errors over users."""
    scenario = scenario_of(start, curve, epsilon, seed)
    dataset, sealed = load_whole(scenario)
    found = fitted(scenario, public_facts(scenario.seed, dataset, sealed), sealed.train)
    row, outcome, _ = on_test(found, sealed, cutoffs=(K,))
    assert outcome.ranking is not None
    errors = outcome.ranking.at[K].stderr
    return row | {f"{name}_stderr": errors[name] for name in METRICS}


def scenario_of(start: Start, curve: str, epsilon: float, seed: int) -> Scenario:
    """What `fedrec simulate` would be told: the curve's line at the nearest epsilon over the file's
    own tables."""
    told: Row = {"seed": seed, "privacy": {"epsilon": epsilon}}
    if curve == DEFAULT:
        return start.laid_over({**told, "recipe": "default"}, leave=frozenset({"model"}))
    return start.laid_over(told, start.settings(curve, epsilon), {"model": {"loss": curve}})


def _privacy_utility(work: Work) -> list[Line]:
    """Quality against epsilon. Without noise nothing is random, and one training is all."""
    epsilons = work.start.figure.epsilons
    at = {
        e: work.start.seeds(work.quick or math.isinf(e))
        for e in (epsilons[1:2] if work.quick else epsilons)
    }
    rows = work.rows(
        {
            (curve, e, seed): trial(trained_row, work.start, curve, e, seed)
            for e, seeds in at.items()
            for curve in CURVES
            for seed in seeds
        }
    )
    lines = list[Line]()
    for (epsilon, seeds), metric in product(at.items(), METRICS):
        found = {curve: [rows[curve, epsilon, seed] for seed in seeds] for curve in CURVES}
        each = {curve: [r[f"{metric}@{K}"] for r in made] for curve, made in found.items()}
        users = {curve: [r[f"{metric}_stderr"] for r in made] for curve, made in found.items()}
        each[DIFFERENCE] = list(np.subtract(each[LOGISTIC], each[QUADRATIC]))
        users[DIFFERENCE] = list(np.hypot(users[LOGISTIC], users[QUADRATIC]))
        for series, values in each.items():
            promise = found[LOGISTIC if series == DIFFERENCE else series][0]["guarantee"]
            more = {"each_stderr": users[series]}
            lines.append(Line(f"{metric}@{K}", series, epsilon, values, promise, more))
    return lines


PAPER = Paper(
    name="convex SSP",
    prefix="convex_ssp",
    figures=dict.fromkeys(("yelp2018", "amazon_book"), _privacy_utility),
    planted=("data.kind=clicks", "split.kind=random", "split.validation_share=0"),
    divided_once=True,
)
"""A figure for each data set; not figures of the paper, which has none."""
