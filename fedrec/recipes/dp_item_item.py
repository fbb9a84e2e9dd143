"""Clicks by one Gram of the most clicked items and EASE; see `factorization.dp_item_item`.

It has no settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fedrec.data.kinds import Kind
from fedrec.factorization.default_clicks import recipe as clicks
from fedrec.factorization.simple import dp_item_item
from fedrec.federation.messages import ClientStep
from fedrec.preparing import Prepared, RecipeFacts
from fedrec.registry import NoSettings, RecipeSpec


def build(settings: NoSettings, facts: RecipeFacts) -> Prepared:
    """The recipe and its steps."""
    chosen = dp_item_item.settings_for(
        facts.guarantee, users=facts.num_users, items=facts.num_items
    )
    plan = facts.plan(chosen.shares)
    return Prepared(dp_item_item.ItemItemRecipe(plan, chosen, facts), clicks.CLIENT_STEPS, plan)


def client_steps(settings: NoSettings, kind: Kind | Literal["news"]) -> Mapping[str, ClientStep]:
    """By the name a question gives."""
    return clicks.CLIENT_STEPS


SPEC = RecipeSpec(name="dp-item-item", build=build, client_steps=client_steps, kinds=("clicks",))
