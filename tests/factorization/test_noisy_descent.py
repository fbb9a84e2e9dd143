"""What is particular to the sound sibling of fast DP matrix factorisation; its five tests are in
test_recipes.py."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load


def prepared_for(ratings: Interactions, *keys: str) -> Prepared:
    facts = PublicFacts(
        ratings.num_users, ratings.num_items, ratings.kind, ratings.value_range, None, Streams(1)
    )
    return prepare(load(None, ["recipe=noisy-descent", *keys]), facts)


def loopback(ratings: Interactions, made: Prepared) -> Loopback:
    return Loopback(ratings, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))


def test_a_step_is_the_normalised_gradient_of_every_user_over_count_and_ridge() -> None:
    """Second code, user by user, in floating point: the grid costs less than a hundredth."""
    ratings = planted(SHAPES["small"], seed=3).interactions
    made = prepared_for(
        ratings,
        "model.dimension=3",
        "model.steps=1",
        "model.learning_rate=0.5",
        "privacy.epsilon=inf",
    )
    first, second = train(made.recipe, loopback(ratings, made), made.recipe.begin())
    V, bias = (np.asarray(first.state[name], np.float64) for name in ("V", "bias"))
    mean = float(first.state["mean"])
    change = np.zeros((ratings.num_items, 4))
    counts = np.zeros(ratings.num_items)
    for a, b in itertools.pairwise(ratings.user_ptr):
        items = ratings.items[a:b]
        y = ratings.values[a:b] - mean - bias[ratings.items[a:b]]
        y = y - y.sum() / (len(y) + 3)
        u = np.linalg.solve(V[items].T @ V[items] + 4 * np.eye(3), V[items].T @ y)
        rows = np.outer(y - V[items] @ u, np.append(u, 1.0))
        change[items] += rows / np.linalg.norm(rows)
        counts[items] += 1 / np.sqrt(len(items))
    found = np.column_stack([np.asarray(second.state["V"]) - V, second.state["bias"]])
    expected = 0.5 * change / (counts + 5)[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())


def test_clicks_and_keys_of_other_recipes_are_refused() -> None:
    clicks = planted(dataclasses.replace(SHAPES["small"], kind="clicks"), seed=1).interactions
    with pytest.raises(SettingsError, match="this data holds clicks"):
        prepared_for(clicks)
    for key, words in (
        ("model.resamples=2", "model.resamples has no effect"),
        ("model.weights=printed", "model.weights has no effect"),
        ("data.kind=clicks", "fits ratings"),
        ("privacy.unit=example", "whole users"),
        ("privacy.accountant=am-ssp", "accounted exactly"),
        ("compare.published=true", "needs recipe"),
    ):
        with pytest.raises(SettingsError, match=words):
            load(None, ["recipe=noisy-descent", key])
