"""The item-item control is EASE, on what of the data a few seconds allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.evaluation import als as module
from fedrec.evaluation.als import FewPeople, ItemItem, ease, evenly, few_people, item_item


def pairs(*, users: int = 400, couples: int = 15, seed: int = 1) -> tuple[Interactions, Fold]:
    """Whoever clicks 2c clicks 2c + 1: one of a couple in history, the other among the targets."""
    rng = np.random.default_rng(seed)
    chosen = np.concatenate([rng.permutation(couples)[:3] for _ in range(users)])
    rows = np.repeat(np.arange(users), 3)
    held = np.arange(3 * users) % 3 == 0
    first = 2 * chosen
    second = 2 * chosen + 1

    def clicks(u: np.ndarray, i: np.ndarray) -> Interactions:
        return Interactions.from_columns(
            u, i, None, num_users=users, num_items=2 * couples, value_range=(0, 1), kind="clicks"
        )

    train = clicks(np.concatenate([rows, rows[~held]]), np.concatenate([first, second[~held]]))
    return train, Fold(train, clicks(rows[held], second[held]))


def test_weights_are_the_least_squares_fit_without_an_item_explaining_itself() -> None:
    """Column by column against a ridge regression on the other items."""
    rng = np.random.default_rng(3)
    X = (rng.random((60, 8)) < 0.3).astype(np.float64)
    B = ease(X.T @ X, ridge=2.0)
    for j in range(8):
        others = np.delete(np.arange(8), j)
        A = X[:, others]
        expected = np.linalg.solve(A.T @ A + 2.0 * np.eye(7), A.T @ X[:, j])
        np.testing.assert_allclose(B[others, j], expected, atol=1e-5)
        assert B[j, j] == 0


def test_a_planted_couple_is_found() -> None:
    train, fold = pairs()
    model = item_item(train, fold)
    scores = model.scores(fold.history)(0, 400)
    scores[fold.history.users, fold.history.items] = -np.inf
    assert (scores.argmax(axis=1) == fold.targets.items).mean() > 0.99
    assert model.limits == ""


def test_a_large_catalogue_and_many_users_are_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ITEMS", 20)
    monkeypatch.setattr(module, "MOST_EVENTS", 1_000)
    train, fold = pairs()
    model = item_item(train, fold)
    assert isinstance(model, ItemItem)
    assert model.weights.shape == (20, 20)
    assert model.limits == "its 20 most frequent items only, learned from 200 users"
    block = model.scores(fold.history)(0, 5)
    outside = np.setdiff1d(np.arange(30), model.head)
    assert np.abs(block[:, outside]).max() <= 1e-6
    assert len(evenly(train, most_events=500).user_ptr) == 101


def test_of_few_people_a_large_catalogue_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its scores are those of the weights, outside of what a user has."""
    rng = np.random.default_rng(3)
    rows = rng.random((20, 50)) < 0.2
    users, items = np.nonzero(rows)
    size: dict[str, Any] = {"num_users": 20, "num_items": 50, "value_range": (0, 1)}
    train = Interactions.from_columns(users, items, None, **size, kind="clicks")
    X = sparse.csr_matrix(rows, dtype=np.float64)
    found = few_people(X, ridge=2.0).scores(train)(3, 20)
    expected = rows[3:] @ ease(rows.T.astype(np.float64) @ rows, ridge=2.0)
    np.testing.assert_allclose(found[~rows[3:]], expected[~rows[3:]], atol=1e-5)
    monkeypatch.setattr(module, "MOST_ITEMS", 30)
    assert isinstance(item_item(train, Fold(train, train)), FewPeople)
