"""SSP for convex losses (AM-SSP Alg. 7, Krichene et al. 2024), for clicks: quadratics of the loss,
recomputed and noised once a step.

A release holds a quadratic of the loss around the current item vectors, and the server minimises
it. Alg. 7 is written for examples; with clicks most of the loss is on items that nobody clicked.
What is public and what is charged:

    counts, tastes   the first two rounds of the default recipe: V starts from what users click
                     together, not at random
    convex/t         for every item the sum over clicks of w g' u, w = 1 / sqrt(n_u); for all else
                     the sums of u and u u' over users

With f's quadratic at the public centre c_j = b_j + v_j.mean and the slope and curvature f', f'' of
a normal population, the gradient of all that is not a click is, per user, f'_j mean + f''_j
covariance v_j: two public moments serve all items, and no zero is ever sampled. Guarantee (user,
add/remove): each release has sensitivity 1 (`convex_ssp.client`, with the proof), all else is
post-processing, and the composition of the plan's releases is exact.

Where we leave Alg. 7: T steps are charged by GDP, not by sqrt(8 T log 1/delta) / epsilon; a user's
weights use the budget exactly; H_j is not released. It is the mean Gramian times the curvature of
the item, read off counts and the normal population: at d = 24 an H_j has 300 numbers, which at
useful epsilons are noise. For the plain likelihood (click_weight 0) the clicks' part of H_j is 0
anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float32s, Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.factorization.default_clicks import recipe as clicks
from fedrec.factorization.default_clicks import settings as click_settings
from fedrec.factorization.default_clicks.recipe import ClickRecipe
from fedrec.factorization.default_clicks.settings import ClickSettings
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, State
from fedrec.federation.reports import block
from fedrec.numerics.segments import unpack
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario
from fedrec_research.convex_ssp import client as convex_client
from fedrec_research.convex_ssp.client import (
    LOSSES,
    POPULATION,
    Catalogue,
    Logistic,
    Loss,
    Quadratic,
)

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class ConvexSettings:
    """Public choices. start: how counts and tastes are made; its steps are not taken, their budget
    goes to ours, equally.

    user_radius: Gamma_u. item_ridge: in units of the largest slope, 1 + alpha. All clicks of a user
    weigh alike.
    """

    loss: Loss
    start: ClickSettings
    steps: int
    user_ridge: float
    item_ridge: float
    user_radius: float

    @property
    def width(self) -> int:
        """d."""
        return self.start.width

    @property
    def shares(self) -> Mapping[str, float]:
        """Shares of mu^2."""
        rest = 1 - self.start.counts - self.start.tastes
        return {"counts": self.start.counts, "tastes": self.start.tastes} | {
            f"convex/{t}": rest / self.steps for t in range(self.steps)
        }


@dataclass(frozen=True)
class Population:
    """Mean (d,) and covariance (d, d) of user vectors, from a release; zero before the first."""

    mean: Float64s
    covariance: Float64s

    @property
    def second(self) -> Float64s:
        """E u u'."""
        return np.asarray(self.covariance + np.outer(self.mean, self.mean), np.float64)

    def scores(self, V: Float64s, intercepts: Float64s) -> tuple[Float64s, Float64s]:
        """(m,) mean and std of the scores of each item."""
        variance = np.einsum("jd,de,je->j", V, self.covariance, V)
        return intercepts + V @ self.mean, np.sqrt(np.maximum(variance, 0.0))


