"""Ada-DPALS App. C: does a budget that adapts to the sizes of tasks help? Figure 5, on its planted
tasks, by Algorithms 1 and 2.

Test RMSE of m = 100 linear tasks against mu, at skew a = 1 and 2. Exact sizes decide the weights,
as in the paper: the guarantee takes them for public knowledge and says so; one point of ours has
them estimated instead, by max(n, 1) as the paper's experiments do (eq. 19 of App. B, which adds a
margin, is not here). On validation are chosen the ridge, from the one release of a run, and Gamma
of noisy gradient descent, from a run for each; test is read once. The paper's text names neither
epsilons nor values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import numpy as np

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.splits import random_split
from fedrec.federation.messages import ClientStep, Recipe, State, train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec_research.papers import paper as papers
from fedrec_research.papers import task_descent
from fedrec_research.papers import task_ridge as task_ridge
from fedrec_research.papers.allocation import Adaptive
from fedrec_research.papers.multitask import TaskData, TaskShape, planted_tasks
from fedrec_research.papers.paper import Line, Work
from fedrec_research.papers.task_descent import TaskDescent, TaskDescentSettings
from fedrec_research.papers.task_ridge import TaskRidge, TaskRidgeSettings
from fedrec_research.sealed import SealedSplit
from fedrec_research.trials import Row

SKEWS = (1.0, 2.0)
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
GRADIENT_RADII = (0.03, 0.1, 0.3)
STEPS = 10
ESTIMATED = "sizes estimated, 1 at least"
Algorithm = Literal["SSP", "noisy gradient"]


@dataclass(frozen=True)
class Point:
    """One point of the figure before its seeds; `estimated`: sizes are released privately, not
    taken as public."""

    algorithm: Algorithm
    skew: float
    epsilon: float
    mu: float
    delta: float = 1e-5
    estimated: bool = False

    @property
    def series(self) -> str:
        """Name of the point's series in the legend."""
        return f"{self.algorithm}, a = {self.skew:g}, epsilon = {self.epsilon:g}" + (
            f", {ESTIMATED}" if self.estimated else ""
        )


def planted_task_lines(work: Work) -> list[Line]:
    """Figure 5b-e; of a small part one skew, one epsilon, three mu, and a tenth of the users."""
    shape = TaskShape(users=1_000) if work.quick else TaskShape()
    return work.lines(
        papers.Point(p.series, p.mu, one_run, (p, replace(shape, skew=p.skew)), {"rmse": "rmse"})
        for p in _points(work)
    )


def _points(work: Work) -> Iterator[Point]:
    asked = work.start.figure
    delta = work.start.scenario.privacy.delta
    some = (SKEWS[:1], asked.epsilons[1:2] or asked.epsilons, asked.points[::2])
    skews, epsilons, mus = some if work.quick else (SKEWS, asked.epsilons, asked.points)
    for skew, epsilon in product(skews, epsilons):
        for algorithm in get_args(Algorithm):
            yield from (Point(algorithm, skew, epsilon, mu, delta) for mu in mus)
        yield Point("SSP", skew, epsilon, 0.5, delta, estimated=True)


def one_run(point: Point, shape: TaskShape, seed: int) -> Row:
    """Train on 80% of the labels of one planted set, choose on 10%, read the other 10% once."""
    planted = planted_tasks(shape, streams=Streams(seed))
    sealed = SealedSplit(random_split(planted.data.labels, seed=seed))
    known = TaskData(sealed.train, planted.data.features)
    sizes = (
        None
        if point.estimated
        else np.bincount(sealed.train.items, minlength=shape.tasks).astype(np.float64)
    )
    fit = _by_ssp if point.algorithm == "SSP" else _by_descent
    guarantee, thetas = fit(point, known, sizes, seed)
    fold = sealed.validation.targets
    validation = {choice: _rmse(theta, known.features, fold) for choice, theta in thetas.items()}
    best = min(validation, key=validation.__getitem__)
    opened = sealed.open({"theta": thetas[best]})
    found = {"rmse": _rmse(thetas[best], known.features, opened.split.test.targets), "chosen": best}
    return found | {"guarantee": str(guarantee), "model_sha256": opened.model_sha256}


def _by_ssp(
    point: Point, known: TaskData, sizes: Float64s | None, seed: int
) -> tuple[Guarantee, dict[float, Float64s]]:
    """theta by ridge, all from one release."""
    settings = TaskRidgeSettings(known.features.shape[1], Adaptive(point.mu), ridge=1.0)
    plan = task_ridge.plan_for(
        Guarantee(point.epsilon, point.delta), settings, public_sizes=sizes is not None
    )
    recipe = TaskRidge(plan, settings, known.num_users, known.labels.num_items, sizes)
    state = _trained(recipe, task_ridge.client_steps(settings), known, seed)
    return plan.guarantee, {ridge: recipe.theta(state, ridge=ridge) for ridge in RIDGES}


def _by_descent(
    point: Point, known: TaskData, sizes: Float64s | None, seed: int
) -> tuple[Guarantee, dict[float, Float64s]]:
    """theta by Gamma, a private run each."""
    thetas = dict[float, Float64s]()
    for radius in GRADIENT_RADII:
        settings = TaskDescentSettings(
            known.features.shape[1], point.mu, STEPS, rate=1.0, gradient_radius=radius
        )
        plan = task_descent.plan_for(
            Guarantee(point.epsilon, point.delta), settings, public_sizes=sizes is not None
        )
        recipe = TaskDescent(plan, settings, known.num_users, known.labels.num_items, sizes)
        thetas[radius] = recipe.theta(
            _trained(recipe, task_descent.client_steps(settings), known, seed)
        )
    return plan.guarantee, thetas


def _trained(recipe: Recipe, steps: Mapping[str, ClientStep], data: TaskData, seed: int) -> State:
    link = Loopback(data, steps, recipe.plan, Streams(seed), Ledger(recipe.plan.guarantee))
    *_, last = train(recipe, link, recipe.begin())
    return last.state


def _rmse(theta: Float64s, features: Float64s, targets: Interactions) -> float:
    predicted = np.einsum("ed,ed->e", features[targets.users], theta[targets.items])
    return float(np.sqrt(np.mean((predicted - targets.values) ** 2)))
