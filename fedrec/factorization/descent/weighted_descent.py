"""Task-weighted noisy gradient descent on item vectors: Ada-DPALS Alg. 2 (Krichene et al. 2023)
inside alternating minimisation, sound.

Item j is a task with parameters (v_j, b_j), and the features of its examples are (u_k, 1), u_k
solved by the device before every step (Alg. 3 l. 4, `local_stage`). A step of task j is against the
sum over its users of w_kj e_kj (u_k, 1); w falls with the count of the item (eq. 11), so that rare
items are heard above the noise. `noisy_descent` is the same with weights all alike, and lends its
other rounds.

Guarantee (user, add/remove): that of `noisy_descent`. The task weights omega are a function of
released counts; of step s a user sends the rows omega_j e_kj (u_k, 1), the whole scaled to norm
exactly 1, so that each release has sensitivity 1 whatever omega, u and e are, and the run is the
adaptive composition of Gaussian releases that its plan lists.

Where we leave the paper: l. 5 clips the sum over users, which bounds nothing per user: here each
user is scaled before the sum. That also spends its whole budget, which eq. 12 leaves partly unused,
and stands for the clip of single gradients. The noise is calibrated exactly. The step of task j is
divided by its weighted count omega_j n_j, its curvature up to a constant, as Thm 3.12 (b) has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.factorization import weights
from fedrec.factorization.descent import noisy_descent
from fedrec.factorization.descent.noisy_descent import DescentRecipe, DescentSettings
from fedrec.factorization.local_stage import LocalStageModel
from fedrec.federation.messages import ClientStep, Question, Release, Reports, State
from fedrec.privacy.calibration import Plan


@dataclass(frozen=True)
class WeightedDescent:
    """The server: noisy gradient descent, but for the weights of tasks.

    `exponent` is mu of n_j^-mu: 1/4 for convex losses (eq. 11)."""

    plain: DescentRecipe
    exponent: float

    @property
    def plan(self) -> Plan:
        """The plan of descent without weights, which releases the same."""
        return self.plain.plan

    def begin(self) -> State:
        """Random item vectors from the run's seed, no biases."""
        return self.plain.begin()

    def ask(self, state: State) -> Question | None:
        """Counts and mean first, then one question per step, which tells the weights."""
        question = self.plain.ask(state)
        if question is None or question.round == 0:
            return question
        return replace(
            question, step="dp-gd/gradient", public={**question.public, "weights": state["weights"]}
        )

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """omega from the counts; then (v_j, b_j) += rate g_j / (omega_j count_j + ridge)."""
        if question.round > 0:
            counts = np.asarray(state["counts"], np.float64)
            learned = self.plain.tell(
                {**state, "counts": np.asarray(state["weights"], np.float64) * counts},
                question,
                answer,
            )
            return {**learned, "counts": counts}
        learned = self.plain.tell(state, question, answer)
        omega = weights.tail_weights(
            np.asarray(learned["counts"], np.float64),
            noise_std=answer.noise_std["counts"],
            exponent=self.exponent,
        )
        return {**learned, "weights": omega}

    def model(self, state: State) -> LocalStageModel:
        """V, b and the mean; a device does the rest."""
        return self.plain.model(state)


def client_steps(settings: DescentSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        **noisy_descent.client_steps(settings),
        "dp-gd/gradient": lambda question, mine: _report_gradient(question, mine, settings),
    }


def _report_gradient(question: Question, mine: Interactions, settings: DescentSettings) -> Reports:
    omega = np.asarray(question.public["weights"], np.float64)
    return noisy_descent.report_gradient(question, mine, settings, task_weights=omega)
