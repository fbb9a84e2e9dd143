"""What is particular to noisy descent on a linear item encoder.

Five tests: tests/factorization/test_recipes.py; refusals: test_weighted_descent.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.planted import SHAPES, planted
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load
from fedrec_research.feature_rows import FeatureSettings, feature_rows
from research.tests.encoder_rounds import prepared_for, require_bounded_reports, rounds_of


def test_rows_are_common_bags_of_norm_1_an_entry_of_their_own_and_a_one() -> None:
    kind = FeatureBag(
        ("common", "rare", "other"),
        sparse.csr_matrix(np.array([[1, 0, 0], [2, 0, 1], [1, 5, 1], [0, 0, 0]], np.float32)),
    )
    settings = FeatureSettings(least_share=0.5, rarity=0.5, identity=0.7)
    found = feature_rows(PublicFeatures({"kind": kind}), 4, settings).toarray()
    averages = np.array([[1, 0], [2 / 3, 1 / 3], [1 / 7, 1 / 7], [0, 0]]) / np.sqrt([3, 2])
    lengths = np.linalg.norm(averages, axis=1, keepdims=True)
    averages = averages / np.where(lengths > 0, lengths, 1)
    np.testing.assert_allclose(
        found, np.column_stack([averages, 0.7 * np.eye(4), np.ones(4)]), atol=1e-12
    )
    np.testing.assert_array_equal(
        feature_rows(None, 4, settings).toarray(), np.column_stack([np.eye(4), np.ones(4)])
    )


def test_a_release_is_the_sum_of_normalised_gradients_and_users_are_solved_once_in_an_outer_step() -> None:  # fmt: skip
    """Second code, user by user: residuals from the current table, u from that of the outer step's
    start. The grid costs a hundredth."""
    dataset = planted(SHAPES["small"], seed=3)
    ratings = dataset.interactions
    d = 3
    keys = (
        "model.dimension=3",
        "model.steps=1",
        "model.encoder_steps=2",
        "model.user_ridge=4",
        "privacy.epsilon=inf",
    )
    made = prepared_for("encoder-descent", ratings, dataset.features, *keys)
    counted, first, second = rounds_of(ratings, made)
    X = feature_rows(
        dataset.features,
        ratings.num_items,
        FeatureSettings(least_share=0.0025, rarity=0.5, identity=0.7),
    ).toarray()
    start = np.asarray(counted.state["table"])
    mean = float(counted.state["mean"])
    for done, table in ((first, start), (second, np.asarray(first.state["table"]))):
        expected = np.zeros((X.shape[1], d + 1))
        for a, b in itertools.pairwise(ratings.user_ptr):
            items = ratings.items[a:b]
            V = start[ratings.items[a:b], :d]
            y = ratings.values[a:b] - mean - start[items, d]
            own = y.sum() / (len(y) + 3)
            u = np.append(np.linalg.solve(V.T @ V + 4 * np.eye(d), V.T @ (y - own)), 1.0)
            residuals = ratings.values[a:b] - mean - own - table[items] @ u
            gradient = np.outer(X[items].T @ residuals, u)
            expected += gradient / np.linalg.norm(gradient)
        (released,) = done.answer.values.values()
        np.testing.assert_allclose(released, expected, atol=1e-2 * np.abs(expected).max())


def test_without_biases_item_vectors_and_users_vectors_are_all_there_is() -> None:
    dataset = planted(SHAPES["small"], seed=3)
    made = prepared_for(
        "encoder-descent",
        dataset.interactions,
        dataset.features,
        "model.biases=false",
        "model.steps=2",
    )
    model = made.recipe.model(rounds_of(dataset.interactions, made)[-1].state)
    means, ones = np.asarray(model.user_vectors(dataset.interactions))[:, -2:].T
    assert not means.any()
    assert ones.all()
    assert not np.asarray(model.item_vectors)[:, -1].any()


def test_every_gradient_is_charged() -> None:
    ratings = planted(SHAPES["small"], seed=3).interactions
    made = prepared_for("encoder-descent", ratings, None, "model.steps=3", "model.encoder_steps=4")
    assert (
        len([release for release in made.plan.releases if release.name.startswith("gradient/")])
        == 12
    )


PRINTED = (
    "model.gradient_radius=0.5",
    "model.biases=false",
    "model.own_vectors=false",
    "model.dimension=3",
    "model.steps=1",
    "model.user_ridge=4",
    "model.item_ridge=0.01",
    "model.learning_rate=0.02",
    "privacy.epsilon=inf",
)


def test_as_printed_each_example_is_clipped_and_weighed_and_the_step_is_plain() -> None:
    """Second code of Alg. 6 l. 8 and 9, example by example."""
    dataset = planted(SHAPES["small"], seed=3)
    ratings = dataset.interactions
    d = 3
    radius = 0.5
    made = prepared_for("encoder-descent", ratings, dataset.features, *PRINTED)
    counted, stepped = rounds_of(ratings, made)
    X = feature_rows(
        dataset.features,
        ratings.num_items,
        FeatureSettings(least_share=0.0, rarity=0.5, identity=0.0),
    ).toarray()
    table = np.asarray(counted.state["table"])
    mean = float(counted.state["mean"])
    omega = np.maximum(np.asarray(counted.state["counts"]), 1) ** -0.25
    expected = np.zeros((X.shape[1], d + 1))
    clipped = 0
    for a, b in itertools.pairwise(ratings.user_ptr):
        items = ratings.items[a:b]
        V = table[ratings.items[a:b], :d]
        y = ratings.values[a:b] - mean
        u = np.append(np.linalg.solve(V.T @ V + 4 * np.eye(d), V.T @ y), 0.0)
        for item, residual in zip(items, y - V @ u[:d], strict=True):
            gradient = residual * np.outer(X[item], u)
            length = float(np.linalg.norm(gradient))
            clipped += length > radius
            expected += omega[item] / omega[items].sum() * gradient * min(1, radius / length)
    assert 0.05 < clipped / len(ratings.items) < 0.95  # both sides of Gamma_g are tried
    (released,) = stepped.answer.values.values()
    np.testing.assert_allclose(released * radius, expected, atol=1e-2 * np.abs(expected).max())
    before = np.asarray(counted.state["E"])
    after = np.asarray(stepped.state["E"])
    np.testing.assert_allclose(
        after, before + 0.02 * (radius * released - 0.01 * X.T @ X @ before), atol=1e-9
    )


def test_no_user_moves_a_release_by_more_than_its_radius() -> None:
    require_bounded_reports("encoder-descent", *PRINTED)


def test_as_printed_a_rate_that_diverges_is_told_in_words_and_clicks_have_no_such_form() -> None:
    dataset = planted(SHAPES["small"], seed=3)
    keys = (*PRINTED[:4], "model.steps=12", "model.item_ridge=30", "model.learning_rate=50")
    made = prepared_for("encoder-descent", dataset.interactions, dataset.features, *keys)
    with pytest.raises(SettingsError, match="the item encoder diverged at step"):
        rounds_of(dataset.interactions, made)
    clicks = PublicFacts(5, 5, "clicks", (1.0, 1.0), None, Streams(1))
    with pytest.raises(SettingsError, match=r"model.gradient_radius has no effect on clicks"):
        prepare(load(None, ["recipe=encoder-descent", "model.gradient_radius=1"]), clicks)
