"""Task-weighted noisy gradient descent on item vectors: Ada-DPALS Alg. 2 (Krichene et al. 2023)
inside alternating minimisation, sound.

Item j is a task with parameters (v_j, b_j), and the features of its examples are (u_k, 1), u_k
solved by the device before every step (Alg. 3 l. 4, `least_squares.LocalStageModel`). A step of
task j is against the sum over its users of w_kj e_kj (u_k, 1); w falls with the count of the item
(eq. 11), so that rare items are heard above the noise. `noisy_descent` is the same with weights all
alike, and lends its other rounds.

Guarantee (user, add/remove): that of `noisy_descent`. The task weights omega are a function of
released counts; of step s a user sends the rows omega_j e_kj (u_k, 1), the whole scaled to norm
exactly 1, so that each release has sensitivity 1 whatever omega, u and e are, and the run is the
adaptive composition of Gaussian releases that its plan lists.

Where we leave the paper: l. 5 clips the sum over users, which bounds nothing per user: here each
user is scaled before the sum. That also spends its whole budget, which eq. 12 leaves partly unused,
and stands for the clip of single gradients. The noise is calibrated exactly. The step of task j is
divided by its weighted count omega_j n_j, its curvature up to a constant, as Thm 3.12 (b) has it.

Descent on clicks: `clicks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import sparse

from fedrec.data.interactions import Interactions
from fedrec.data.kinds import KINDS, Kind
from fedrec.factorization import empirical_bayes
from fedrec.factorization.descent import noisy_descent
from fedrec.factorization.descent.noisy_descent import DescentRecipe, DescentSettings
from fedrec.factorization.least_squares import LocalStageModel
from fedrec.federation.messages import ClientStep, Question, Release, Reports, State
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.recipes.descent_choices import KEYS, descent
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario
from fedrec_research.dp_gd import clicks
from fedrec_research.dp_gd.choices import click_settings, descent_of_clicks, require_clicks


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
        omega = empirical_bayes.tail_weights(
            np.asarray(learned["counts"], np.float64),
            noise_std=answer.noise_std["counts"],
            exponent=self.exponent,
        )
        return {**learned, "weights": omega}

    def model(self, state: State) -> LocalStageModel:
        """V, b and the mean; a device does the rest."""
        return self.plain.model(state)


def weighted_steps(settings: DescentSettings) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        **noisy_descent.client_steps(settings),
        "dp-gd/gradient": lambda question, mine: _report_gradient(question, mine, settings),
    }


def _report_gradient(question: Question, mine: Interactions, settings: DescentSettings) -> Reports:
    omega = np.asarray(question.public["weights"], np.float64)
    return noisy_descent.report_gradient(question, mine, settings, task_weights=omega)


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    require_clicks(scenario, facts.kind)
    if not facts.rated:
        of_clicks = click_settings(scenario)
        rows = sparse.csr_matrix(sparse.identity(facts.num_items))
        return descent_of_clicks(of_clicks, facts, rows)
    settings = settings_of(scenario)
    recipe = WeightedDescent(descent(settings, facts), scenario.model.weight_exponent)
    return Prepared(recipe, weighted_steps(settings), recipe.plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    if KINDS[kind].rated:
        return weighted_steps(settings_of(scenario))
    return clicks.client_steps(click_settings(scenario))


def settings_of(scenario: RecipeScenario) -> noisy_descent.DescentSettings:
    """The scenario's values, as in `recipes.noisy_descent.settings_of`.

    Without biases, the paper's model (`ada-dpgd`), vectors alone must learn what popular items
    have in common: in many steps, and with users who follow them little. Best of 12 settings on
    validation ratings of MovieLens 100K and planted ones, and of four on those of MovieLens 1M, at
    epsilon 1, 5 and 20."""
    chosen = scenario.model
    epsilon = scenario.privacy.epsilon
    if not chosen.biases:
        return noisy_descent.DescentSettings(
            dimension=chosen.dimension or 2,
            steps=chosen.steps or 24,
            rate=chosen.learning_rate or 1.5,
            user_ridge=chosen.user_ridge or 20.0,
            item_ridge=chosen.item_ridge or 10.0,
            start_std=1.0,
            biases=False,
        )
    return noisy_descent.DescentSettings(
        dimension=chosen.dimension or (1 if epsilon < 3 else 2),
        steps=chosen.steps or (6 if epsilon < 7 else 12 if epsilon < 15 else 24),
        rate=chosen.learning_rate or (0.7 if epsilon < 15 else 0.5),
        user_ridge=chosen.user_ridge or 2.0,
        item_ridge=chosen.item_ridge or (60.0 if epsilon < 0.75 else 30.0 if epsilon < 3 else 10.0),
        start_std=0.05,
    )


SPEC = RecipeSpec(
    name="dp-gd",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    read=whole_scenario,
    keys=KEYS | {"biases", "user_radius", "weight_exponent"},
)
