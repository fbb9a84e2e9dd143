"""The sound sibling of fast DP matrix factorisation: noisy gradient descent on V, every user
bounded, every step accounted.

Liu, Wang, Smola 2015 add Langevin noise to gradient steps and claim privacy for what an infinitely
long chain would give (`posterior.py`). Here the same steps v_j <- v_j + rate sum_k e_kj u_k (eq.
3), with u_k solved by the device (eq. 5), are private themselves.

Guarantee (user, add/remove). Of step s a user sends the rows e_kj (u_k, 1) of its items, the whole
scaled to norm exactly 1 (clipping alone would leave the users below the bound unheard and noise
just as strong); of round 0, 1/sqrt(n_k) on each of its items, norm 1, and its mean above mid-scale,
at most half the scale. A device computes from earlier releases and its own ratings, so removing a
user removes those reports and nothing else: each release has the L2 sensitivity of its radius, and
the run is an adaptive composition of Gaussian releases, priced exactly by GDP
(`privacy.accounting`). What the server does with releases is post-processing.

The step of item j is divided by (count_j + item_ridge), count_j the noisy sum of 1/sqrt(n_k) over
its users: as reports have norm 1, that is the curvature up to a constant. Without it one rate is
too small for rare items or too large for popular ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization import weights
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import PRIOR_RATINGS, LocalStageModel, solved
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics import segments
from fedrec.privacy.calibration import Plan
from fedrec.privacy.clipping import clip_values

_COUNT_SHARE = 0.06
_MEAN_SHARE = 0.005
"""Of mu^2: by judgement. The mean is one number of all ratings, which little is enough for; counts
only set the length of each item's steps."""


@dataclass(frozen=True)
class DescentSettings:
    """`rate` is relative to the curvature; `item_ridge` is in units of one user's report, plus the
    noise's std.

    `biases`: whether items have biases and users means of their own beside the vectors.
    """

    dimension: int
    steps: int
    rate: float
    user_ridge: float
    item_ridge: float
    start_std: float = 0.1
    biases: bool = True

    @property
    def prior(self) -> float:
        """Prior of users' own means, as a number of ratings: infinite where they have none."""
        return PRIOR_RATINGS if self.biases else math.inf

    def extended(self, U: Float64s) -> Float64s:
        """(n, d + 1): the vectors (u, 1) whose last coordinate moves biases, or (u, 0)."""
        return np.column_stack([U, np.full(len(U), float(self.biases))])


def shares(settings: DescentSettings) -> dict[str, float]:
    """Shares of mu^2: counts, mean, then the steps equally."""
    rest = (1 - _COUNT_SHARE - _MEAN_SHARE) / settings.steps
    return {"counts": _COUNT_SHARE, "mean": _MEAN_SHARE} | {
        f"gradient/{s}": rest for s in range(settings.steps)
    }


