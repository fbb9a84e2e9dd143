import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.factorization.least_squares import alternate_clicks


def test_one_iteration_on_clicks_is_that_of_dense_weighted_least_squares() -> None:
    rng = np.random.default_rng(6)
    clicks = rng.random((30, 20)) < 0.2
    users, items = np.nonzero(clicks)
    data = Interactions.from_columns(
        users, items, None, num_users=30, num_items=20, value_range=(0, 1), kind="clicks"
    )
    (step,) = alternate_clicks(
        data, width=4, ridge=0.7, alpha=5.0, iterations=1, rng=np.random.default_rng(7)
    )
    U = step.model.U.astype(np.float64)
    for j in range(20):
        confidence = 1 + 5.0 * clicks[:, j]
        expected = np.linalg.solve(
            (U * confidence[:, None]).T @ U + 0.7 * np.eye(4), U.T @ (confidence * clicks[:, j])
        )
        np.testing.assert_allclose(
            step.model.V[j], expected, atol=2e-4 * np.abs(step.model.V).max()
        )
