"""Left-out residuals are those of a user who never gave the rating; at the truth they carry nothing of the rating's own influence."""

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.factorization.leave_one_out import left_out


def ratings_of(sizes: list[int], items: int, rng: np.random.Generator) -> Interactions:
    chosen = np.concatenate([np.sort(rng.choice(items, size, replace=False)) for size in sizes])
    users = np.repeat(np.arange(len(sizes)), sizes)
    shape = {"num_users": len(sizes), "num_items": items, "value_range": (1.0, 5.0), "kind": "ratings"}
    return Interactions.from_columns(users, chosen, np.ones(len(users)), **shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 6])
def test_every_rating_is_left_out_as_if_it_had_not_been_given(width: int) -> None:
    """Users with fewer ratings than directions, as many, more, one and none: one solve without each rating, as the second code."""
    rng = np.random.default_rng(1)
    mine = ratings_of([0, 1, 4, 6, 25], 30, rng)
    phi, variance, t = rng.standard_normal((30, 6)), rng.uniform(0.2, 2, 30), rng.standard_normal(len(mine))
    found = left_out(mine, phi, t, variance, width=width)
    for e, user in enumerate(mine.users):
        others = np.flatnonzero((mine.users == user) & (np.arange(len(mine)) != e))
        X, v = phi[mine.items[others]], variance[mine.items[others]]
        S = np.linalg.inv(np.eye(6) + (X / v[:, None]).T @ X)
        w, x, own = S @ (X.T @ (t[others] / v)), phi[mine.items[e]], variance[mine.items[e]]
        np.testing.assert_allclose(found.residuals[e], t[e] - x @ w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.vectors[e], w[:width], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.noise_share[e], own / (own + x @ S @ x), rtol=0, atol=1e-10)


def test_a_user_is_solved_alike_in_any_batch() -> None:
    rng = np.random.default_rng(2)
    mine = ratings_of([3, 40, 9, 12], 50, rng)
    phi, variance, t = rng.standard_normal((50, 8)), rng.uniform(0.2, 2, 50), rng.standard_normal(len(mine))
    whole = left_out(mine, phi, t, variance, width=8)
    for user in range(4):
        a, b = mine.user_ptr[user : user + 2]
        alone = left_out(mine.users_subset(np.array([user])), phi, t[a:b], variance, width=8)
        assert alone.vectors.tobytes() == whole.vectors[a:b].tobytes()
        assert alone.residuals.tobytes() == whole.residuals[a:b].tobytes()


def test_at_the_truth_the_step_is_zero_though_the_noise_is_believed_to_be_twice_too_small() -> None:
    """In-sample residuals are off by most of phi where 5 ratings must determine 8 directions; left-out ones are off by nothing.

    30,000 products of two independent numbers of mean square s each: their mean passes 4 s / sqrt(30,000) with probability 1e-4.
    """
    rng, items = np.random.default_rng(3), 12
    mine = ratings_of([5] * 6000, items, rng)
    phi, W = 0.5 * rng.standard_normal((items, 8)), rng.standard_normal((6000, 8))
    t = np.einsum("ed,ed->e", W[mine.users], phi[mine.items]) + rng.standard_normal(len(mine))
    found = left_out(mine, phi, t, np.full(items, 0.5), width=8)
    along = np.einsum("ed,ed->e", found.vectors, phi[mine.items])  # w without the rating, in the direction of its item
    inside = t - np.einsum("ed,ed->e", found.vectors, phi[mine.items])
    np.testing.assert_allclose(inside, found.residuals, atol=1e-9)
    calibrated = float(np.mean(found.residuals * along)) / float(np.mean(along**2))
    # believed noise too small makes w too long, which the step sees as predictions to be shortened: no more than by that
    assert -0.5 < calibrated < 0
    right = left_out(mine, phi, t, np.full(items, 1.0), width=8)
    product = right.residuals * np.einsum("ed,ed->e", right.vectors, phi[mine.items])
    assert abs(float(product.mean())) < 4 * float(product.std()) / np.sqrt(len(product))


@pytest.mark.parametrize("width", [-1, 7])
def test_shapes_that_do_not_fit_are_refused_before_compiled_code(width: int) -> None:
    """A width beyond the directions would be read past the end of the array: it comes from the server."""
    mine = ratings_of([3, 8], 10, np.random.default_rng(4))
    phi, t, variance = np.ones((10, 6)), np.zeros(len(mine)), np.ones(10)
    with pytest.raises(ValueError, match="do not fit"):
        left_out(mine, phi, t, variance, width=width)
    for bad in ((phi[:9], t, variance), (phi, t[:-1], variance), (phi, t, variance[:-1])):
        with pytest.raises(ValueError, match="do not fit"):
            left_out(mine, *bad, width=2)
