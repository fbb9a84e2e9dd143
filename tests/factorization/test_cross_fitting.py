"""Cross-fitted residuals are those of a user who never gave a fold's ratings; at the truth they
carry nothing of their own influence."""

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.factorization.default_ratings import client, cross_fitting
from fedrec.factorization.default_ratings.cross_fitting import cross_fit


@pytest.fixture(params=["few", "many"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's form, and the compiled one of many items."""
    if request.param == "many":
        for module in (client, cross_fitting):
            monkeypatch.setattr(module, "FEW_ITEMS", -1)


def ratings_of(sizes: list[int], items: int, rng: np.random.Generator) -> Interactions:
    chosen = np.concatenate([np.sort(rng.choice(items, size, replace=False)) for size in sizes])
    users = np.repeat(np.arange(len(sizes)), sizes)
    shape = {
        "num_users": len(sizes),
        "num_items": items,
        "value_range": (1.0, 5.0),
        "kind": "ratings",
    }
    return Interactions.from_columns(users, chosen, np.ones(len(users)), **shape)  # type: ignore[arg-type]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("folds", [1, 3, 40])
@pytest.mark.parametrize("width", [1, 6])
def test_every_fold_is_solved_as_if_its_ratings_had_not_been_given(width: int, folds: int) -> None:
    """Users with fewer ratings than directions, as many, more, one and none: one solve without each
    fold, as the second code."""
    rng = np.random.default_rng(1)
    mine = ratings_of([0, 1, 4, 6, 25], 30, rng)
    phi = rng.standard_normal((30, 6))
    variance = rng.uniform(0.2, 2, 30)
    t = rng.standard_normal(len(mine))
    found = cross_fit(mine, phi, t, variance, width=width, folds=folds)
    expected = np.zeros((5 * folds, width))
    for e, user in enumerate(mine.users):
        fold = mine.items[e] % folds
        others = np.flatnonzero((mine.users == user) & (mine.items % folds != fold))
        X = phi[mine.items[others]]
        v = variance[mine.items[others]]
        S = np.linalg.inv(np.eye(6) + (X / v[:, None]).T @ X)
        w = S @ (X.T @ (t[others] / v))
        x = phi[mine.items[e]]
        own = variance[mine.items[e]]
        expected[user * folds + fold] = w[:width]
        np.testing.assert_allclose(found.residuals[e], t[e] - x @ w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(
            found.noise_share[e], own / (own + x @ S @ x), rtol=0, atol=1e-10
        )
    np.testing.assert_allclose(found.vectors, expected, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("form")
def test_a_user_is_solved_alike_in_any_batch() -> None:
    rng = np.random.default_rng(2)
    mine = ratings_of([3, 40, 9, 12], 50, rng)
    phi = rng.standard_normal((50, 8))
    variance = rng.uniform(0.2, 2, 50)
    t = rng.standard_normal(len(mine))
    whole = cross_fit(mine, phi, t, variance, width=8, folds=4)
    for user in range(4):
        a, b = mine.user_ptr[user : user + 2]
        alone = cross_fit(
            mine.users_subset(np.array([user])), phi, t[a:b], variance, width=8, folds=4
        )
        assert alone.vectors.tobytes() == whole.vectors[4 * user : 4 * user + 4].tobytes()
        assert alone.residuals.tobytes() == whole.residuals[a:b].tobytes()


@pytest.mark.usefixtures("form")
def test_at_the_truth_the_step_is_zero_though_the_noise_is_believed_to_be_twice_too_small() -> None:
    """In-sample residuals are off by most of phi where 5 ratings must determine 8 directions;
    cross-fitted ones are off by nothing.

    30,000 products of two independent numbers of mean square s each: their mean passes 4 s /
    sqrt(30,000) with probability 1e-4.
    """
    rng = np.random.default_rng(3)
    items = 12
    folds = 4
    mine = ratings_of([5] * 6000, items, rng)
    phi = 0.5 * rng.standard_normal((items, 8))
    W = rng.standard_normal((6000, 8))
    t = np.einsum("ed,ed->e", W[mine.users], phi[mine.items]) + rng.standard_normal(len(mine))
    owners = mine.users * folds + mine.items % folds
    found = cross_fit(mine, phi, t, np.full(items, 0.5), width=8, folds=folds)
    # w without the fold, in the direction of its item
    along = np.einsum("ed,ed->e", found.vectors[owners], phi[mine.items])
    np.testing.assert_allclose(t - along, found.residuals, atol=1e-9)
    calibrated = float(np.mean(found.residuals * along)) / float(np.mean(along**2))
    # believed noise too small makes w too long, which the step sees as predictions to be shortened:
    # no more than by that
    assert -0.5 < calibrated < 0
    right = cross_fit(mine, phi, t, np.full(items, 1.0), width=8, folds=folds)
    product = right.residuals * np.einsum("ed,ed->e", right.vectors[owners], phi[mine.items])
    assert abs(float(product.mean())) < 4 * float(product.std()) / np.sqrt(len(product))


@pytest.mark.parametrize("width", [-1, 7])
def test_shapes_that_do_not_fit_are_refused_before_compiled_code(width: int) -> None:
    """A width beyond the directions would be read past the end of the array: it comes from the
    server."""
    mine = ratings_of([3, 8], 10, np.random.default_rng(4))
    phi = np.ones((10, 6))
    t = np.zeros(len(mine))
    variance = np.ones(10)
    with pytest.raises(ValueError, match="do not fit"):
        cross_fit(mine, phi, t, variance, width=width, folds=2)
    for bad in ((phi[:9], t, variance), (phi, t[:-1], variance), (phi, t, variance[:-1])):
        with pytest.raises(ValueError, match="do not fit"):
            cross_fit(mine, *bad, width=2, folds=2)
    with pytest.raises(ValueError, match="one fold or more"):
        cross_fit(mine, phi, t, variance, width=2, folds=0)


@pytest.mark.usefixtures("form")
def test_a_posterior_mean_is_that_of_all_ratings_at_once() -> None:
    """Users with none, one, fewer and more ratings than directions, each as in any batch."""
    rng = np.random.default_rng(5)
    mine = ratings_of([0, 1, 4, 6, 25], 30, rng)
    phi = rng.standard_normal((30, 6))
    variance = rng.uniform(0.2, 2, 30)
    t = rng.standard_normal(len(mine))
    found = client.posterior_means(mine, phi, t, variance)
    for user in range(5):
        events = slice(*mine.user_ptr[user : user + 2])
        X = phi[mine.items[events]]
        v = variance[mine.items[events]]
        A = np.eye(6) + (X / v[:, None]).T @ X
        np.testing.assert_allclose(found[user], np.linalg.solve(A, X.T @ (t[events] / v)))
        alone = mine.users_subset(np.array([user]))
        one = client.posterior_means(alone, phi, t[events], variance)
        assert one.tobytes() == found[user : user + 1].tobytes()


def test_a_posterior_mean_is_the_same_where_items_are_too_many_to_multiply_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(6)
    monkeypatch.setattr(client, "FEW_ITEMS", 0)
    mine = ratings_of([1, 4, 9, 17], 30, rng)
    phi = rng.standard_normal((30, 20))
    known = rng.standard_normal(len(mine)), rng.uniform(0.2, 2, 30)
    together = client.posterior_means(mine, phi, *known)
    monkeypatch.setattr(client, "_GRAM_ITEMS", 29)
    one_by_one = client.posterior_means(mine, phi, *known)
    np.testing.assert_allclose(one_by_one, together, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("width", [0, 1])
def test_many_ratings_along_one_direction_are_fitted_as_along_two_of_which_one_is_zero(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    monkeypatch.setattr(cross_fitting, "FEW_ITEMS", -1)
    mine = ratings_of([0, 1, 4, 25], 30, rng)
    phi = np.column_stack([rng.standard_normal(30), np.zeros(30)])
    known = rng.standard_normal(len(mine)), rng.uniform(0.2, 2, 30)
    one = cross_fit(mine, phi[:, :1], *known, width=width, folds=3)
    two = cross_fit(mine, phi, *known, width=width, folds=3)
    for name in ("residuals", "vectors", "noise_share"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-9, atol=1e-12)
