"""AM-DPSGD with the paper's encoder of two layers, on batches of examples (AM-SSP Alg. 1 with Alg.
6, Krichene et al. 2023).

v_j = W' E' x_j: the bags x_j of item j, a table E (P, d) and a dense layer W (d, d). One example's
gradient, of half its squared error e^2, is -e (x_j (W u)', h_j u') with h_j = E' x_j. Users and
encoder share the passes: h_j and v_j are computed once a step for every item (l. 5-7), and a user's
gradient is a number for each row of E and of W beside the vectors W u and u.

Guarantee (user, add/remove): as `am_dpsgd` as printed, whose weights these are. Each example's
gradient is clipped to Gamma_g (l. 8), and its weights n_j^-1/4 are scaled to sum to 1 over a user's
examples in the batch: a report over Gamma_g has norm at most 1. Batches are a share of each user's
examples, drawn from public keys (l. 4): they amplify nothing for users, and every step is charged.
There are no biases and no entry of an item's own; data without features have each item's id as its
feature. The gradients are those that Opacus finds example by example (a test), at an item's price.

Where we leave the paper: by default every step takes all examples (`model.example_share` = 1), and
users are solved exactly on their devices. With biases, one layer, and on clicks: `encoder-descent`
of fedrec-research.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.errors import SettingsError
from fedrec.factorization.descent import noisy_descent
from fedrec.factorization.descent.noisy_descent import DescentRecipe, DescentSettings
from fedrec.factorization.example_choice import share_of_examples
from fedrec.factorization.least_squares import LocalStageModel, solved
from fedrec.federation.messages import ClientStep, Question, Release, ReleaseSpec, Reports, State
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.numerics import segments
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.calibration import Plan
from fedrec.randomness import Streams
from fedrec.recipes.descent_choices import KEYS, descent
from fedrec.registry import RecipeSpec, whole_scenario
from fedrec.settings import RecipeScenario
from fedrec_research.encoder_descent.descent import clipped, require_bounded
from fedrec_research.encoder_descent.recipe import descent_settings, rows_of_items
from fedrec_research.feature_rows import (
    FeatureSettings,
    padded_rows,
    rows_of_question,
    sorted_rows,
)

STEP = "am-dpsgd/two-layers"


@dataclass(frozen=True)
class TwoLayerSettings:
    """gradients: T, steps between two solves of users. radius: Gamma_g. share: of a user's examples
    in a batch."""

    gradients: int
    radius: float
    share: float


@dataclass(frozen=True)
class TwoLayerDescent:
    """The server: post-processing of releases only. `plain` asks round 0 and accounts for all
    gradients; X is `rows` (m, P)."""

    plain: DescentRecipe
    settings: TwoLayerSettings
    rows: sparse.csr_matrix

    @property
    def plan(self) -> Plan:
        """Counts, mean and all gradients."""
        return self.plain.plan

    def begin(self) -> State:
        """A random table, and the identity above it."""
        d = self.plain.settings.dimension
        rng = self.plain.facts.streams.numpy("two-layer-init")
        E = self.plain.settings.start_std * rng.standard_normal((self.rows.shape[1], d))
        return {"E": E, "W": np.eye(d), "solved_on": self.rows @ E, "round": np.array(0)}

    def ask(self, state: State) -> Question | None:
        """Counts and mean first, then one question per gradient: rows 2p are of E, 2q + 1 of W."""
        t = int(state["round"])
        if t == 0 or t > self.plain.settings.steps:
            return self.plain.ask(state)
        name = f"gradient/{t - 1}"
        rows = 2 * max(self.rows.shape[1], self.plain.settings.dimension)
        both = block(name, "linear", rows=rows, width=self.plain.settings.dimension, folds=2)
        known = {key: state[key] for key in ("solved_on", "mean", "weights")}
        hidden = self.rows @ np.asarray(state["E"], np.float64)
        W = np.zeros(hidden.shape)  # clients take arrays with a row for each item alone
        W[: hidden.shape[1]] = state["W"]
        public = known | {"hidden": hidden, "W": W} | padded_rows(self.rows)
        return Question(t, STEP, public, (ReleaseSpec(name, (both,)),))

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Counts and mean; then l. 9 with eta / users for the rate, and the ridge of App. E."""
        t = int(state["round"])
        plain = self.plain.settings
        if t == 0:
            counts, mean = noisy_descent.counts_and_mean(self.plain.facts, answer)
            omega = np.maximum(counts, 1.0) ** -0.25  # App. E, of what is released here
            return {**state, "weights": omega, "mean": np.array(mean), "round": np.array(1)}
        E = np.asarray(state["E"], np.float64)
        W = np.asarray(state["W"], np.float64)
        H = np.asarray(self.rows @ E)
        V = H @ W
        found = self.settings.radius * answer.values[f"gradient/{t - 1}"]
        eta = plain.rate / self.plain.facts.num_users
        P = len(E)
        E = E + eta * (found[0 : 2 * P : 2] - plain.item_ridge * (self.rows.T @ (V @ W.T)))
        W = W + eta * (found[1 : 2 * len(W) : 2] - plain.item_ridge * (H.T @ V))
        require_bounded(t, plain.steps, E, W)
        anew = t % self.settings.gradients == 0
        anchor = (self.rows @ E) @ W if anew else state["solved_on"]
        return {**state, "E": E, "W": W, "solved_on": anchor, "round": np.array(t + 1)}

    def model(self, state: State) -> LocalStageModel:
        """Item vectors and the mean; a device does the rest."""
        mean = float(state["mean"]) if "mean" in state else sum(self.plain.facts.value_range) / 2
        V = (self.rows @ np.asarray(state["E"], np.float64)) @ np.asarray(state["W"], np.float64)
        plain = self.plain.settings
        return LocalStageModel.of(
            V, np.zeros(len(V)), offset=mean, user_ridge=plain.user_ridge, prior=plain.prior
        )