@dataclass(frozen=True)
class ConvexRecipe:
    """The server: post-processing of releases only."""

    plan: Plan
    settings: ConvexSettings
    facts: PublicFacts

    def begin(self) -> State:
        """Nothing is known."""
        return self._start.begin()

    def ask(self, state: State) -> Question | None:
        """Counts, tastes, then one question per step."""
        t = int(state["round"])
        if t < 2:
            return self._start.ask(state)
        if t >= 2 + self.settings.steps:
            return None
        numbers = {"ridge": self.settings.user_ridge, "radius": self.settings.user_radius}
        public = self._catalogue(state) | {key: np.array(number) for key, number in numbers.items()}
        moments = block("population", "outer", rows=1, width=self.settings.width + 1)
        slopes = block("slopes", "linear", rows=self.facts.num_items, width=self.settings.width)
        return Question(
            t, "convex/step", public, (ReleaseSpec(f"convex/{t - 2}", (moments, slopes)),)
        )

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Learn from a release."""
        if question.round == 0:
            told = self._start.tell(state, question, answer)
            return {**told, "intercepts": self.settings.loss.intercepts(self._rates(told))}
        if question.round == 1:
            d = self.settings.width
            return {
                **self._start.tell(state, question, answer),
                "mean": np.zeros(d),
                "covariance": np.zeros((d, d)),
            }
        return {**state, **self._step(state, answer), "round": np.array(question.round + 1)}

    def model(self, state: State) -> ConvexModel:
        """The model after any round: popularity as soon as there are counts."""
        m = self.facts.num_items
        d = self.settings.width
        nothing: Arrays = {
            "V": np.zeros((m, d), np.float32),
            "intercepts": np.zeros(m),
            "mean": np.zeros(d),
            "covariance": np.zeros((d, d)),
        }
        public = self._catalogue({**nothing, **state})
        return ConvexModel(
            np.asarray(public["V"], np.float32),
            _floats(public, "intercepts"),
            Catalogue(_floats(public, "base"), _floats(public, "pull")),
            self.settings.loss,
            self.settings.user_ridge,
        )

    @property
    def _start(self) -> ClickRecipe:
        return ClickRecipe(self.plan, self.settings.start, self.facts)

    def _rates(self, state: State) -> Float64s:
        """Who clicks an item, of all users: counts weigh a user 1 / sqrt(n_u), so that their sum is
        that of all sqrt(n_u)."""
        counts = _floats(state, "counts")
        n = self.facts.num_users
        # noise makes rates negative or above 1; the loss needs their logits
        return np.clip(counts * float(counts.sum()) / n**2, 1e-7, 0.5)

    def _catalogue(self, state: State) -> Arrays:
        """V, b, and the sum of f over all items as a quadratic in u: pull.u + u' base u / 2 (App.
        D, eq. 10, of the user's side)."""
        V = _floats(state, "V")
        intercepts = _floats(state, "intercepts")
        people = Population(_floats(state, "mean"), _floats(state, "covariance"))
        slope, curvature = self.settings.loss.everywhere(*people.scores(V, intercepts))
        base = (V * curvature[:, None]).T @ V
        pull = V.T @ (slope - curvature * (V @ people.mean))
        return {"V": np.asarray(state["V"]), "intercepts": intercepts, "base": base, "pull": pull}

    def _step(self, state: State, answer: Release) -> Arrays:
        """Alg. 7 l. 6-10 in closed form: v_j <- v_j - (H_j + ridge I)^-1 (gradient + ridge v_j).

        The clicks of item j weigh weight_j in all, which stands for rate_j of the users: the rest
        of the loss counts weight_j / rate_j. A click's mean score is c + tau^2 where the loss tilts
        a normal population by e^s.
        """
        chosen = self.settings
        V = _floats(state, "V")
        intercepts = _floats(state, "intercepts")
        people = self._population(answer)
        limit = 1 + chosen.loss.click_weight
        weight = _floats(state, "counts")
        centre, spread = people.scores(V, intercepts)
        slope, curvature = chosen.loss.everywhere(centre, spread)
        _, bend = chosen.loss.clicked(centre + spread**2)
        others = weight / self._rates(state)
        ridge = chosen.item_ridge * limit
        reported = answer.values["slopes"] * (
            limit * chosen.user_radius / math.sqrt(1 - POPULATION)
        )
        gradient = (
            reported
            + others[:, None]
            * (slope[:, None] * people.mean + curvature[:, None] * (V @ people.covariance))
            + ridge * V
        )
        values, E = np.linalg.eigh(people.second)
        moved = (
            V
            - (gradient @ E / ((weight * bend + others * curvature)[:, None] * values + ridge))
            @ E.T
        )
        return {"V": moved.astype(np.float32), "mean": people.mean, "covariance": people.covariance}

    def _population(self, answer: Release) -> Population:
        """Moments of clipped user vectors; no eigenvalue of their covariance below the edge of its
        noise's spectrum."""
        d = self.settings.width
        n = self.facts.num_users
        radius = self.settings.user_radius
        part = math.sqrt(POPULATION) / 2
        moments = unpack(answer.values["population"][0], d + 1) / (part * n)
        mean = np.asarray(moments[0, 1:] * radius, np.float64)
        values, E = np.linalg.eigh(moments[1:, 1:] * radius**2 - np.outer(mean, mean))
        # eigenvalues of noise alone reach sqrt(d) times its std; a covariance needs positive ones
        edge = answer.noise_std["population"] / (part * n) * math.sqrt(d) * radius**2
        return Population(mean, np.asarray((E * np.maximum(values, edge + 1e-9)) @ E.T, np.float64))


