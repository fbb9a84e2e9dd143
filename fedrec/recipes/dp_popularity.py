"""Clicks by their counts; see `factorization.dp_popularity`. It has no settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedrec.data.kinds import Kind
from fedrec.factorization.simple import dp_popularity
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.registry import NoSettings, RecipeSpec


def build(settings: NoSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    plan = facts.plan(dp_popularity.SHARES)
    return Prepared(dp_popularity.PopularityRecipe(plan, facts), dp_popularity.CLIENT_STEPS, plan)


def client_steps(settings: NoSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return dp_popularity.CLIENT_STEPS


SPEC = RecipeSpec(name="dp-popularity", build=build, client_steps=client_steps, kinds=("clicks",))
