"""Trainings of the recipes that descend on an item encoder, and people at the ends of a scale."""

from __future__ import annotations

import numpy as np

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import RoundDone, train
from fedrec.federation.reports import squared_norms
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load


def prepared_for(
    recipe: str, ratings: Interactions, features: PublicFeatures | None, *keys: str
) -> Prepared:
    facts = PublicFacts(
        ratings.num_users,
        ratings.num_items,
        ratings.kind,
        ratings.value_range,
        features,
        Streams(1),
    )
    return prepare(load(None, [f"recipe={recipe}", *keys]), facts)


def rounds_of(ratings: Interactions, made: Prepared) -> list[RoundDone]:
    link = Loopback(ratings, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
    return list(train(made.recipe, link, made.recipe.begin()))


def require_bounded_reports(recipe: str, *keys: str) -> None:
    """Whatever a user's ratings: at the far ends of the scale, on few items and on all."""
    dataset = planted(SHAPES["small"], seed=3)
    m = dataset.interactions.num_items
    low, high = dataset.interactions.value_range
    lists = [np.arange(m), np.array([0]), np.arange(0, m, 2), np.arange(5)]
    ptr = np.cumsum([0, *map(len, lists)])
    ends = np.where(np.arange(ptr[-1]) % 2, low, high)
    items = np.concatenate(lists).astype(np.int32)
    extreme = Interactions(ptr.astype(np.int64), items, ends.astype(np.float32), m, (low, high))
    made = prepared_for(recipe, extreme, dataset.features, *keys)
    counted, _ = rounds_of(extreme, made)
    question = made.recipe.ask(counted.state)
    assert question is not None
    norms = squared_norms(made.steps[question.step](question, extreme), question.releases)
    assert 0.25 < norms.max() <= 1  # and the bound is no idle one
