"""DP-item-item: counts, then one Gram of the most clicked items, and EASE on it; the simplest
private list that knows a person's taste.

Guarantee (user, add/remove): the first two rounds of `clicks.ClickRecipe`, and nothing more: each
of sensitivity 1, together the plan.

The recipe has no settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedrec.data.kinds import Kind
from fedrec.factorization.default_clicks import recipe as clicks
from fedrec.factorization.default_clicks import settings as click_settings
from fedrec.factorization.default_clicks.item_item import reached
from fedrec.factorization.default_clicks.model import ClickModel, ItemItemModel, PublicPriorModel
from fedrec.factorization.default_clicks.recipe import ClickRecipe, item_item_of
from fedrec.factorization.default_clicks.settings import ClickSettings
from fedrec.factorization.default_clicks.stream import (
    CLIENT_STEPS,
    StreamRecipe,
    edges_of,
    places_of,
)
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import ClientStep, Question, Release, State
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.registry import NoSettings, RecipeSpec

COUNTS = 0.1
"""Of mu^2; the Gram gets the rest."""


def settings_for(guarantee: Guarantee, *, users: int, items: int) -> ClickSettings:
    """The default's, with all but `COUNTS` for the Gram."""
    mu = mu_for(guarantee.epsilon, guarantee.delta)
    chosen = click_settings.settings_for(guarantee, users=users, items=items)
    head = reached(
        users=users, noise_std=1 / (mu * math.sqrt(1 - COUNTS)), exponent=chosen.gram_exponent
    )
    return replace(
        chosen,
        counts=COUNTS,
        tastes=1 - COUNTS,
        steps=(),
        heads=(head, head),
    )


@dataclass(frozen=True)
class ItemItemRecipe:
    """The server: post-processing of both releases only."""

    plan: Plan
    settings: ClickSettings
    facts: PublicFacts

    def begin(self) -> State:
        """Nothing is known."""
        return self._rounds.begin()

    def ask(self, state: State) -> Question | None:
        """Asks for counts, then for the Gram."""
        return self._rounds.ask(state)

    def tell(self, state: State, question: Question, answer: Release) -> State:
        """Learn from a release."""
        return self._rounds.tell(state, question, answer)

    def model(self, state: State) -> ItemItemModel | ClickModel | PublicPriorModel:
        """The model after any round: popularity as soon as there are counts."""
        similar = item_item_of(state)
        return (
            self._rounds.private_model(state)
            if similar is None
            else ItemItemModel(similar, np.asarray(state["counts"], np.float64))
        )

    @property
    def _rounds(self) -> ClickRecipe:
        return ClickRecipe(self.plan, self.settings, self.facts)


def build(settings: NoSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps; of a year where there is a horizon, whose weeks are of equal time,
    or, where no period is known, those in which devices are asked."""
    chosen = settings_for(facts.guarantee, users=facts.num_users, items=facts.num_items)
    plan = facts.plan(chosen.shares)
    if facts.horizon:
        places = places_of(
            users=facts.num_users,
            items=facts.num_items,
            mu=plan["tastes"].mu,
            horizon=facts.horizon,
            exponent=chosen.gram_exponent,
        )
        # half of the places are taken at first, and vectors are no wider than these items
        chosen = replace(chosen, width=min(chosen.width, places // 2))
        edges = edges_of(facts.period, facts.horizon) if facts.period else None
        made = StreamRecipe(plan, chosen, facts, edges, places, facts.horizon)
        return Prepared(made, CLIENT_STEPS, plan)
    return Prepared(ItemItemRecipe(plan, chosen, facts), clicks.CLIENT_STEPS, plan)


def client_steps(settings: NoSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return {**clicks.CLIENT_STEPS, **CLIENT_STEPS}


SPEC = RecipeSpec(
    name="dp-item-item",
    build=build,
    client_steps=client_steps,
    evaluates=True,
    kinds=("clicks",),
    streams=("clicks",),
)
