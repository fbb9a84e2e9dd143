"""Fast DP matrix factorisation as published: item vectors from one sample of a scaled posterior
(Liu, Wang, Smola 2015, Alg. 1).

The density is exp(-c F(U, V)), F = sum_kj w_k min((r_kj - u_k.v_j)^2, L) + lambda (|U|^2 + |V|^2),
L = (range + kappa)^2. A chain of Langevin passes (`blocked_sgd`) is run towards it, V is
released, users solve for themselves (eq. 5, `least_squares.LocalStageModel`).

What holds (user, add/remove), **for an exact sample of the density and for nothing less**. A user
keeps tau ratings at most and its weight is w_k = a_k min(rho, tau / m_k) on its m_k kept ratings,
a_k in [0, 1]: its loss lies in [0, B_k], B_k = a_k tau L. Integrating its u_k out multiplies the
density of V by Z_k(V) times a constant, Z_k(V) in [exp(-c B_k), 1]; so with the user and without it
the densities of V differ by the factor Z_k(V) / E[Z_k], E over V without the user, which lies in
[exp(-c B_k), exp(c B_k)]. Hence c = epsilon / (tau L) is epsilon-DP, and a user who asked for a_k
has a_k epsilon (Thm 2). The paper takes c = epsilon / (4 B), and epsilon B_k / (2 B) in Thm 2:
sound too, and 4 times as hot as this release needs; it stays as `conversion="printed"`.

A finite chain is no exact sample, and its distance from one cannot be computed: every guarantee
here says "not established", and its price is infinite in every ledger. The
established sibling is `descent.noisy_descent`: the same iteration with a proof.

Where we leave the paper: B is tau L, public (Alg. 1 l. 1 computes it from the users' counts). The
loss of a rating is capped at L, which equals F on the paper's sublevel set; Alg. 1 l. 5-6 samples
again until all n m predictions lie in that set, which never ends. Drift and noise are those of
exp(-c F): eq. 4 has half the noise and samples exp(-2 c F). No temperature below 1. Ratings are
centred by each user's own mean, on the device, in place of biases. Reweighting (Sec. 6.5) and
trimming together, as printed there.

Personal epsilons are Theorem 2's weights a_k = epsilon_k / epsilon, under the same condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedrec.arrays import Float64s, Int64s
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError
from fedrec.factorization.example_choice import uniform_choice
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import LocalStageModel, own_means
from fedrec.federation.messages import BlockSpec, ClientStep, Question, Release, ReleaseSpec, State
from fedrec.federation.releases import own_epsilons
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan, PlannedRelease
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams
from fedrec.registry import RecipeSpec
from fedrec_research.fast_dpmf.blocked_sgd import Diffusion, Pass, Rows, blocks_of, descend, settle

Conversion = Literal["add/remove", "printed"]

NOTE = "assumes an exact posterior sample, which no finite chain gives"
_STEP = 2.0**-24
"""Of the grid that V is released on."""


@dataclass(frozen=True)
class PosteriorSettings:
    """tau is `most_ratings`, rho `weight_limit`. `prior_std`: of an entry of U and V where data say
    nothing; `ridge` adds to its lambda.

    `rate` eta of a pass falls as eta / (1 + decay t). forgets: the largest 2 lambda eta; where eta
    is larger, what a pass learned is noise again at its end, and the chain stays at its prior.
    `conversion`: see the module.
    """

    dimension: int = 16
    passes: int = 60
    most_ratings: int = 100
    weight_limit: float = 1.0
    kappa: float = 1.0
    prior_std: float = 0.5
    ridge: float = 1.0
    rate: float = 0.005
    decay: float = 0.05
    user_ridge: float = 3.0
    stripes: int = 8
    forgets: float = math.inf
    conversion: Conversion = "add/remove"


@dataclass(frozen=True)
class Scaling:
    """What turns a budget into a density.

    `cap` is sqrt L, `loss_bound` B, `temperature` 1 / c, `ridge` lambda."""

    cap: float
    loss_bound: float
    temperature: float
    ridge: float

    @staticmethod
    def of(
        settings: PosteriorSettings, epsilon: float, value_range: tuple[float, float]
    ) -> Scaling:
        """From public numbers alone."""
        cap = value_range[1] - value_range[0] + settings.kappa
        bound = settings.most_ratings * cap**2
        temperature = (4 if settings.conversion == "printed" else 1) * bound / epsilon
        return Scaling(
            cap, bound, temperature, settings.ridge + temperature / (2 * settings.prior_std**2)
        )


def guarantee_for(epsilon: float, delta: float) -> Guarantee:
    """epsilon as a claim.

    The theorem has no delta; a guarantee object needs one, and any will do."""
    return Guarantee(epsilon, delta, established=False, note=NOTE)


def user_weights(
    ratings: Interactions, settings: PosteriorSettings, shares: Float64s | float = 1.0
) -> Float64s:
    """(n_users,) w_k = a_k min(rho, tau / m_k) of Thm 2; shares: a_k in [0, 1], (n_users,) or one
    for all."""
    m = np.minimum(np.diff(ratings.user_ptr), settings.most_ratings)
    whole = np.minimum(settings.weight_limit, settings.most_ratings / np.maximum(m, 1))
    return np.asarray(shares * whole, np.float64)


@dataclass(frozen=True)
class Sample:
    """After a pass: the model of V as it stands.

    Only the last one of a chain may leave, and only once."""

    number: int
    model: LocalStageModel


def sample(
    ratings: Interactions,
    settings: PosteriorSettings,
    *,
    epsilon: float,
    streams: Streams,
    noise: Streams | SystemStreams | None = None,
    shares: Float64s | float = 1.0,
) -> Iterator[Sample]:
    """Run the chain, yielding after every pass. Epsilon inf is plain regularised SGD, and no
    privacy.

    streams: of the start; noise: of trimming and of the chain, None for the same. shares: as in
    `user_weights`. Every yield but the last is for watching (RMSE against time): releasing several
    states costs several times.
    """
    rng = streams.numpy("posterior-init")
    noise = noise or streams
    scaling = Scaling.of(settings, epsilon, ratings.value_range)
    # Alg. 1 l. 2: at most tau ratings of each user, drawn uniformly
    some = uniform_choice(ratings, limit=settings.most_ratings, key=noise.key("posterior-trim"))
    kept = ratings.select(some)
    offset = sum(ratings.value_range) / 2
    values = np.asarray(kept.values, np.float64) - offset
    values -= own_means(kept, values)[kept.users]
    blocks = blocks_of(kept, values.astype(np.float32), stripes=settings.stripes)
    start = min(settings.prior_std, 0.1)
    U, V = (
        (start * rng.standard_normal((rows, settings.dimension))).astype(np.float32)
        for rows in (ratings.num_users, ratings.num_items)
    )
    # a common direction for item biases to grow in: a start, free to move
    U[:, 0] += settings.prior_std
    rows = Rows.of(U, V, blocks)
    weights = user_weights(ratings, settings, shares)
    key = int.from_bytes(noise.key("posterior-noise")[:7], "little")
    diffusion = Diffusion(
        scaling.ridge, scaling.temperature if math.isfinite(epsilon) else 0.0, key
    )
    largest = min(settings.rate, settings.forgets / (2 * scaling.ridge))
    for t in range(settings.passes):
        rate = largest / (1 + settings.decay * t)
        descend(
            rows, blocks, Pass(2 * rate, cap=scaling.cap, weights=weights, time=rate), diffusion
        )
        settle(rows, diffusion)
        vectors = rows.item_vectors(blocks)
        yield Sample(
            t + 1,
            LocalStageModel.of(
                vectors, np.zeros(len(vectors)), offset=offset, user_ridge=settings.user_ridge
            ),
        )


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
        0.05, gt=0, description="the largest 2 lambda eta; see `PosteriorSettings`"
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
    settings=DpmfSettings,
    curated=True,
)
