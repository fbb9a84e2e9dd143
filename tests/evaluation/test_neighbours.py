"""Nearest neighbours by cosine."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.evaluation.neighbours import nearest, neighbour_lists, overlap


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


def test_lists_by_inner_product_are_those_of_a_full_sort_across_blocks() -> None:
    V = np.random.default_rng(1).normal(size=(600, 4))  # more than one block of rows
    products = V @ V.T
    np.fill_diagonal(products, -np.inf)
    np.testing.assert_array_equal(neighbour_lists(V, k=7), np.argsort(-products, axis=1)[:, :7])


def test_long_vectors_are_neighbours_by_inner_product_and_not_by_cosine() -> None:
    V = np.array([[1, 0], [2, 0.1], [10, 10]], np.float32)
    assert neighbour_lists(V, k=1)[0] == 2
    assert neighbour_lists(V / np.linalg.norm(V, axis=1, keepdims=True), k=1)[0] == 1


def test_overlap_is_the_share_of_the_reference_found_in_any_order() -> None:
    reference = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert overlap(np.array([[4, 3, 2, 1], [5, 9, 10, 11]]), reference) == pytest.approx(
        [1.0, 0.25]
    )
    with pytest.raises(ValueError, match="align"):
        overlap(reference[:, :2], reference)
    with pytest.raises(ValueError, match="k = 3"):
        neighbour_lists(np.eye(3), k=3)
