"""Task-weighted noisy gradient descent on linear tasks: Ada-DPALS Alg. 2 with squared losses
(Krichene et al. 2023), sound.

The tasks are those of `task_ridge`. In each of T steps a device sends w_i g_i for each of its
tasks, g_i = (theta_i . x - y_i) x cut to length Gamma; the sums are noised once, and theta_i moves
against them.

Guarantee (user, add/remove). A user's weights satisfy sum w^2 <= 1, tasks being distinct, so its
part of a step's sums has norm sqrt(sum w_i^2 |g_i|^2) <= Gamma; T such releases, each chosen from
those before, and the counts where task sizes are not public, are exactly what the plan lists.

Where we leave the paper: l. 5 clips the sum over users, which bounds nothing per user: here every
g_i is cut before it is weighed. The noise is calibrated exactly. The step of task i is rate d /
(mass_i + noise std), mass_i = omega_i n_i of eq. 16: about the inverse of the curvature of its
weighted loss where features spread evenly, as Thm 3.12 scales it. C is the ball of `theta_radius`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float64s
from fedrec.factorization import weights
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics import segments
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.clipping import clip_rows, clip_values
from fedrec.privacy.guarantee import Guarantee
from fedrec_research.papers.multitask import TaskData
from fedrec_research.papers.task_ridge import SIZES_PUBLIC, counts_question, report_counts


@dataclass(frozen=True)
class TaskDescentSettings:
    """`mu` is the exponent of weights n^-mu, `gradient_radius` Gamma, `rate` a share of a Newton
    step; counts as in `TaskRidgeSettings`."""

    dimension: int
    mu: float
    steps: int
    rate: float
    gradient_radius: float
    feature_radius: float = 1.0
    target_radius: float = 1.0
    theta_radius: float = 1.0
    count_limit: int = 50
    count_share: float = 0.14


def plan_for(guarantee: Guarantee, settings: TaskDescentSettings, *, public_sizes: bool) -> Plan:
    """Counts first, where sizes are not public; the steps share what is left equally."""
    steps = {f"gradient/{t}": 1 / settings.steps for t in range(settings.steps)}
    if public_sizes:
        noted = Guarantee(
            guarantee.epsilon,
            guarantee.delta,
            guarantee.unit,
            guarantee.neighbours,
            note=SIZES_PUBLIC,
        )
        return calibrate(noted, steps)
    rest = 1 - settings.count_share
    return calibrate(
        guarantee,
        {"counts": settings.count_share} | {name: rest * share for name, share in steps.items()},
    )


@dataclass(frozen=True)
class TaskDescent:
    """The server: post-processing of releases only.

    `sizes` (m,) where everybody knows how many users each task has."""

    plan: Plan
    settings: TaskDescentSettings
    num_users: int
    num_tasks: int
    sizes: Float64s | None = None

    def begin(self) -> State:
        """theta is 0, in the middle of C."""
        theta = np.zeros((self.num_tasks, self.settings.dimension))
        if self.sizes is None:
            return {"round": np.array(0), "theta": theta}
        return {
            "round": np.array(1),
            "theta": theta,
            "counts": weights.at_least_one(self.sizes),
        }

    def ask(self, state: State) -> Question | None:
        """Counts, then a gradient for every step."""
        t = int(state["round"])
        settings = self.settings
        if t == 0:
            return counts_question(self.num_tasks, settings.count_limit)
        if t > settings.steps:
            return None
        name = f"gradient/{t - 1}"
        gradient = block(name, "linear", rows=self.num_tasks, width=settings.dimension)
        return Question(
            t,
            "tasks/gradient",
            {"theta": state["theta"], "counts": state["counts"]},
            (ReleaseSpec(name, (gradient,)),),
        )

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """l. 6: a step against the noisy gradient, then back into C."""
        t = int(state["round"])
        settings = self.settings
        if t == 0:
            return {
                **state,
                "round": np.array(1),
                "counts": weights.at_least_one(answer.values["counts"][:, 0]),
            }
        name = f"gradient/{t - 1}"
        counts = np.asarray(state["counts"], np.float64)
        mass = counts * weights.task_weights(
            counts, mu=settings.mu, budget=1.0, num_users=self.num_users
        )
        rate = (
            settings.rate
            * settings.dimension
            / (mass + answer.noise_std[name])
            / settings.feature_radius**2
        )
        moved = self.theta(state) - rate[:, None] * answer.values[name] * settings.gradient_radius
        return {
            **state,
            "round": np.array(t + 1),
            "theta": clip_rows(moved, radius=settings.theta_radius).rows,
        }

    def theta(self, state: State) -> Float64s:
        """(m, d) theta of a finished state."""
        return np.asarray(state["theta"], np.float64)


def client_steps(settings: TaskDescentSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives; its data is `TaskData`."""
    return {
        "tasks/counts": lambda question, mine: report_counts(question, mine, settings.count_limit),
        "tasks/gradient": lambda question, mine: _report_gradient(question, mine, settings),
    }


def _report_gradient(question: Question, mine: TaskData, settings: TaskDescentSettings) -> Reports:
    """w_i g_i / Gamma of every task: one number for each beside the one vector x."""
    labels = mine.labels
    radius = settings.target_radius
    X = clip_rows(mine.features, radius=settings.feature_radius).rows
    x = X[labels.users]
    theta = np.asarray(question.public["theta"], np.float64)[labels.items]
    residual = (
        segments.row_products(x, theta)
        - clip_values(labels.values, low=-radius, high=radius).values
    )
    length = np.abs(residual) * np.sqrt(segments.row_squares(x))
    cut = residual / np.maximum(length / settings.gradient_radius, 1.0) / settings.gradient_radius
    w = weights.normalised(
        labels, np.asarray(question.public["counts"], np.float64), mu=settings.mu, budget=1.0
    ).values
    return bounded(
        labels.user_ptr, labels.items, [RealBlock(w * cut, X)], question.releases, scaling="clip"
    )
