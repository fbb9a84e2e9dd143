"""Recipes of fedrec's own, a module each, and how any recipe is prepared."""

from fedrec.preparing import (
    Prepared,
    RecipeFacts,
    TrainableRecipe,
    client_recipe,
    client_steps,
    guarantee_of,
    prepare,
)

__all__ = [
    "Prepared",
    "RecipeFacts",
    "TrainableRecipe",
    "client_recipe",
    "client_steps",
    "guarantee_of",
    "prepare",
]
