"""Tables at the edge of what can be learned from: whatever is trained on them ranks by numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedrec

ROWS: dict[str, tuple[list[int], list[int], list[float]]] = {
    "one user": ([1] * 5, [*range(5)], [1.0, 2.0, 3.0, 4.0, 5.0]),
    "two users of two items": ([1, 1, 2, 2], [1, 2, 1, 2], [1.0, 5.0, 5.0, 1.0]),
    "one rating for all": ([n // 5 for n in range(100)], [n * 7 % 20 for n in range(100)], [3.0] * 100),
    "items of one user each": ([n // 3 for n in range(90)], [*range(90)], [1.0 + n % 5 for n in range(90)]),
    "everybody has everything": (
        [n // 20 for n in range(400)],
        [n % 20 for n in range(400)],
        [1.0 + n * n % 5 for n in range(400)],
    ),
    "one user has nearly all": (
        [0] * 80 + [1 + n // 2 for n in range(20)],
        [*range(80), *range(20)],
        [1.0 + n % 5 for n in range(100)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("epsilon", [0.1, 5.0, math.inf])
@pytest.mark.parametrize("rated", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_lists_are_ordered_by_finite_numbers(name: str, rated: bool, epsilon: float) -> None:
    users, items, ratings = ROWS[name]
    columns: dict[str, Any] = {"user": users, "item": items}
    told: dict[str, Any] = {}
    if rated:
        columns["rating"] = ratings
        told = {"rating_range": (1, 5)}
    data = fedrec.Dataset.from_frame(pl.DataFrame(columns), **told)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        model = fedrec.MatrixFactorization(epsilon=epsilon, noise="seeded").fit(data)
        scores = model.recommend(history=[items[0]], k=3)["score"]
    assert np.isfinite(model.item_factors).all()
    assert np.isfinite(scores.to_numpy()).all()


@pytest.mark.filterwarnings("ignore:.*tell nothing:fedrec.DataWarning")
@pytest.mark.parametrize("vectors", [np.zeros((20, 3)), np.ones((20, 3)), np.eye(20)])
@pytest.mark.parametrize("rated", [True, False])
def test_lists_beside_public_vectors_that_say_nothing_are_ordered_by_finite_numbers(
    rated: bool, vectors: np.ndarray[Any, Any]
) -> None:
    users, items, ratings = ROWS["everybody has everything"]
    columns: dict[str, Any] = {"user": users, "item": items}
    told: dict[str, Any] = {}
    if rated:
        columns["rating"] = ratings
        told = {"rating_range": (1, 5)}
    told["item_vectors"] = {"item": [*range(20)], "vector": vectors.tolist()}
    data = fedrec.Dataset.from_frame(columns, **told)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        model = fedrec.MatrixFactorization(epsilon=5, noise="seeded").fit(data)
        scores = model.recommend(history=[items[0]], k=3)["score"]
    assert np.isfinite(scores.to_numpy()).all()
