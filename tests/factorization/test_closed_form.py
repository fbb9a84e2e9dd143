import numpy as np
import pytest

from fedrec.factorization.am_ssp import recipe
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.numerics.segments import pack


def noisy_statistics(m: int = 40, d: int = 5) -> tuple[ItemStatistics, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((m, d, d))
    A = A + A.transpose(0, 2, 1)
    b = rng.standard_normal((m, d))
    return ItemStatistics(pack(A), b), A, b


def test_the_printed_update_is_the_pseudo_inverse_of_the_projection() -> None:
    statistics, A, b = noisy_statistics()
    for j, theta in enumerate(recipe.pseudo_inverse(statistics, ridge=0.3)):
        values, Q = np.linalg.eigh(A[j] + 0.3 * np.eye(5))
        projection = (Q * np.maximum(values, 0)) @ Q.T
        np.testing.assert_allclose(
            theta, np.linalg.pinv(projection, hermitian=True) @ b[j], rtol=1e-6, atol=1e-9
        )


def test_the_projected_update_solves_with_the_ridge_after_projection() -> None:
    statistics, A, b = noisy_statistics()
    ridges = np.linspace(0.1, 2, len(A))
    for j, theta in enumerate(recipe.projected(statistics, ridge=ridges)):
        values, Q = np.linalg.eigh(A[j])
        np.testing.assert_allclose(
            ((Q * np.maximum(values, 0)) @ Q.T + ridges[j] * np.eye(5)) @ theta, b[j], atol=1e-9
        )


def test_without_noise_both_are_the_ridge_solution() -> None:
    rng = np.random.default_rng(1)
    U = rng.standard_normal((30, 4))
    V = rng.standard_normal((7, 4))
    A = np.broadcast_to(U.T @ U, (7, 4, 4))
    b = V @ U.T @ U
    statistics = ItemStatistics(pack(A), b)
    np.testing.assert_allclose(recipe.pseudo_inverse(statistics, ridge=0.0), V, atol=1e-10)
    exact = np.linalg.solve(U.T @ U + 0.5 * np.eye(4), b.T).T
    np.testing.assert_allclose(recipe.projected(statistics, ridge=0.5), exact, atol=1e-10)
    np.testing.assert_allclose(recipe.pseudo_inverse(statistics, ridge=0.5), exact, atol=1e-10)


def test_an_item_that_noise_made_negative_gets_the_zero_vector_as_printed() -> None:
    statistics = ItemStatistics(pack(-np.eye(3)[None]), np.ones((1, 3)))
    np.testing.assert_array_equal(recipe.pseudo_inverse(statistics, ridge=0.0), np.zeros((1, 3)))


def test_projection_without_a_ridge_is_refused() -> None:
    with pytest.raises(ValueError, match="positive ridge, found 0"):
        recipe.projected(noisy_statistics()[0], ridge=0.0)
