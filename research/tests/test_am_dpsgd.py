"""AM-DPSGD is Algorithm 6 of AM-SSP: a step read line by line, and its gradients by Opacus.

Five tests of the mechanism: test_recipes.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedrec.data.planted import SHAPES, planted
from fedrec.errors import SettingsError
from fedrec.factorization import example_choice
from fedrec.randomness import Streams
from fedrec.registry import require
from fedrec.settings import load
from fedrec_research.am_dpsgd import TwoLayerDescent
from fedrec_research.feature_rows import FeatureSettings, feature_rows
from research.tests.encoder_rounds import prepared_for, require_bounded_reports, rounds_of

TWO_LAYERS = (
    "model.dimension=3",
    "model.steps=1",
    "model.user_ridge=4",
    "model.gradient_radius=0.5",
    "model.learning_rate=2",
    "model.item_ridge=0.01",
    "model.example_share=0.6",
    "privacy.epsilon=inf",
)


def test_a_step_of_two_layers_is_algorithm_6_read_line_by_line() -> None:
    """Second code, example by example, on the batch that public keys draw; the grid costs a
    hundredth."""
    dataset = planted(SHAPES["small"], seed=3)
    ratings = dataset.interactions
    radius = 0.5
    made = prepared_for("am-dpsgd", ratings, dataset.features, *TWO_LAYERS)
    counted, stepped = rounds_of(ratings, made)
    X = feature_rows(
        dataset.features,
        ratings.num_items,
        FeatureSettings(least_share=0.0, rarity=0.5, identity=0.0),
    ).toarray()
    E = np.asarray(counted.state["E"])
    W = np.asarray(counted.state["W"]) + 0.0
    mean = float(counted.state["mean"])
    omega = np.maximum(np.asarray(counted.answer.values["counts"][:, 0]), 1) ** -0.25
    key = Streams(0).key("two-layer-batch", round=1)
    batch = example_choice.share_of_examples(ratings, share=0.6, key=key)  # l. 4
    assert 0.5 < batch.mean() < 0.7
    H = X @ E  # l. 5-7, once for every item
    V = H @ W
    in_E = np.zeros_like(E)
    in_W = np.zeros_like(W)
    clipped = 0
    for a, b in itertools.pairwise(ratings.user_ptr):
        items = ratings.items[a:b]
        y = ratings.values[a:b] - mean
        u = np.linalg.solve(V[items].T @ V[items] + 4 * np.eye(3), V[items].T @ y)  # l. 2
        drawn = batch[a:b]
        total = omega[items[drawn]].sum()
        for item, value in zip(items[drawn], y[drawn], strict=True):
            e = value - u @ V[item]
            one = e * np.outer(X[item], W @ u)
            other = e * np.outer(H[item], u)
            length = float(np.sqrt((one**2).sum() + (other**2).sum()))
            factor = omega[item] / total * min(1.0, radius / length)  # l. 8, App. E
            clipped += length > radius
            in_E += factor * one
            in_W += factor * other
    assert 0.05 < clipped / batch.sum() < 0.95  # both sides of Gamma_g are tried
    rate = 2 / ratings.num_users  # l. 9
    after = rate * (in_E - 0.01 * X.T @ V @ W.T), rate * (in_W - 0.01 * H.T @ V)
    for name, before, moved in (("E", E, after[0]), ("W", W, after[1])):
        found = np.asarray(stepped.state[name]) - before
        np.testing.assert_allclose(found, moved, atol=1e-2 * np.abs(moved).max())


def test_gradients_are_those_of_opacus_clipped_example_by_example() -> None:
    """A bag of embeddings and a dense layer in torch: GradSampleModule's gradient of each example,
    clipped and weighed, adds up to what devices report. Tolerance: the reports' grid."""
    from opacus import GradSampleModule  # seconds, which other workers do without

    dataset = planted(SHAPES["small"], seed=5)
    ratings = dataset.interactions
    radius = 0.5
    keys = [key for key in TWO_LAYERS if "example_share" not in key]
    made = prepared_for("am-dpsgd", ratings, dataset.features, *keys)
    counted, stepped = rounds_of(ratings, made)
    of_features = FeatureSettings(least_share=0.0, rarity=0.5, identity=0.0)
    X = feature_rows(dataset.features, ratings.num_items, of_features).toarray()
    E, W = (np.asarray(counted.state[name], np.float64) for name in ("E", "W"))
    mean = float(counted.state["mean"])
    omega = np.maximum(np.asarray(counted.answer.values["counts"][:, 0]), 1) ** -0.25
    encoder = torch.nn.Sequential(
        torch.nn.Linear(*E.shape, bias=False), torch.nn.Linear(3, 3, bias=False)
    ).double()
    with torch.no_grad():
        encoder[0].weight.copy_(torch.from_numpy(E.T.copy()))
        encoder[1].weight.copy_(torch.from_numpy(W.T.copy()))
    sampled = GradSampleModule(encoder, loss_reduction="sum")
    V = X @ E @ W
    users = np.repeat(np.arange(ratings.num_users), np.diff(ratings.user_ptr))
    y = ratings.values - mean
    U = np.zeros((ratings.num_users, 3))
    shares = np.zeros(len(y))
    for k, (a, b) in enumerate(itertools.pairwise(ratings.user_ptr)):
        seen = V[ratings.items[a:b]]
        U[k] = np.linalg.solve(seen.T @ seen + 4 * np.eye(3), seen.T @ y[a:b])
        shares[a:b] = omega[ratings.items[a:b]] / omega[ratings.items[a:b]].sum()
    inputs = torch.from_numpy(X[ratings.items]).requires_grad_()  # the hooks warn without
    predicted = (sampled(inputs) * torch.from_numpy(U[users])).sum(1)
    (0.5 * (torch.from_numpy(y) - predicted) ** 2).sum().backward()
    both = [parameter.grad_sample.numpy() for parameter in sampled.parameters()]
    lengths = np.sqrt(sum((each**2).sum((1, 2)) for each in both))
    factors = shares * np.minimum(1.0, radius / lengths)
    assert 0.05 < (lengths > radius).mean() < 0.95
    in_E, in_W = (-np.einsum("n,nij->ji", factors, each) for each in both)
    (released,) = stepped.answer.values.values()
    assert len(released) == 2 * max(len(in_E), len(in_W))
    for found, expected in ((released[0 : 2 * len(in_E) : 2], in_E), (released[1:7:2], in_W)):
        np.testing.assert_allclose(found * radius, expected, atol=1e-2 * np.abs(expected).max())


