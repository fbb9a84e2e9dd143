"""Ratings by item biases and users' own means; see `factorization.dp_bias`. It has no settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedrec.data.kinds import Kind
from fedrec.factorization.simple import dp_bias
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.registry import NoSettings, RecipeSpec


def build(settings: NoSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    chosen = dp_bias.BiasSettings()
    plan = facts.plan(chosen.shares)
    return Prepared(dp_bias.BiasRecipe(plan, chosen, facts), dp_bias.CLIENT_STEPS, plan)


def client_steps(settings: NoSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return dp_bias.CLIENT_STEPS


SPEC = RecipeSpec(name="dp-bias", build=build, client_steps=client_steps, kinds=("ratings",))
