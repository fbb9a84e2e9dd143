"""DP-popularity: one release of item counts; the simplest private list, the same for everybody but
for what one has clicked already.

Guarantee (user, add/remove): a device weighs each of its n items by 1 / sqrt(n), so that its report
has norm 1 whatever its data (`default_clicks.client.report_counts`); the one release therefore has
sensitivity 1, and gets the whole budget.

The recipe has no settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrec.data.kinds import Kind
from fedrec.factorization.default_clicks import client as clicks_client
from fedrec.factorization.default_clicks.model import ClickModel
from fedrec.factorization.empirical_bayes import denoise_counts
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, State
from fedrec.federation.reports import block
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.registry import NoSettings, RecipeSpec

SHARES = {"counts": 1.0}
"""Of mu^2."""
CLIENT_STEPS: Mapping[str, ClientStep] = {"popularity/counts": clicks_client.report_counts}


@dataclass(frozen=True)
class PopularityRecipe:
    """The server: post-processing of the release only."""

    plan: Plan
    facts: PublicFacts

    def begin(self) -> State:
        """Nothing is known."""
        return {"round": np.array(0), "counts": np.zeros(self.facts.num_items)}

    def ask(self, state: State) -> Question | None:
        """Asks for the counts, once."""
        if int(state["round"]):
            return None
        counts = block("counts", "linear", rows=self.facts.num_items, width=1)
        return Question(0, "popularity/counts", {}, (ReleaseSpec("counts", (counts,)),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Counts by empirical Bayes, in units where a user weighs 1 / sqrt(n_u) on each of its
        items."""
        counts = denoise_counts(
            answer.values["counts"][:, 0], std=answer.noise_std["counts"], features=None
        )
        return {"round": np.array(question.round + 1), "counts": counts}

    def model(self, state: State) -> ClickModel:
        """The model of clicks without vectors: nobody has a vector of its own, and is served by
        counts."""
        return ClickModel(
            np.zeros((self.facts.num_items, 1), np.float32),
            np.asarray(state["counts"], np.float64),
            1.0,
            1.0,
        )


def build(settings: NoSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    plan = facts.plan(SHARES)
    return Prepared(PopularityRecipe(plan, facts), CLIENT_STEPS, plan)


def client_steps(settings: NoSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return CLIENT_STEPS


SPEC = RecipeSpec(
    name="dp-popularity",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    kinds=("clicks",),
)
