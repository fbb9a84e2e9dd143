"""Nearest neighbours by cosine."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.evaluation.toplists import nearest


def test_planted_neighbours_are_found_by_direction_and_not_by_length() -> None:
    V = np.array([[1, 0], [9, 1], [1, 1], [0, 2], [-1, 0]], np.float32)
    found = nearest(V, np.array([0]), k=3)[0]
    assert found.query == 0
    assert found.items == (1, 2, 3)
    assert found.similarities == pytest.approx((9 / np.sqrt(82), 1 / np.sqrt(2), 0.0))


def test_the_query_is_left_out_even_beside_its_copy_and_zero_vectors_are_similar_to_nothing() -> None:  # fmt: skip
    V = np.array([[1, 1], [1, 1], [0, 0]], np.float32)
    assert nearest(V, np.array([1]), k=5)[0].items == (0, 2)
    assert nearest(V, np.array([2]), k=1)[0].similarities == (0.0,)
