"""Baselines against means by hand and a dense ridge regression."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.evaluation.bias_baselines import global_mean, item_means, item_user_bias


def random_ratings(rng: np.random.Generator, *, n: int, m: int) -> Interactions:
    mask = rng.random((n, m)) < 0.4
    mask[:, -1] = False  # an item that nobody rated
    users, items = np.nonzero(mask)
    return Interactions.from_columns(
        users, items, rng.uniform(2, 4, len(users)), num_users=n, num_items=m, value_range=(1, 5)
    )


def test_global_and_damped_item_means_by_hand() -> None:
    train = Interactions.from_columns(
        np.array([0, 1, 1]),
        np.array([0, 0, 1]),
        np.array([5.0, 4.0, 3.0]),
        num_users=2,
        num_items=3,
        value_range=(1, 5),
    )
    users = np.array([0, 0, 0])
    items = np.array([0, 1, 2])
    assert global_mean(train).predict(users, items).tolist() == [4, 4, 4]
    assert item_means(train, damping=2).predict(users, items) == pytest.approx(
        [(5 + 4 + 2 * 4) / 4, (3 + 2 * 4) / 3, 4]
    )


def test_alternating_biases_reach_the_dense_ridge_solution() -> None:
    rng = np.random.default_rng(2)
    train = random_ratings(rng, n=12, m=9)
    X = np.hstack([np.eye(9)[train.items], np.eye(12)[train.users]])
    mean = train.values.mean(dtype=np.float64)
    solution = np.linalg.solve(X.T @ X + 3.0 * np.eye(21), X.T @ (train.values - mean))
    baseline = item_user_bias(train, ridge=3.0, sweeps=200)
    assert baseline.item_bias == pytest.approx(solution[:9], abs=1e-9)
    assert baseline.user_bias == pytest.approx(solution[9:], abs=1e-9)


def test_predictions_stay_on_the_public_scale_and_promise_nothing() -> None:
    train = Interactions.from_columns(
        np.array([0]), np.array([0]), np.array([5.0]), num_users=2, num_items=2, value_range=(1, 5)
    )
    for baseline in (global_mean(train), item_means(train), item_user_bias(train)):
        assert baseline.predict(np.array([0, 1]), np.array([0, 1])).max() <= 5
        assert not baseline.guarantee.private
        assert "no privacy" in str(baseline.guarantee)


def test_empty_train_predicts_the_middle_of_the_scale() -> None:
    empty = Interactions.from_columns(
        np.zeros(0, int),
        np.zeros(0, int),
        np.zeros(0),
        num_users=1,
        num_items=1,
        value_range=(1, 5),
    )
    assert item_user_bias(empty).predict(np.array([0]), np.array([0])).tolist() == [3.0]


def test_damping_that_would_divide_by_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="damping"):
        item_means(random_ratings(np.random.default_rng(0), n=3, m=3), damping=0)
