"""DP-SGD of a plain recommender at one trusted curator, whose gradients Opacus takes; see
`fedrec_research.dp_sgd.gradients`.

Everybody takes part in every step, and each step is one Gaussian release of radius 1 that ledgers
count as any other: exact, and true whoever knows who was there. Sampling users in secret would
amplify privacy by as much as it thins the signal; it is left to `dp_sgd.sampled`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError
from fedrec.factorization.am_ssp.client import PublishedModel
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import LocalStageModel
from fedrec.federation.messages import BlockSpec, ClientStep, Question, Release, ReleaseSpec, State
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Streams, SystemStreams
from fedrec.registry import RecipeSpec
from fedrec_research.dp_gd.clicks import CLICK_WEIGHT

_GRID = 2.0**-12
"""Of coefficients and of vectors: gradients are cut to multiples of its square."""


class DpSgdSettings(BaseModel):
    """[own] of `recipe = "dp-sgd"`; 0 takes what was best for MovieLens 1M on validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dimension: int = Field(2, ge=1, le=512, description="length of item vectors")
    steps: int = Field(0, ge=0, le=10_000, description="30, or 60 from epsilon 7 on")
    rate: float = Field(0.05, gt=0, description="of Adam")
    user_ridge: float = Field(2.0, gt=0, description="of a user's own vector, on devices")
    start_std: float = Field(0.03, gt=0, description="of the random start")

    def steps_at(self, epsilon: float) -> int:
        """How many steps a training takes."""
        return self.steps or (30 if epsilon < 7 else 60)


@dataclass(frozen=True)
class SgdRecipe:
    """The server: Adam (Kingma, Ba 2015) on noised sums of clipped gradients."""

    plan: Plan
    settings: DpSgdSettings
    facts: PublicFacts

    def begin(self) -> State:
        """Random item vectors from the run's seed; of ratings with a last column of biases, 0."""
        shape = (self.facts.num_items, self.settings.dimension)
        table = self.facts.streams.numpy("dp-sgd-init").standard_normal(shape)
        table *= self.settings.start_std
        if self.facts.rated:
            table = np.column_stack([table, np.zeros(len(table))])
        zeros = np.zeros_like(table)
        return {"table": table, "first": zeros, "second": zeros, "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """One question a step."""
        t = int(state["round"])
        if t >= len(self.plan.releases):
            return None
        m, width = state["table"].shape
        gradient = BlockSpec(f"step/{t}", "linear", m, width, _GRID, _GRID)
        release = ReleaseSpec(f"step/{t}", (gradient,))
        return Question(t, "dp-sgd/step", {"table": state["table"]}, (release,))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Adam's step on the mean gradient."""
        t = int(state["round"]) + 1
        gradient = answer.values[f"step/{t - 1}"] / self.facts.num_users
        first = 0.9 * np.asarray(state["first"], np.float64) + 0.1 * gradient
        second = 0.999 * np.asarray(state["second"], np.float64) + 0.001 * gradient**2
        size = np.sqrt(second / (1 - 0.999**t)) + 1e-8
        table = np.asarray(state["table"], np.float64)
        table = table - self.settings.rate * first / (1 - 0.9**t) / size
        return {"table": table, "first": first, "second": second, "round": np.array(t)}

    def model(self, state: State) -> LocalStageModel | PublishedModel:
        """The table, beside which devices solve their own vectors."""
        table = np.asarray(state["table"], np.float32)
        ridge = self.settings.user_ridge
        if not self.facts.rated:
            return PublishedModel(table, 0.0, ridge, CLICK_WEIGHT)
        offset = sum(self.facts.value_range) / 2
        return LocalStageModel.of(table[:, :-1], table[:, -1], offset=offset, user_ridge=ridge)


def build(settings: DpSgdSettings, facts: RecipeFacts) -> Prepared:
    """Raises SettingsError among three aggregators, and with personal limits."""
    if facts.three is not None or facts.limits:
        raise SettingsError(
            'recipe = "dp-sgd" has one curator, and one epsilon for all',
            "Leave privacy.aggregation and privacy.personal_epsilons out.",
        )
    steps = settings.steps_at(facts.guarantee.epsilon)
    plan = facts.plan({f"step/{t}": 1 / steps for t in range(steps)})
    recipe = SgdRecipe(plan, settings, facts)
    return Prepared(
        recipe,
        client_steps(settings, facts.kind),
        plan,
        curated=partial(_summed, settings, facts),
    )


def _summed(
    settings: DpSgdSettings,
    facts: RecipeFacts,
    question: Question,
    data: Interactions,
    noise: Streams | SystemStreams,
) -> Sequence[Int64s]:
    """Clipped gradients at the question's table, added up; noise is the release's."""
    from fedrec_research.dp_sgd.gradients import summed_gradients  # torch and Opacus

    table: Float64s = np.asarray(question.public["table"], np.float64)
    total = summed_gradients(
        data,
        table,
        user_ridge=settings.user_ridge,
        offset=sum(facts.value_range) / 2,
        click_weight=CLICK_WEIGHT,
        step=question.blocks[0].step,
    )
    return (total,)


def client_steps(settings: DpSgdSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """A step that refuses: the curator takes gradients."""

    def refuse(question: Question, mine: Interactions) -> NoReturn:
        raise SettingsError(
            'recipe = "dp-sgd" is trained where all data lies: devices have nothing to report',
            'Use fedrec simulate without --runtime, or recipe = "noisy-descent" or "dp-gd".',
        )

    return {"dp-sgd/step": refuse}


SPEC = RecipeSpec(
    name="dp-sgd",
    build=build,
    client_steps=client_steps,
    settings=DpSgdSettings,
    curated=True,
)