def test_no_user_moves_a_release_by_more_than_its_radius() -> None:
    require_bounded_reports("am-dpsgd", *TWO_LAYERS, "model.example_share=1")


def test_the_name_means_algorithm_6_on_ratings_with_or_without_features() -> None:
    """The registry's recipe is the class that the tests above read; ids are features of none."""
    ratings = planted(SHAPES["small"], seed=3).interactions
    made = prepared_for("am-dpsgd", ratings, None, "model.steps=1")
    assert isinstance(made.recipe, TwoLayerDescent)
    assert made.recipe.rows.shape == (ratings.num_items, ratings.num_items + 1)
    assert require("am-dpsgd").kinds == ("ratings",)
    for key in ("biases=false", "own_vectors=false", "user_radius=1"):
        with pytest.raises(SettingsError, match="has no effect"):
            load(None, ["recipe=am-dpsgd", f"model.{key}"])


def test_a_rate_that_diverges_is_told_in_words() -> None:
    dataset = planted(SHAPES["small"], seed=3)
    keys = ("model.steps=12", "model.learning_rate=900", "privacy.epsilon=inf")
    made = prepared_for("am-dpsgd", dataset.interactions, dataset.features, *keys)
    with pytest.raises(SettingsError, match="the item encoder diverged at step"):
        rounds_of(dataset.interactions, made)