@dataclass(frozen=True)
class ConvexModel:
    """V (m, d), intercepts (m,), and the rest of the local problem: what a device needs."""

    vectors: Float32s
    intercepts: Float64s
    catalogue: Catalogue
    loss: Loss
    ridge: float
    offset: float = 0.0

    @staticmethod
    def of_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> ConvexModel:
        """The model of a released file."""
        loss = (Logistic if bool(arrays["logistic"]) else Quadratic)(float(arrays["click_weight"]))
        catalogue = Catalogue(_floats(arrays, "base"), _floats(arrays, "pull"))
        vectors = np.asarray(arrays["vectors"], np.float32)
        return ConvexModel(
            vectors, _floats(arrays, "intercepts"), catalogue, loss, float(arrays["ridge"])
        )

    @property
    def item_vectors(self) -> Float32s:
        """(m, d + 1): V and b."""
        return np.column_stack([self.vectors, self.intercepts]).astype(np.float32)

    def user_vectors(self, history: Interactions) -> Float64s:
        """(n, d + 1): each user's u from its own clicks, and a one."""
        V = np.asarray(self.vectors, np.float64)
        U = convex_client.user_vectors(
            history, V, self.intercepts, self.catalogue, self.loss, self.ridge
        )
        return np.column_stack([U, np.ones(len(U))])

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Everything a device needs, for the released file."""
        scalars = {
            "ridge": self.ridge,
            "click_weight": self.loss.click_weight,
            "logistic": isinstance(self.loss, Logistic),
        }
        named: Arrays = {
            "vectors": self.vectors,
            "intercepts": self.intercepts,
            "base": self.catalogue.base,
            "pull": self.catalogue.pull,
        }
        return {**named, **{name: np.asarray(value) for name, value in scalars.items()}}


def loss_steps(loss: Loss) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        **clicks.CLIENT_STEPS,
        "convex/step": lambda question, mine: convex_client.report(question, mine, loss),
    }


def _floats(state: State, name: str) -> Float64s:
    return np.asarray(state[name], np.float64)


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    settings = settings_of(scenario, facts)
    plan = facts.plan(settings.shares)
    return Prepared(ConvexRecipe(plan, settings, facts), loss_steps(settings.loss), plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return loss_steps(loss_of(scenario))


def settings_of(scenario: RecipeScenario, facts: RecipeFacts) -> ConvexSettings:
    """The scenario's values; where it leaves a choice open, the logistic loss's best on validation
    of yelp2018. A start as by default."""
    chosen = scenario.model
    guarantee = facts.guarantee
    start = click_settings.settings_for(guarantee, users=facts.num_users, items=facts.num_items)
    low = guarantee.epsilon < 3
    middle = guarantee.epsilon < 15
    width = chosen.dimension or max(int(0.6 * start.width), 2)
    return ConvexSettings(
        loss=loss_of(scenario),
        start=replace(start, width=min(width, facts.num_items), steps=()),
        steps=chosen.steps or (1 if low else 2 if middle else 3 if guarantee.epsilon < 100 else 4),
        user_ridge=chosen.user_ridge or (0.1 if low else 1.0 if middle else 0.3),
        item_ridge=chosen.item_ridge or (30.0 if low else 10.0 if middle else 1.0),
        user_radius=chosen.user_radius or 1.0,
    )


def loss_of(scenario: RecipeScenario) -> Loss:
    """What a click and its absence cost."""
    return LOSSES[scenario.model.loss](scenario.model.click_weight)


SPEC = RecipeSpec(
    name="convex-ssp",
    build=build,
    client_steps=client_steps,
    kinds=("clicks",),
    models={"convex-ssp": ConvexModel},
    read=whole_scenario,
    keys=frozenset(
        {
            "encoder",
            "loss",
            "click_weight",
            "dimension",
            "steps",
            "user_ridge",
            "item_ridge",
            "user_radius",
        }
    ),
)
