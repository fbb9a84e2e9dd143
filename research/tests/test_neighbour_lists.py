"""Lists of neighbours by inner product, and the share of them that two models have in common."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec_research.papers.ada_dpals_runs import neighbour_lists, overlap


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
