"""Noisy gradient descent on a linear item encoder with biases: alternating minimisation that is
related to AM-DPSGD (AM-SSP Alg. 1 with Alg. 6, Krichene et al. 2023; `am_dpsgd`).

The encoder is linear in public features: (v_j, b_j) = E' x_j, x_j the bags of item j, an entry of
its own and a constant. A device solves u_k once per outer step, and then sends for each of T
gradient steps the rows sum_j e_kj x_jp (u_k, 1) of the features p of its items: minus half the
gradient of its loss in E.

Guarantee (user, add/remove): that of `noisy_descent`, whose round 0 and accounting these are. A
user's whole gradient is scaled to norm exactly 1, whatever E, x and u are. Each release has
sensitivity 1, and the run is the adaptive composition of Gaussian releases that its plan lists.
What the server does with them is post-processing.

Where we leave the paper. l. 8 clips each example: a user of n_k examples then moves the sum by n_k
Gamma; here the user is scaled. l. 4 samples examples, which amplifies nothing for users. Sampling
users would, if nobody but a trusted sampler knew who took part; here the aggregator hears from whom
it hears, so everybody takes part in every step and every step is charged in full. The paper's
encoder, a bag of embeddings and a dense layer, is linear too: the same functions as one table E,
whose gradient is one vector a user beside one number a feature. Features of very few items cost
noise and have hardly anything to share: they are left out. Weights n_j^-1/4 (App. E) are left out
as well: they gained nothing on validation. The bias b_j and the user's own mean are those of
`least_squares`.

With `gradient_radius` it is Alg. 6 as printed, but for the batches: each example's gradient is
clipped to Gamma_g (l. 8), weighed by the n_j^-1/4 of App. E, and the step is plain (l. 9), with the
ridge of App. E on item vectors. App. E scales a user's weights to squares of a fixed sum, which
bounds statistics of different items. Gradients of different items share their parameters and add
up, so that here the weights themselves sum to 1: a user's report then has norm at most Gamma_g, and
what is released is that over Gamma_g. Each release has sensitivity 1 again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.descent import noisy_descent
from fedrec.factorization.descent.noisy_descent import DescentRecipe, DescentSettings
from fedrec.factorization.least_squares import LocalStageModel, solved
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics import segments
from fedrec.privacy.calibration import Plan
from fedrec_research.feature_rows import (
    FeatureSettings,
    padded_rows,
    rows_of_question,
    sorted_rows,
)

SCALED = "encoder-descent/gradient"
"""The step in which each user's gradient is scaled."""
EXAMPLES = "encoder-descent/examples"
"""The step in which each example is clipped, as printed."""
_DIVERGED = 1e4
"""Longer parameters are no model: item vectors of features of norm 1 have about norm 1, weights
begin near 1, and beyond the next steps overflow."""


@dataclass(frozen=True)
class EncoderSettings:
    """gradients: T, the steps between two solves of users. gradient_radius: Gamma_g of one example,
    as printed; 0 where users are scaled instead."""

    gradients: int
    features: FeatureSettings
    gradient_radius: float = 0.0