def two_layer_steps(
    settings: DescentSettings, of_encoder: TwoLayerSettings
) -> Mapping[str, ClientStep]:
    """What runs on a device, by the name a question gives."""
    return {
        **noisy_descent.client_steps(settings),
        STEP: lambda question, mine: _report(question, mine, settings, of_encoder),
    }


def _report(
    question: Question, mine: Interactions, settings: DescentSettings, chosen: TwoLayerSettings
) -> Reports:
    """Minus half the gradient of the batch's examples in (E, W), each clipped, over Gamma_g."""
    public = question.public
    H, W, old = (np.asarray(public[name], np.float64) for name in ("hidden", "W", "solved_on"))
    W = W[: W.shape[1]]
    mean = float(public["mean"])
    none = np.zeros(len(old))
    _, U, _ = solved(mine, old, none, mean, settings.user_ridge, prior=settings.prior)
    if chosen.share < 1:
        key = Streams(0).key("two-layer-batch", round=question.round)
        mine = mine.select(share_of_examples(mine, share=chosen.share, key=key))
    X = rows_of_question(question)
    above = segments.rows_times(U, W.T)
    users, items = mine.users, mine.items
    residuals = mine.values - mean - segments.row_products(above[users], H[items])
    bags = np.asarray(X.multiply(X).sum(axis=1)).ravel()[items]
    hidden = (H**2).sum(1)[items]
    of_hidden, of_users = segments.row_squares(above), segments.row_squares(U)
    sizes = np.sqrt(bags * of_hidden[users] + hidden * of_users[users])
    cut = clipped(question, mine, residuals, sizes, chosen.radius)
    return _reported(question, mine, cut, (X, H), (above, U))


def _reported(
    question: Question,
    mine: Interactions,
    cut: Float64s,
    inputs: tuple[sparse.csr_matrix, Float64s],
    vectors: tuple[Float64s, Float64s],
) -> Reports:
    """Rows 2p hold (X' cut)_p W u, rows 2q + 1 (H' cut)_q u."""
    shape = (mine.num_users, mine.num_items)
    each = sparse.csr_matrix((cut, mine.items, mine.user_ptr), shape=shape)
    parts = [sparse.coo_matrix(each @ rows) for rows in (inputs[0], sparse.csr_matrix(inputs[1]))]
    where = (
        np.concatenate([part.row for part in parts]),
        np.concatenate([2 * part.col + fold for fold, part in enumerate(parts)]),
    )
    numbers = np.concatenate([part.data for part in parts])
    columns = question.blocks[0].rows
    both = sorted_rows(sparse.csr_matrix((numbers, where), shape=(mine.num_users, columns)))
    interleaved = np.stack(vectors, axis=1).reshape(2 * mine.num_users, -1)
    return bounded(
        both.indptr.astype(np.int64),
        both.indices.astype(np.int32),
        [RealBlock(both.data, interleaved)],
        question.releases,
        scaling="clip",
    )


def build(scenario: RecipeScenario, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    settings, layers = settings_of(scenario)
    if settings.dimension > facts.num_items:
        raise SettingsError(
            f"item vectors of width {settings.dimension} need as many items, found "
            f"{facts.num_items}",
            "Lower model.dimension.",
        )
    of_features = FeatureSettings(least_share=0.0, rarity=0.5, identity=0.0)
    rows = rows_of_items(scenario, facts, of_features)
    recipe = TwoLayerDescent(descent(settings, facts), layers, rows)
    return Prepared(recipe, two_layer_steps(settings, layers), recipe.plan)


def client_steps(
    scenario: RecipeScenario, kind: Kind | Literal["news"]
) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return two_layer_steps(*settings_of(scenario))


def settings_of(scenario: RecipeScenario) -> tuple[DescentSettings, TwoLayerSettings]:
    """The scenario's values; Gamma_g is 1 where it is left open."""
    chosen = scenario.model
    layers = TwoLayerSettings(
        chosen.encoder_steps or 1, chosen.gradient_radius or 1.0, chosen.example_share
    )
    plain = descent_settings(scenario, rate=3.0, item_ridge=0.01, start_std=1.0, biases=False)
    return plain, layers


SPEC = RecipeSpec(
    name="am-dpsgd",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    kinds=("ratings",),
    read=whole_scenario,
    keys=KEYS | {"encoder_steps", "example_share", "gradient_radius"},
)
