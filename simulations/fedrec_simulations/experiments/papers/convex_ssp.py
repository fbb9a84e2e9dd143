"""SSP for convex losses (AM-SSP Alg. 7, Krichene et al. 2024), which its authors left without an evaluation: logistic or quadratic loss?

Private clicks of yelp2018 and amazon-book in the protocol of `bench clicks`: trained on all given train events, NDCG@20 and Recall@20 of
the given test events over the full catalogue. Both losses have the same start, releases, budget and tuning; our default stands beside
them. Rows are means over noise seeds with their standard error; `each_stderr` is that over users. The last series is the difference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.errors import SettingsError
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import dot_product
from fedrec.federation.rounds import train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import Scenario
from fedrec.storage import finite
from fedrec_simulations.data.datasets import public_facts
from fedrec_simulations.data.sealed import load_sealed
from fedrec_simulations.experiments.papers.starts import Start, started
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error, row

K, METRICS = 20, ("ndcg", "recall")
LOGISTIC, QUADRATIC, DEFAULT = "logistic", "quadratic", "our default"
DIFFERENCE = "logistic - quadratic"

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    name: {"how": "nothing is published: App. D leaves Alg. 7's evaluation as future work"} for name in ("yelp2018", "amazon_book")
}


@dataclass(frozen=True)
class Work:
    """Where rows come from and go to."""

    start: Start
    quick: bool
    folder: Path

    def seeds(self, epsilon: float) -> tuple[int, ...]:
        """Of the noise; without noise nothing is random, and one training is all."""
        return self.start.seeds(self.quick or math.isinf(epsilon))

    def rows(self, curve: str, epsilon: float) -> list[Row]:
        """One finished training for each noise seed."""
        name = f"{curve.replace(' ', '-')}-{epsilon:g}-{self.start.key}"
        return [row(self.folder, f"{name}-{seed}", trained_row, self.start, curve, epsilon, seed) for seed in self.seeds(epsilon)]


def figure(name: str, data: str, quick: bool, folder: Path, *, overrides: Sequence[str] = ()) -> list[Row]:
    """Rows of one figure of `FIGURES`, from `simulations/convex_ssp_NAME.toml`; `data` "planted" is the small planted set, as clicks.

    `quick`: one seed and one epsilon; overrides: `table.key=value` of the scenario. Rows are resumed from `folder`. Raises SettingsError on
    another name, on a wrong key, or without data.
    """
    if name not in FIGURES:
        raise SettingsError(f"convex SSP has no {name!r}", f"Use one of: {', '.join(FIGURES)}.")
    planted = ("data.kind=clicks", "split.kind=random", "split.validation_share=0") if data == "planted" else ()
    work = Work(started(f"convex_ssp_{name}", data, (*planted, *overrides)), quick, folder_of(folder, data))
    return [dict(finite({"figure": name, **point})) for point in FIGURES[name](work)]


def trained_row(start: Start, curve: str, epsilon: float, seed: int) -> Row:
    """One training and its test. The source's train events include validation's, which were for choices and are history of all."""
    scenario = scenario_of(start, curve, epsilon, seed)
    dataset, sealed = load_sealed(scenario)
    events, began = sealed.train if dataset.given_test is None else dataset.interactions, time.perf_counter()
    made = prepare(scenario, public_facts(scenario, dataset, sealed))
    *_, last = train(made.recipe, Loopback(events, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee)), made.recipe.begin())
    model, seconds = made.recipe.model(last.state), time.perf_counter() - began
    opened = sealed.open(model.arrays())
    scores = dot_product(np.asarray(model.user_vectors(events), np.float32), np.asarray(model.item_vectors, np.float32))
    counts, targets = np.bincount(events.items, minlength=events.num_items), opened.split.test.targets
    found = evaluate_ranking(scores, history=events, targets=targets, train_counts=counts, cutoffs=(K,)).at[K]
    measured = {f"{name}@{K}": getattr(found, name) for name in METRICS} | {f"{name}_stderr": found.stderr[name] for name in METRICS}
    return {"guarantee": str(made.plan.guarantee), "model_sha256": opened.model_sha256, "train_seconds": seconds, **measured}


def scenario_of(start: Start, curve: str, epsilon: float, seed: int) -> Scenario:
    """What `fedrec simulate` would be told: the curve's line at the nearest epsilon over the file's own tables."""
    told: Row = {"seed": seed, "privacy": {"epsilon": epsilon}}
    if curve == DEFAULT:
        return start.laid_over({**told, "recipe": "default"}, leave=frozenset({"model"}))
    return start.laid_over(told, start.settings(curve, epsilon), {"model": {"loss": curve}})


def _privacy_utility(work: Work) -> Iterator[Row]:
    """Quality against epsilon."""
    epsilons = work.start.figure.epsilons
    for epsilon in epsilons[1:2] if work.quick else epsilons:
        found = {curve: work.rows(curve, epsilon) for curve in (LOGISTIC, QUADRATIC, DEFAULT)}
        for metric in METRICS:
            each = {curve: [r[f"{metric}@{K}"] for r in made] for curve, made in found.items()}
            users = {curve: [r[f"{metric}_stderr"] for r in made] for curve, made in found.items()}
            for curve, values in each.items():
                yield _point(work, metric, curve, epsilon, values) | {
                    "each_stderr": users[curve],
                    "guarantee": found[curve][0]["guarantee"],
                }
            pairs = [a - b for a, b in zip(each[LOGISTIC], each[QUADRATIC], strict=True)]
            apart = [float(np.hypot(a, b)) for a, b in zip(users[LOGISTIC], users[QUADRATIC], strict=True)]
            yield _point(work, metric, DIFFERENCE, epsilon, pairs) | {"each_stderr": apart, "guarantee": found[LOGISTIC][0]["guarantee"]}


def _point(work: Work, metric: str, series: str, epsilon: float, each: list[float]) -> Row:
    value, error = mean_and_error(each)
    content: Row = {"metric": f"{metric}@{K}", "series": series, "x": epsilon, "value": value, "standard_error": error}
    return content | {"each": each, "seeds": list(work.seeds(epsilon))}


FIGURES: Mapping[str, Callable[[Work], Iterator[Row]]] = dict.fromkeys(PUBLISHED, _privacy_utility)
"""One for each data set; not figures of the paper, which has none."""
