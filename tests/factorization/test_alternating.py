import itertools
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.interactions import Interactions, order_by_item
from fedrec.factorization.alternating import RatingModel, RatingRecipe, alternate_clicks, alternate_ratings
from fedrec.factorization.least_squares import count_ridge


def planted(rng: np.random.Generator, *, noise_std: float) -> Interactions:
    """120 x 80 ratings of rank 2 with biases, 60% of them seen."""
    U, V, a, c = rng.standard_normal((120, 2)), rng.standard_normal((80, 2)), rng.standard_normal(120), rng.standard_normal(80)
    users, items = np.nonzero(rng.random((120, 80)) < 0.6)
    y = 3 + a[users] + c[items] + (U[users] * V[items]).sum(axis=1) + noise_std * rng.standard_normal(len(users))
    return Interactions.from_columns(users, items, y, num_users=120, num_items=80, value_range=(-20.0, 20.0))


def objective(data: Interactions, model: RatingModel, recipe: RatingRecipe) -> float:
    residuals = data.values.astype(np.float64) - model.predict(data.users, data.items)
    order = order_by_item(data.user_ptr, data.items, data.num_items)
    users = count_ridge(data.user_ptr, recipe.user_ridge, power=recipe.ridge_power)
    items = count_ridge(order.item_ptr, recipe.item_ridge, power=recipe.ridge_power)
    sizes = (model.U**2).sum(axis=1) + model.user_bias**2, (model.V**2).sum(axis=1) + model.item_bias**2
    return float((residuals**2).sum() + users @ sizes[0] + items @ sizes[1])


def test_a_planted_factorisation_with_biases_is_found() -> None:
    data = planted(np.random.default_rng(0), noise_std=0.0)
    *_, last = alternate_ratings(data, RatingRecipe(2, 1e-5, 1e-5, init_std=1.0), iterations=30, rng=np.random.default_rng(1))
    assert last.iteration == 30
    assert last.train_rmse < 0.01


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_the_objective_never_rises(power: float) -> None:
    data = planted(np.random.default_rng(2), noise_std=1.0)
    recipe = RatingRecipe(3, 0.1, 0.2, ridge_power=power)
    losses = [objective(data, s.model, recipe) for s in alternate_ratings(data, recipe, iterations=8, rng=np.random.default_rng(3))]
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(losses))


def test_the_reported_error_is_that_of_the_model_on_the_training_ratings() -> None:
    data = planted(np.random.default_rng(4), noise_std=0.5)
    (step,) = alternate_ratings(data, RatingRecipe(2, 0.1, 0.1), iterations=1, rng=np.random.default_rng(5))
    m = step.model
    predicted = m.mean + m.user_bias[data.users] + m.item_bias[data.items] + (m.U[data.users] * m.V[data.items]).sum(axis=1)
    assert step.train_rmse == pytest.approx(float(np.sqrt(np.mean((data.values - predicted) ** 2))), abs=1e-5)


def test_one_iteration_on_clicks_is_that_of_dense_weighted_least_squares() -> None:
    rng = np.random.default_rng(6)
    clicks = rng.random((30, 20)) < 0.2
    users, items = np.nonzero(clicks)
    data = Interactions.from_columns(users, items, None, num_users=30, num_items=20, value_range=(0, 1), kind="clicks")
    (step,) = alternate_clicks(data, width=4, ridge=0.7, alpha=5.0, iterations=1, rng=np.random.default_rng(7))
    U = step.model.U.astype(np.float64)
    for j in range(20):
        confidence = 1 + 5.0 * clicks[:, j]
        expected = np.linalg.solve((U * confidence[:, None]).T @ U + 0.7 * np.eye(4), U.T @ (confidence * clicks[:, j]))
        np.testing.assert_allclose(step.model.V[j], expected, atol=2e-4 * np.abs(step.model.V).max())


@pytest.mark.slow
@pytest.mark.real_data
def test_on_movielens_1m_alternating_reaches_an_error_of_eighty_five_hundredths(real_data: Path) -> None:
    with (real_data / "ml-1m" / "ratings.dat").open() as file:
        table = np.array([line.split("::")[:3] for line in file], np.int64)
    users, items = (np.unique(table[:, column], return_inverse=True)[1] for column in (0, 1))
    part = np.random.default_rng(0).random(len(table))

    def rows(mask: np.ndarray) -> Interactions:
        y = table[mask, 2].astype(np.float32)
        return Interactions.from_columns(users[mask], items[mask], y, num_users=6040, num_items=3706, value_range=(1.0, 5.0))

    train, test = rows(part < 0.8), rows(part >= 0.9)
    *_, last = alternate_ratings(train, RatingRecipe(32, 0.04, 0.04, constant_ridge=8.0), iterations=20, rng=np.random.default_rng(1))
    predicted = np.clip(last.model.predict(test.users, test.items), 1, 5)
    assert float(np.sqrt(np.mean((test.values - predicted) ** 2))) < 0.852
