"""A PyTorch module of one's own, trained by people's clipped gradients, which an aggregator sums
and noises: federated DP-SGD with whole users (McMahan et al. 2018), everybody in every round.

1. Release "counts": how often items are clicked, as of `dp_popularity`. Their logarithm is a part
   of every score, so that the module learns what popularity does not say.
2. Releases "gradient/1..T": sums over users of g / max(clip, ||g||) at the parameters of that round
   (`torch_modules.gradient`); then a step of FedAdam (Reddi et al. 2021, Alg. 2) on the sum times
   clip over the number of users, which is public.

Guarantee (user, add/remove): each user's report of a release has norm at most 1 whatever its
clicks, the parameters and the module are, so each release has sensitivity 1, and the run is the
adaptive composition of the Gaussian releases that its plan lists (`privacy.calibration`). What the
server does with them is post-processing. No amplification is claimed: nobody is sampled.

Noise is independent. Where everybody answers in every round, correlated noise has no advantage for
the sum of all gradients (`news.central_encoder` gives the reason).

The start, learning rate and rounds are those of whoever wrote the module: rounds share the budget,
so that twice as many have noise sqrt(2) times as large in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedrec.arrays import Float32s, Float64s
from fedrec.data.kinds import Kind
from fedrec.errors import DataError
from fedrec.factorization.default_clicks.client import report_counts
from fedrec.factorization.empirical_bayes import denoise_counts
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.later_items import public_directions
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, State
from fedrec.federation.reports import block
from fedrec.news.rounds import FedAdam, Moments, adam_step
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.registry import RecipeSpec

COUNTS = "torch/counts"
_COUNT_SHARE = 0.1
"""Of mu^2: popularity is most of what can be learned under much noise."""


class TorchSettings(BaseModel):
    """The table `[own]`.

    module: as `torch_modules.contract.found` knows it. digest: of its source; a run fills it in.
    options: of its constructor. clip: longest gradient of a person; the median of 200 planted
    people by docs/examples/torch_two_tower.py is .24. features: leading directions of what is
    public that the module is given. clicks: of a person, the latest, that are looked at.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: str = Field(
        description='the name of a PyTorch class, for example "towers:TwoTower" of the file that '
        "the environment variable FEDREC_TORCH_MODULES names (docs/torch.md)"
    )
    digest: str = Field("", pattern="^([0-9a-f]{64})?$")
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    rounds: int = Field(20, ge=1, le=1000)
    clip: float = Field(0.25, gt=0, le=1e6)
    learning_rate: float = Field(0.05, gt=0, le=1e6)
    tau: float = Field(1e-3, gt=0, le=1e6)
    features: int = Field(64, ge=0, le=512)
    clicks: int = Field(100, ge=2, le=10_000)

    def asked(self) -> dict[str, Any]:
        """Which module, as a released model names it."""
        return {
            "name": self.module,
            "digest": self.digest,
            "options": self.options,
            "most": self.clicks,
        }


@dataclass(frozen=True)
class TorchRecipe:
    """The server: post-processing of releases only. features: (m, f), public. start: (P,)."""

    plan: Plan
    facts: PublicFacts
    settings: TorchSettings
    features: Float32s
    start: Float32s

    def begin(self) -> State:
        """The module's public start; nothing is known of popularity."""
        x = self.start.astype(np.float64)
        zeros = Moments.like(x)
        return {
            "round": np.array(0),
            "counts": np.zeros(self.facts.num_items),
            "numbers": x,
            "first": zeros.first,
            "second": zeros.second,
        }

    def ask(self, state: State) -> Question | None:
        """The counts, then a gradient in each round."""
        from fedrec.torch_modules.gradient import STEP, in_rows

        t = int(state["round"])
        m = self.facts.num_items
        if t == 0:
            counts = block("counts", "linear", rows=m, width=1)
            return Question(0, COUNTS, {}, (ReleaseSpec("counts", (counts,)),))
        if t > self.settings.rounds:
            return None
        name = f"gradient/{t}"
        public = {
            "features": self.features,
            "popular": popularity(state),
            "numbers": in_rows(np.asarray(state["numbers"], np.float64), m),
        }
        asked = block(name, "linear", rows=1, width=len(self.start))
        return Question(t, STEP, public, (ReleaseSpec(name, (asked,)),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """The counts by empirical Bayes, or one step of FedAdam."""
        t = question.round
        if t == 0:
            counts = denoise_counts(
                answer.values["counts"][:, 0], std=answer.noise_std["counts"], features=None
            )
            return {**state, "round": np.array(1), "counts": counts}
        chosen = self.settings
        mean = answer.values[f"gradient/{t}"][0] * (chosen.clip / self.facts.num_users)
        x, m, v = (np.asarray(state[name], np.float64) for name in ("numbers", "first", "second"))
        rule = FedAdam(chosen.learning_rate, tau=chosen.tau)
        moved, moments = adam_step(x, -mean, Moments(m, v, t - 1), rule)
        return {
            **state,
            "round": np.array(t + 1),
            "numbers": moved,
            "first": moments.first,
            "second": moments.second,
        }

    def model(self, state: State) -> Any:
        """The `torch_modules.model.TorchModel` of a state."""
        from fedrec.torch_modules.model import TorchModel

        numbers = np.asarray(state["numbers"], np.float32)
        return TorchModel.of(self.settings.asked(), numbers, self.features, popularity(state))


def popularity(state: State) -> Float32s:
    """(m,) logarithm of counts, one more of each than were counted, less its mean."""
    told: Float64s = np.log1p(np.maximum(np.asarray(state["counts"], np.float64), 0.0))
    return np.asarray(told - told.mean(), np.float32)


def build(settings: TorchSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    from fedrec.torch_modules.contract import made, numbers_of

    features = np.zeros((facts.num_items, 0), np.float32)
    if facts.features is not None and settings.features:
        with suppress(DataError):  # nothing public tells one item from another
            features = public_directions(facts.features)[:, : settings.features].astype(np.float32)
    start = numbers_of(made(settings.module, settings.digest, features, settings.options))
    left = (1 - _COUNT_SHARE) / settings.rounds
    plan = facts.plan(
        {"counts": _COUNT_SHARE} | {f"gradient/{t}": left for t in range(1, settings.rounds + 1)}
    )
    recipe = TorchRecipe(plan, facts, settings, features, start)
    return Prepared(recipe, client_steps(settings, facts.kind), plan)


def client_steps(settings: TorchSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    from fedrec.torch_modules import gradient

    chosen = settings.asked()
    steps = gradient.client_steps(
        chosen["name"],
        chosen["digest"],
        chosen["options"],
        clip=settings.clip,
        most=settings.clicks,
    )
    return {COUNTS: report_counts, **steps}


def with_digest(content: dict[str, Any]) -> dict[str, Any]:
    """A scenario's tables with the digest of the module that is here."""
    own = content.get("own")
    if not isinstance(own, dict) or own.get("digest") or not isinstance(own.get("module"), str):
        return content
    from fedrec.torch_modules.contract import digest_of, found

    return {**content, "own": {**own, "digest": digest_of(found(own["module"]))}}


SPEC = RecipeSpec(
    name="torch",
    build=build,
    client_steps=client_steps,
    kinds=("clicks",),
    settings=TorchSettings,
    implied=with_digest,
)
