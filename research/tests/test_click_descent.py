"""What is particular to noisy gradient descent on clicks; its five tests are in test_recipes.py."""

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
from fedrec_research.dp_gd.clicks import CLICK_WEIGHT

CHOSEN = (
    "model.dimension=3",
    "model.user_ridge=2",
    "model.item_ridge=5",
    "model.learning_rate=0.5",
    "model.user_radius=0.2",
)


def some_clicks(seed: int) -> Interactions:
    return planted(dataclasses.replace(SHAPES["small"], kind="clicks"), seed=seed).interactions


def prepared_for(events: Interactions, *keys: str) -> Prepared:
    facts = PublicFacts(
        events.num_users, events.num_items, events.kind, events.value_range, None, Streams(1)
    )
    return prepare(load(None, [*keys]), facts)


def loopback(events: Interactions, made: Prepared) -> Loopback:
    return Loopback(events, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))


def test_a_step_is_the_gradient_of_every_users_whole_loss_over_its_curvature() -> None:
    """Second code, user by user and item by item: what was not clicked is added up in full, without
    a Gramian. The grid costs less than a hundredth. No user reaches the radius."""
    clicks = some_clicks(3)
    made = prepared_for(
        clicks, "recipe=dp-gd", *CHOSEN, "model.user_radius=0.5", "model.steps=1",
        "privacy.epsilon=inf",
    )  # fmt: skip
    first, second = train(made.recipe, loopback(clicks, made), made.recipe.begin())
    V = np.asarray(first.state["table"], np.float64)
    a = CLICK_WEIGHT
    lengths = np.diff(clicks.user_ptr)
    n = np.bincount(
        clicks.items, weights=(1 / np.sqrt(lengths))[clicks.users], minlength=clicks.num_items
    )
    omega = np.maximum(n, 1e-9) ** -0.25
    omega *= np.sqrt(n.sum() / (n @ omega**2))
    change = np.zeros_like(V)
    gramian = np.zeros((3, 3))
    for start, end in itertools.pairwise(clicks.user_ptr):
        y = np.zeros(len(V))
        confidence = np.ones(len(V))
        y[clicks.items[start:end]] = 1
        confidence[clicks.items[start:end]] = 1 + a
        u = np.linalg.solve((V.T * confidence) @ V + 2 * np.eye(3), V.T @ (confidence * y))
        own = (y * (1 + a - a * (V @ u)) * omega)[:, None] * u
        scale = 1 / np.linalg.norm(own)
        change += scale * omega[:, None] * (confidence * (y - V @ u))[:, None] * u
        assert np.sqrt(scale) * np.linalg.norm(u) < 0.5
        gramian += scale * np.outer(u, u)
    curvature = omega * (n + np.linalg.eigvalsh(gramian)[-1]) + 5
    expected = 0.5 * change / curvature[:, None]
    found = np.asarray(second.state["table"]) - V
    np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())


def test_with_rows_of_the_identity_and_no_weights_the_encoder_is_the_table() -> None:
    """encoder-descent without features: an entry of its own an item, and a one that all share."""
    clicks = some_clicks(4)
    made = prepared_for(clicks, "recipe=encoder-descent", *CHOSEN, "model.steps=2")
    X = made.recipe.rows.toarray()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(X[:, :-1], np.eye(clicks.num_items))
    *_, last = train(made.recipe, loopback(clicks, made), made.recipe.begin())
    assert np.isfinite(made.recipe.model(last.state).item_vectors).all()
    np.testing.assert_allclose(last.state["table"], X @ np.asarray(last.state["E"]), atol=1e-12)


def test_users_are_solved_once_in_an_outer_step_and_every_gradient_is_charged() -> None:
    clicks = some_clicks(5)
    made = prepared_for(
        clicks, "recipe=encoder-descent", *CHOSEN, "model.steps=2", "model.encoder_steps=3"
    )
    solved = [
        np.asarray(done.question.public["solved_on"])
        for done in train(made.recipe, loopback(clicks, made), made.recipe.begin())
        if done.question.round
    ]
    same = [np.array_equal(a, b) for a, b in itertools.pairwise(solved)]
    assert same == [True, True, False, True, True]
    charged = {event.name for event in made.plan.releases}
    assert charged == {"counts"} | {
        f"{part}/{s}" for part in ("gradient", "gramian") for s in range(6)
    }


def test_a_radius_is_refused_where_there_are_ratings() -> None:
    ratings = planted(SHAPES["small"], seed=1).interactions
    for recipe in ("dp-gd", "encoder-descent"):
        with pytest.raises(SettingsError, match="user_radius has no effect"):
            prepared_for(ratings, f"recipe={recipe}", "model.user_radius=1")
