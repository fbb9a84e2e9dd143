"""Task-weighted ridge regression by sufficient statistics perturbation: Ada-DPALS Alg. 1 (Krichene
et al. 2023).

n users, m tasks, and theta_i = argmin sum_k (theta_i . x_k - y_ik)^2 + lambda |theta_i|^2 for each
task i. A device clips its x to Gamma_x and its labels to Gamma_y, weighs its tasks
(`budget.allocation`) and reports w x x' and w y x for each of them; the sums are noised once, and
theta solved from them. In `ssp` the same step is the item update of alternating minimisation: items
are tasks, user vectors x.

Guarantee (user, add/remove). A user's weights satisfy sum w^2 <= 1, tasks being distinct, so in
units of Gamma_x^2 and Gamma_x Gamma_y its part of all (A_i) has Frobenius norm sqrt(sum w^2 |x|^4)
<= 1 and its part of all (b_i) norm <= 1 (Thm 3.3); `reports.bounded` takes care of rounding. With
the counts that is three Gaussian releases, each chosen from those before: exactly what the plan
lists. Where task sizes are given as public, the guarantee takes them as public knowledge, and its
note says so.

Where we leave the paper: lambda stands outside the weighted sum and is public (inside, as in l. 5,
a user's part is up to 5.9 times longer than the proof allows); noise on A is isometric
(`privacy.gaussian`); accounting is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float64s
from fedrec.factorization import weights
from fedrec.factorization.am_ssp import recipe
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.clipping import clip_rows, clip_values
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec_research.papers.allocation import Allocation
from fedrec_research.papers.multitask import TaskData

CountEstimate = Callable[[Float64s, float], Float64s]
"""From noisy counts and their noise std to counts of at least 1; `estimated`."""

SIZES_PUBLIC = "task sizes are taken as public knowledge"
"""The note of a guarantee that does not cover them."""


def estimated(noisy: Float64s, noise_std: float) -> Float64s:
    """max(n, 1): the experiments' estimate."""
    return weights.at_least_one(noisy)


@dataclass(frozen=True)
class TaskRidgeSettings:
    """`feature_radius` is Gamma_x, `target_radius` Gamma_y, `ridge` lambda.

    Where sizes are not public, a user's part of the counts is clipped to norm sqrt(`count_limit`),
    and counts have `count_share` of mu^2.
    """

    dimension: int
    allocation: Allocation
    ridge: float
    feature_radius: float = 1.0
    target_radius: float = 1.0
    count_limit: int = 50
    count_share: float = 0.14
    counts: CountEstimate = estimated


def plan_for(guarantee: Guarantee, settings: TaskRidgeSettings, *, public_sizes: bool) -> Plan:
    """Counts first, where sizes are not public; A and b share what is left equally, as in the proof
    of Thm 3.3."""
    if public_sizes:
        noted = Guarantee(
            guarantee.epsilon,
            guarantee.delta,
            guarantee.unit,
            guarantee.neighbours,
            note=SIZES_PUBLIC,
        )
        return calibrate(noted, {"gram": 0.5, "moment": 0.5})
    half = (1 - settings.count_share) / 2
    return calibrate(guarantee, {"counts": settings.count_share, "gram": half, "moment": half})


@dataclass(frozen=True)
class TaskRidge:
    """The server: post-processing of releases only.

    `sizes` (m,) where everybody knows how many users each task has."""

    plan: Plan
    settings: TaskRidgeSettings
    num_users: int
    num_tasks: int
    sizes: Float64s | None = None

    def begin(self) -> State:
        """Nothing is known but, perhaps, the sizes."""
        if self.sizes is None:
            return {"round": np.array(0)}
        return {"round": np.array(1), "counts": weights.at_least_one(self.sizes)}

    def ask(self, state: State) -> Question | None:
        """Counts, then statistics."""
        t = int(state["round"])
        if t == 0:
            return counts_question(self.num_tasks, self.settings.count_limit)
        if t > 1:
            return None
        m = self.num_tasks
        d = self.settings.dimension
        specs = (
            ReleaseSpec("gram", (block("gram", "outer", rows=m, width=d),)),
            ReleaseSpec("moment", (block("moment", "linear", rows=m, width=d),)),
        )
        return Question(
            1,
            "tasks/statistics",
            {"counts": state["counts"], "num_users": np.array(self.num_users)},
            specs,
        )

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Keep what was released, in the units of the data."""
        if question.round == 0:
            noisy = answer.values["counts"][:, 0]
            std = answer.noise_std["counts"]
            return {"round": np.array(1), "counts": self.settings.counts(noisy, std)}
        settings = self.settings
        gram = answer.values["gram"] * settings.feature_radius**2
        moment = answer.values["moment"] * settings.feature_radius * settings.target_radius
        return {**state, "round": np.array(2), "gram": gram, "moment": moment}

    def theta(self, state: State, *, ridge: float | None = None) -> Float64s:
        """(m, d) theta of a finished state (l. 7, with the projection that keeps it stable);
        another ridge costs nothing more."""
        return recipe.projected(
            statistics(state), ridge=self.settings.ridge if ridge is None else ridge
        )


def statistics(state: State) -> ItemStatistics:
    """The released sums of a finished state."""
    return ItemStatistics(
        np.asarray(state["gram"], np.float64), np.asarray(state["moment"], np.float64)
    )


def client_steps(settings: TaskRidgeSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives; its data is `TaskData`."""
    return {
        "tasks/counts": lambda question, mine: report_counts(question, mine, settings.count_limit),
        "tasks/statistics": lambda question, mine: _report_statistics(question, mine, settings),
    }


def counts_question(num_tasks: int, limit: int) -> Question:
    """Round 0: how many users has each task? A user's own part has norm at most sqrt(limit)."""
    radius = math.sqrt(limit)
    by_task = block("counts", "linear", rows=num_tasks, width=1, radius=radius)
    return Question(0, "tasks/counts", {}, (ReleaseSpec("counts", (by_task,), radius),))


def report_counts(question: Question, mine: TaskData, limit: int) -> Reports:
    """min(1, sqrt(limit / n_k)) on each task."""
    labels = mine.labels
    ones = weights.clipped_contributions(labels, limit=limit)
    blocks = [RealBlock(ones.values, np.ones((labels.num_users, 1)))]
    return bounded(labels.user_ptr, labels.items, blocks, question.releases, scaling="clip")


def _report_statistics(question: Question, mine: TaskData, settings: TaskRidgeSettings) -> Reports:
    labels = mine.labels
    radius = settings.target_radius
    # l. 2
    X = clip_rows(mine.features, radius=settings.feature_radius).rows / settings.feature_radius
    y = clip_values(labels.values, low=-radius, high=radius).values / radius
    w = settings.allocation(
        labels,
        np.asarray(question.public["counts"], np.float64),
        budget=1.0,
        num_users=int(question.public["num_users"]),
        # public: it chooses among a user's own tasks, nothing rests on its secrecy
        key=Streams(0).key("task-sampling"),
    ).values
    # l. 5-6
    return bounded(
        labels.user_ptr,
        labels.items,
        [RealBlock(w, X), RealBlock(w * y, X)],
        question.releases,
        scaling="clip",
    )