@dataclass(frozen=True)
class DescentRecipe:
    """The server: post-processing of releases only."""

    plan: Plan
    settings: DescentSettings
    facts: PublicFacts

    def begin(self) -> State:
        """Random item vectors from the run's seed, no biases."""
        m = self.facts.num_items
        d = self.settings.dimension
        V = (
            self.facts.streams.numpy("fast-dpmf-init").standard_normal((m, d))
            * self.settings.start_std
        )
        return {"V": V.astype(np.float32), "bias": np.zeros(m, np.float32), "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """Counts and mean first, then one question per step."""
        t = int(state["round"])
        m = self.facts.num_items
        if t == 0:
            half = _half_range(self.facts.value_range)
            counts = block("counts", "linear", rows=m, width=1)
            mean = block("mean", "linear", rows=1, width=1, radius=half)
            return Question(
                0,
                "noisy-descent/counts",
                {},
                (ReleaseSpec("counts", (counts,)), ReleaseSpec("mean", (mean,), half)),
            )
        if t > self.settings.steps:
            return None
        name = f"gradient/{t - 1}"
        gradient = block(name, "linear", rows=m, width=self.settings.dimension + 1)
        public = {name: state[name] for name in ("V", "bias", "mean")}
        return Question(t, "noisy-descent/gradient", public, (ReleaseSpec(name, (gradient,)),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Round 0: counts and mean. Then v_j += rate g_j / (count_j + ridge)."""
        t = int(state["round"])
        if t == 0:
            counts, mean = counts_and_mean(self.facts, answer)
            return {**state, "counts": counts, "mean": np.array(mean), "round": np.array(1)}
        name = f"gradient/{t - 1}"
        ridge = self.settings.item_ridge + answer.noise_std[name]
        step = (
            self.settings.rate
            * answer.values[name]
            / (np.asarray(state["counts"], np.float64) + ridge)[:, None]
        )
        V, bias = (np.asarray(state[key], np.float64) for key in ("V", "bias"))
        V = V + step[:, :-1]
        bias = bias + step[:, -1] * self.settings.biases
        return {
            **state,
            "V": V.astype(np.float32),
            "bias": bias.astype(np.float32),
            "round": np.array(t + 1),
        }

    def model(self, state: State) -> LocalStageModel:
        """V, b and the mean; a device does the rest."""
        mean = float(state["mean"]) if "mean" in state else sum(self.facts.value_range) / 2
        V = np.asarray(state["V"], np.float32)
        bias = np.asarray(state["bias"], np.float32)
        chosen = self.settings
        return LocalStageModel.of(
            V, bias, offset=mean, user_ridge=chosen.user_ridge, prior=chosen.prior
        )


def counts_and_mean(facts: PublicFacts, answer: Release) -> tuple[Float64s, float]:
    """(m,) noisy sums of 1/sqrt(n_k), not below 0, and the noisy mean of users' means, on the
    scale."""
    low, high = facts.value_range
    mean = (low + high) / 2 + float(answer.values["mean"][0, 0]) / facts.num_users
    return np.maximum(answer.values["counts"][:, 0], 0.0), float(np.clip(mean, low, high))


def client_steps(settings: DescentSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        "noisy-descent/counts": lambda question, mine: _report_counts(question, mine),
        "noisy-descent/gradient": lambda question, mine: report_gradient(
            question, mine, settings, task_weights=None
        ),
    }


def _report_counts(question: Question, mine: Interactions) -> Reports:
    """1/sqrt(n_k) on each item; and the user's mean above mid-scale, at most half of it."""
    n = np.diff(mine.user_ptr)
    half = _half_range(mine.value_range)
    totals = segments.sums(mine.user_ptr, np.asarray(mine.values, np.float64))
    means = np.where(n > 0, totals / np.maximum(n, 1) - sum(mine.value_range) / 2, 0.0)
    one = np.ones((mine.num_users, 1))
    blocks = [
        RealBlock(weights.uniform(mine, budget=1.0).values, one),
        RealBlock(clip_values(means, low=-half, high=half).values, one),
    ]
    return bounded(mine.user_ptr, mine.items, blocks, question.releases, scaling="clip")


def report_gradient(
    question: Question,
    mine: Interactions,
    settings: DescentSettings,
    *,
    task_weights: Float64s | None,
) -> Reports:
    """The rows e_kj (u_k, 1) of the user's items, minus half the gradient of its loss, scaled to
    norm 1; weighed before, if so asked."""
    V, bias = (np.asarray(question.public[name], np.float64) for name in ("V", "bias"))
    _, U, residuals = solved(
        mine, V, bias, float(question.public["mean"]), settings.user_ridge, prior=settings.prior
    )
    weighed = residuals if task_weights is None else task_weights[mine.items] * residuals
    return bounded(
        mine.user_ptr, mine.items, [RealBlock(weighed, settings.extended(U))], question.releases
    )


def _half_range(value_range: tuple[float, float]) -> float:
    return (value_range[1] - value_range[0]) / 2
