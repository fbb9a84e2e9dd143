"""Fast DP matrix factorisation as published (Liu, Wang, Smola 2015, Alg. 1 and 2): item vectors
from a posterior that a Langevin chain samples at one curator; see
`factorization.sampling.posterior`.

The claim of Theorem 1 needs an exact sample, which no finite chain gives: it is printed as "not
established", and ledgers count the release as infinite. Personal epsilons are Theorem 2's weights
a_k = epsilon_k / epsilon, under the same condition. `noisy-descent` is the established sibling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedrec.arrays import Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.local_stage import LocalStageModel
from fedrec.factorization.sampling.posterior import NOTE, PosteriorSettings, sample
from fedrec.federation.messages import BlockSpec, ClientStep, Question, Release, ReleaseSpec, State
from fedrec.federation.personal import own_epsilons
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan, PlannedRelease
from fedrec.randomness import Streams, SystemStreams
from fedrec.registry import RecipeSpec

_STEP = 2.0**-24
"""Of the grid that V is released on."""


class DpmfSettings(BaseModel):
    """[own] of `recipe = "dpmf"`. Zero chooses by epsilon what was best for MovieLens 1M on
    validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dimension: int = Field(16, ge=1, le=512, description="K; 16 in the paper's Figure 5")
    passes: int = Field(40, ge=1, le=10_000, description="passes over all ratings")
    most_ratings: int = Field(100, ge=1, description="tau: ratings that a user keeps, drawn")
    weight_limit: float = Field(1.0, gt=0, description="rho: the most that one rating weighs")
    kappa: float = Field(1.0, gt=0, description="how far predictions may leave the scale")
    conversion: Literal["printed", "add/remove"] = Field(
        "printed",
        description="printed: density exp(-epsilon F / 4B) of Alg. 1; add/remove: "
        "exp(-epsilon F / B), which an exact sample of it allows for one user more or less",
    )
    prior_std: float = Field(0.0, ge=0, description="of entries of U and V; 0 = chosen by epsilon")
    ridge: float = Field(1.0, ge=0, description="what is added to the prior's lambda")
    rate: float = Field(0.02, gt=0, description="eta of the first pass")
    decay: float = Field(0.0, ge=0, description="gamma: eta / (1 + gamma t) in pass t")
    forgets: float = Field(
        0.05, gt=0, description="the largest 2 lambda eta; see factorization.sampling.posterior"
    )
    user_ridge: float = Field(3.0, gt=0, description="lambda of eq. 5, on devices")

    def chain(self, epsilon: float) -> PosteriorSettings:
        """The sampler's settings."""
        content = self.model_dump()
        content["prior_std"] = self.prior_std or (0.3 if epsilon < 100 else 1.0)
        return PosteriorSettings(**content)


@dataclass(frozen=True)
class SampleRecipe:
    """The server's part: one question, which the curator answers with V."""

    plan: Plan
    settings: PosteriorSettings
    facts: PublicFacts

    def begin(self) -> State:
        """Nothing is known: all items are alike."""
        zeros = np.zeros((self.facts.num_items, self.settings.dimension), np.float32)
        return {"V": zeros, "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """The sample, once."""
        if int(state["round"]):
            return None
        m = self.facts.num_items
        V = BlockSpec("V", "linear", m, self.settings.dimension, _STEP, 1.0)
        return Question(0, "dpmf/sample", {}, (ReleaseSpec("sample", (V,)),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """V as it was sampled."""
        return {"V": answer.values["V"].astype(np.float32), "round": np.array(1)}

    def model(self, state: State) -> LocalStageModel:
        """V, which devices solve their own vectors beside (eq. 5)."""
        V = np.asarray(state["V"], np.float32)
        return LocalStageModel.of(
            V,
            np.zeros(len(V)),
            offset=sum(self.facts.value_range) / 2,
            user_ridge=self.settings.user_ridge,
        )


def build(settings: DpmfSettings, facts: RecipeFacts) -> Prepared:
    """Raises SettingsError where three aggregators are to sum."""
    if facts.three is not None:
        raise SettingsError(
            'recipe = "dpmf" sums no reports: one curator holds all ratings',
            'Leave privacy.aggregation out, or use recipe = "noisy-descent".',
        )
    promised = facts.guarantee
    if promised.private:
        sibling = "established sibling: noisy-descent"
        note = "; ".join(filter(None, (NOTE, sibling, promised.note)))
        promised = replace(promised, established=False, note=note)
    plan = Plan(promised, (PlannedRelease("sample", 1.0, math.inf),))
    chosen = settings.chain(promised.epsilon)
    return Prepared(
        SampleRecipe(plan, chosen, facts),
        client_steps(settings, "ratings"),
        plan,
        curated=partial(_sampled, chosen, facts),
    )


def _sampled(
    settings: PosteriorSettings,
    facts: RecipeFacts,
    question: Question,
    ratings: Interactions,
    noise: Streams | SystemStreams,
) -> Sequence[Int64s]:
    """V after the chain's last pass, on its grid."""
    epsilon = facts.guarantee.epsilon
    limits = facts.limits
    shares = np.minimum(own_epsilons(ratings, limits) / epsilon, 1.0) if limits else 1.0
    *_, last = sample(
        ratings, settings, epsilon=epsilon, streams=facts.streams, noise=noise, shares=shares
    )
    vectors = np.asarray(last.model.item_vectors[:, :-2], np.float64)
    return (np.rint(vectors / _STEP).astype(np.int64),)


def client_steps(settings: DpmfSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """A step that refuses: no device can answer with anything but its ratings."""

    def refuse(question: Question, mine: Interactions) -> NoReturn:
        raise SettingsError(
            'recipe = "dpmf" samples where all ratings lie: devices have nothing to report',
            'Use fedrec simulate without --runtime, or recipe = "noisy-descent".',
        )

    return {"dpmf/sample": refuse}


SPEC = RecipeSpec(
    name="dpmf",
    build=build,
    client_steps=client_steps,
    kinds=("ratings",),
    models={"fast-dpmf": LocalStageModel},
    settings=DpmfSettings,
    curated=True,
)