@dataclass(frozen=True)
class EncoderDescent:
    """The server: post-processing of releases only.

    `plain` asks round 0 and accounts for S T gradients; X is `rows` (m, P)."""

    plain: DescentRecipe
    settings: EncoderSettings
    rows: sparse.csr_matrix

    @property
    def plan(self) -> Plan:
        """Counts, mean and S T gradients."""
        return self.plain.plan

    def begin(self) -> State:
        """A random E of small vectors, from the run's seed, without biases."""
        P = self.rows.shape[1]
        d = self.plain.settings.dimension
        E = np.zeros((P, d + 1))
        E[:, :d] = (
            self.plain.facts.streams.numpy("encoder-descent-init").standard_normal((P, d))
            * self.plain.settings.start_std
        )
        table = self.rows @ E
        return {"E": E, "table": table, "solved_on": table, "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """Counts and mean first, then one question per gradient."""
        t = int(state["round"])
        if t == 0 or t > self.plain.settings.steps:
            return self.plain.ask(state)
        name = f"gradient/{t - 1}"
        X = self.rows
        gradient = block(name, "linear", rows=X.shape[1], width=self.plain.settings.dimension + 1)
        public = {key: state[key] for key in ("table", "solved_on", "mean")} | padded_rows(X)
        if self.settings.gradient_radius:
            step = EXAMPLES
            public = public | {"weights": state["weights"]}
        else:
            step = SCALED
        return Question(t, step, public, (ReleaseSpec(name, (gradient,)),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Counts and mean; then a step, and every T gradients users are solved anew."""
        t = int(state["round"])
        plain = self.plain.settings
        if t == 0:
            return self._counted(state, answer)
        E = np.asarray(state["E"], np.float64) + plain.rate * self._direction(state, answer, t - 1)
        E[:, -1] *= plain.biases
        require_bounded(t, plain.steps, E)
        table = self.rows @ E
        anchor = table if t % self.settings.gradients == 0 else state["solved_on"]
        return {**state, "E": E, "table": table, "solved_on": anchor, "round": np.array(t + 1)}

    def model(self, state: State) -> LocalStageModel:
        """Item vectors, biases and the mean; a device does the rest."""
        mean = float(state["mean"]) if "mean" in state else sum(self.plain.facts.value_range) / 2
        table = np.asarray(state["table"], np.float64)
        plain = self.plain.settings
        return LocalStageModel.of(
            table[:, :-1], table[:, -1], offset=mean, user_ridge=plain.user_ridge, prior=plain.prior
        )

    def _direction(self, state: State, answer: Release, s: int) -> Float64s:
        """(P, d + 1) g_p / (sum_j x_jp^2 count_j + ridge); as printed, Gamma_g g less the gradient
        of the ridge."""
        found = answer.values[f"gradient/{s}"]
        plain = self.plain.settings
        if self.settings.gradient_radius:
            pulled = self.rows.T @ np.asarray(state["table"], np.float64)
            return np.asarray(self.settings.gradient_radius * found - plain.item_ridge * pulled)
        counts = self.rows.power(2).T @ np.asarray(state["counts"], np.float64)
        curvature = counts + plain.item_ridge + answer.noise_std[f"gradient/{s}"]
        return np.asarray(found / curvature[:, None])

    def _counted(self, state: State, answer: Release) -> State:
        counts, mean = noisy_descent.counts_and_mean(self.plain.facts, answer)
        known = {"counts": counts, "mean": np.array(mean), "round": np.array(1)}
        weights = np.maximum(counts, 1.0) ** -0.25  # App. E, of what is released here
        return {**state, **known} | ({"weights": weights} if self.settings.gradient_radius else {})


def client_steps(
    settings: DescentSettings, gradient_radius: float = 0.0
) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives.

    Where examples are clipped, to `gradient_radius`, users answer no other gradient."""
    counted = noisy_descent.client_steps(settings)
    if gradient_radius:
        return {
            **counted,
            EXAMPLES: lambda question, mine: _report_examples(
                question, mine, settings, gradient_radius
            ),
        }
    return {
        **counted,
        SCALED: lambda question, mine: _report_gradient(question, mine, settings),
    }


def _report_gradient(question: Question, mine: Interactions, settings: DescentSettings) -> Reports:
    """(X' e)_p (u_k, 1) of every feature p of the user's items, scaled to norm 1."""
    residuals, extended = _residuals(question, mine, settings)
    return _reported(question, mine, residuals, extended, "exact")


def _report_examples(
    question: Question, mine: Interactions, settings: DescentSettings, radius: float
) -> Reports:
    """Reports in which each example is clipped, weights summing to 1 over the user's: norm at most
    1."""
    residuals, extended = _residuals(question, mine, settings)
    X = rows_of_question(question)
    sizes = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())[mine.items]
    sizes = sizes * np.sqrt(segments.row_squares(extended))[mine.users]
    cut = clipped(question, mine, residuals, sizes, radius)
    return _reported(question, mine, cut, extended, "clip")


def clipped(
    question: Question, mine: Interactions, residuals: Float64s, sizes: Float64s, radius: float
) -> Float64s:
    """e of each example, whose gradient has length |e| times `sizes`, cut to w Gamma_g over that
    and divided by Gamma_g (l. 8); w of App. E sums to 1 over the user's examples."""
    omega = np.asarray(question.public["weights"], np.float64)[mine.items]
    shares = omega / segments.sums(mine.user_ptr, omega)[mine.users]
    return shares * residuals / np.maximum(np.abs(residuals) * sizes, radius)


def require_bounded(step: int, steps: int, *parameters: Float64s) -> None:
    """Raise SettingsError where a number is huge or not finite."""
    if not all(np.abs(table).max() < _DIVERGED for table in parameters):
        raise SettingsError(
            f"the item encoder diverged at step {step} of {steps}",
            "Lower the learning rate or the ridge.",
        )


def _residuals(
    question: Question, mine: Interactions, settings: DescentSettings
) -> tuple[Float64s, Float64s]:
    """e of every example from the newest table, and (u_k, 1) solved on an older one."""
    public = question.public
    old = np.asarray(public["solved_on"], np.float64)
    new = np.asarray(public["table"], np.float64)
    mean = float(public["mean"])
    V = np.ascontiguousarray(old[:, :-1])
    means, U, _ = solved(mine, V, old[:, -1], mean, settings.user_ridge, prior=settings.prior)
    extended = settings.extended(U)
    residuals = (
        mine.values
        - mean
        - means[mine.users]
        - segments.row_products(extended[mine.users], new[mine.items])
    )
    return residuals, extended


def _reported(
    question: Question,
    mine: Interactions,
    residuals: Float64s,
    extended: Float64s,
    scaling: Literal["exact", "clip"],
) -> Reports:
    """The rows (X' e)_p (u_k, 1)."""
    gradient = sorted_rows(
        sparse.csr_matrix(
            (residuals, mine.items, mine.user_ptr), shape=(mine.num_users, mine.num_items)
        )
        @ rows_of_question(question)
    )
    ptr = gradient.indptr.astype(np.int64)
    features = gradient.indices.astype(np.int32)
    blocks = [RealBlock(gradient.data, extended)]
    return bounded(ptr, features, blocks, question.releases, scaling=scaling)
