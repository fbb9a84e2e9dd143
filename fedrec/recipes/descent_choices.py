"""Choices that recipes of noisy descent share: keys of [model] and the server's plain part."""

from __future__ import annotations

from fedrec.factorization.descent import noisy_descent
from fedrec.preparing import RecipeFacts

KEYS = frozenset({"encoder", "dimension", "steps", "user_ridge", "item_ridge", "learning_rate"})
"""Of [model], of every recipe of noisy descent."""


def descent(
    settings: noisy_descent.DescentSettings, facts: RecipeFacts
) -> noisy_descent.DescentRecipe:
    """The server's part."""
    return noisy_descent.DescentRecipe(facts.plan(noisy_descent.shares(settings)), settings, facts)
