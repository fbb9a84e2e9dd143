"""Directions of public data that the default recipe broadcasts: of features, links and vectors."""

from __future__ import annotations

from dataclasses import replace

from fedrec.arrays import Float32s, Float64s
from fedrec.data.public_sources import metadata_of
from fedrec.factorization.default_clicks.model import BITS, flattened
from fedrec.factorization.default_clicks.recipe import CONTENT_DIRECTIONS
from fedrec.factorization.default_ratings.public_directions import (
    link_directions,
    public_content,
    vector_directions,
)
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.coding import rounded_rows
from fedrec.settings import RecipeScenario


def public_sources(
    scenario: RecipeScenario, facts: PublicFacts
) -> tuple[Float64s | None, tuple[Float32s, ...]]:
    """(m, f) directions of features, None without any; and those of features, links and vectors, as
    they are broadcast."""
    content, *others = directions(scenario, facts, CONTENT_DIRECTIONS)
    known = [P for P in (content, *others) if P is not None]
    return content, tuple(rounded_rows(flattened(P), bits=BITS) for P in known)


def directions(
    scenario: RecipeScenario, facts: PublicFacts, dimension: int
) -> tuple[Float64s | None, Float64s | None, Float64s | None]:
    """Directions of features, links and vectors; None of what is not there."""
    known = facts.features if scenario.model.encoder == "features" else None
    content = public_content(with_metadata(scenario, facts), dimension=dimension)
    return content, link_directions(known), vector_directions(known)


def with_metadata(scenario: RecipeScenario, facts: PublicFacts) -> PublicFacts:
    """With the features that say what items are, where the scenario wants any."""
    sides = scenario.collective
    wanted = scenario.model.encoder == "features" and "metadata" in sides.sides
    features = metadata_of(facts.features, sides.categories) if wanted else None
    return replace(facts, features=features)
