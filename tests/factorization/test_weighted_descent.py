"""Noisy gradient descent, with task weights and without (the sound sibling of fast DP matrix
factorisation): what is particular to them; their five tests are in test_recipes.py."""

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
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load


def prepared_for(ratings: Interactions, *keys: str, recipe: str = "dp-gd") -> Prepared:
    facts = PublicFacts(
        ratings.num_users, ratings.num_items, ratings.kind, ratings.value_range, None, Streams(1)
    )
    return prepare(load(None, [f"recipe={recipe}", *keys]), facts)


def loopback(ratings: Interactions, made: Prepared) -> Loopback:
    return Loopback(ratings, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))


@pytest.mark.parametrize(
    ("recipe", "ridges"),
    [
        ("noisy-descent", ()),  # 4 and 5 are its own
        ("dp-gd", ("model.user_ridge=4", "model.item_ridge=5")),
    ],
)
def test_a_step_is_the_weighted_normalised_gradient_of_every_user_over_weighted_count_and_ridge(
    recipe: str, ridges: tuple[str, ...]
) -> None:
    """Second code, user by user, in floating point: the grid costs less than a hundredth."""
    ratings = planted(SHAPES["small"], seed=3).interactions
    keys = ("model.dimension=3", "model.steps=1", "model.learning_rate=0.5", "privacy.epsilon=inf")
    made = prepared_for(ratings, *keys, *ridges, recipe=recipe)
    first, second = train(made.recipe, loopback(ratings, made), made.recipe.begin())
    V, bias = (np.asarray(first.state[name], np.float64) for name in ("V", "bias"))
    lengths = np.diff(ratings.user_ptr)
    n = np.bincount(
        ratings.items, weights=(1 / np.sqrt(lengths))[ratings.users], minlength=ratings.num_items
    )
    omega = np.maximum(n, 1e-9) ** (-0.25 if recipe == "dp-gd" else 0)
    omega *= np.sqrt(n.sum() / (n @ omega**2))
    mean = float(first.state["mean"])
    change = np.zeros((ratings.num_items, 4))
    for a, b in itertools.pairwise(ratings.user_ptr):
        items = ratings.items[a:b]
        y = ratings.values[a:b] - mean - bias[ratings.items[a:b]]
        y = y - y.sum() / (len(y) + 3)
        u = np.linalg.solve(V[items].T @ V[items] + 4 * np.eye(3), V[items].T @ y)
        rows = np.outer(omega[items] * (y - V[items] @ u), np.append(u, 1.0))
        change[items] += rows / np.linalg.norm(rows)
    found = np.column_stack([np.asarray(second.state["V"]) - V, second.state["bias"]])
    expected = 0.5 * change / (omega * n + 5)[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())


def test_without_weights_it_is_the_sound_sibling_of_fast_dpmf() -> None:
    ratings = planted(SHAPES["small"], seed=4).interactions
    keys = (
        "model.dimension=2",
        "model.steps=2",
        "model.user_ridge=4",
        "model.item_ridge=5",
        "model.learning_rate=0.7",
    )
    tables = []
    for recipe, more in (("dp-gd", ["model.weight_exponent=0"]), ("noisy-descent", [])):
        made = prepared_for(ratings, *keys, *more, recipe=recipe)
        begin = {**made.recipe.begin(), "V": np.full((ratings.num_items, 2), 0.1, np.float32)}
        *_, last = train(made.recipe, loopback(ratings, made), begin)
        tables.append(made.recipe.model(last.state).item_vectors)
    np.testing.assert_allclose(*tables, atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("dp-gd", {}),
        ("encoder-descent", {}),
        (
            "noisy-descent",
            {
                "model.weights=printed": "model.weights has no effect",
                "data.kind=clicks": "fits ratings",
                "privacy.accountant=am-ssp": "accounted exactly",
            },
        ),
    ],
)
def test_keys_of_other_recipes_are_refused(recipe: str, more: dict[str, str]) -> None:
    refused = {
        "model.resamples=2": f'model.resamples has no effect with recipe = "{recipe}"',
        "privacy.unit=example": "whole users",
        "compare.published=true": "needs recipe",
    }
    for key, words in (refused | more).items():
        with pytest.raises(SettingsError, match=words):
            load(None, [f"recipe={recipe}", key])


def test_clicks_are_refused_by_the_recipe_that_fits_ratings() -> None:
    clicks = planted(dataclasses.replace(SHAPES["small"], kind="clicks"), seed=1).interactions
    with pytest.raises(SettingsError, match="this data holds clicks"):
        prepared_for(clicks, recipe="noisy-descent")
