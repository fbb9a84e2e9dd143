from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import fedrec
from fedrec.data.interactions import Interactions
from fedrec.factorization import least_squares
from fedrec.factorization.collective import project_psd
from fedrec.factorization.least_squares import (
    solve_clicks,
    solve_packed,
    solve_rows,
    solve_users,
)
from fedrec.numerics.segments import pack, unpack

Floats = npt.NDArray[np.floating]


@pytest.fixture(params=[-1, 1 << 22], ids=["compiled", "few"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of many items, and NumPy's form of few."""
    monkeypatch.setattr(least_squares, "FEW_ITEMS", request.param)


def some_ratings(
    rng: np.random.Generator, *, users: int = 37, items: int = 29, events: int = 900
) -> Interactions:
    return Interactions.from_columns(
        np.minimum(rng.geometric(0.08, events) - 1, users - 1),
        rng.integers(0, items, events),
        rng.standard_normal(events).astype(np.float32),
        num_users=users,
        num_items=items,
        value_range=(-9, 9),
    )


def directly(data: Interactions, V: Floats, ridge: Floats, weights: Floats, base: Floats) -> Floats:
    solved = np.zeros((data.num_users, V.shape[1]))
    for k in range(data.num_users):
        s = slice(data.user_ptr[k], data.user_ptr[k + 1])
        X = V[data.items[s]].astype(np.float64)
        w = weights[s]
        A = base + (X * w[:, None]).T @ X + ridge[k] * np.eye(V.shape[1])
        solved[k] = np.linalg.solve(A, X.T @ (w * data.values[s]))
    return solved


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("d", [1, 2, 5, 8, 19, 32])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-11)])
def test_user_solves_equal_numpy_s(d: int, dtype: npt.DTypeLike, tolerance: float) -> None:
    rng = np.random.default_rng(d)
    data = some_ratings(rng)
    V = rng.standard_normal((data.num_items, d)).astype(dtype)
    weights = rng.random(len(data)).astype(dtype)
    ridge = 0.3 * np.maximum(np.diff(data.user_ptr), 1).astype(np.float64)
    found = solve_users(data, V, ridge=ridge, weights=weights)
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found,
        directly(data, V, ridge, weights.astype(np.float64), np.zeros((d, d))),
        atol=tolerance,
    )


@pytest.mark.usefixtures("form")
def test_clicks_are_solved_as_by_hu_koren_and_volinsky() -> None:
    rng = np.random.default_rng(0)
    data = some_ratings(rng)
    data = Interactions(
        data.user_ptr, data.items, np.ones(len(data), np.float32), data.num_items, (0, 1), "clicks"
    )
    V = rng.standard_normal((data.num_items, 6))
    alpha = 7.0
    found = solve_clicks(data.user_ptr, data.items, V, ridge=0.5, alpha=alpha)
    expected = (
        directly(data, V, np.full(data.num_users, 0.5), np.full(len(data), alpha), V.T @ V)
        * (1 + alpha)
        / alpha
    )
    np.testing.assert_allclose(found, expected, atol=1e-11)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_solution_does_not_depend_on_the_batch_it_came_in(dtype: npt.DTypeLike) -> None:
    rng = np.random.default_rng(1)
    data = some_ratings(rng)
    V = rng.standard_normal((data.num_items, 11)).astype(dtype)
    together = solve_users(data, V, ridge=0.1)
    for users in (np.array([7]), np.array([30, 2, 7]), rng.permutation(data.num_users)):
        assert (
            solve_users(data.users_subset(users), V, ridge=0.1).tobytes()
            == together[users].tobytes()
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-11)])
@pytest.mark.parametrize("d", [1, 6, 24, 33])
def test_packed_solves_equal_numpy_s_and_need_no_company(
    dtype: npt.DTypeLike, tolerance: float, d: int
) -> None:
    rng = np.random.default_rng(d)
    X = rng.standard_normal((13, d + 5, d))
    A = X.swapaxes(1, 2) @ X
    b = rng.standard_normal((13, d))
    ridge = rng.random(13) + 1
    found = solve_packed(pack(A).astype(dtype), b.astype(dtype), ridge=ridge)
    np.testing.assert_allclose(
        found,
        np.linalg.solve(A + ridge[:, None, None] * np.eye(d), b[..., None])[..., 0],
        atol=tolerance,
    )
    alone = solve_packed(pack(A[4:5]).astype(dtype), b[4:5].astype(dtype), ridge=ridge[4:5])
    assert alone.tobytes() == found[4:5].tobytes()


@pytest.mark.usefixtures("form")
def test_a_matrix_that_is_not_positive_definite_is_named_and_not_solved() -> None:
    A = np.stack([np.eye(3), np.diag([1.0, -1.0, 1.0]), np.eye(3)])
    with pytest.raises(
        ValueError, match="1 of 3 systems are not positive definite, the first is row 1"
    ):
        solve_packed(pack(A), np.ones((3, 3)), ridge=0.0)
    with pytest.raises(ValueError, match="not positive definite"):
        solve_rows(np.array([0, 1]), np.zeros(1, np.int32), np.ones((1, 2)), ridge=0.0)
    rows = np.array([0, 1, 2]), np.zeros(2, np.int32), np.ones((1, 2))
    with pytest.raises(ValueError, match="1 of 2 systems are not positive definite"):
        solve_rows(*rows, ridge=np.array([3.0, -9.0]))


@pytest.mark.parametrize("d", [1, 7])
def test_projection_clips_the_eigenvalues_that_numpy_finds(d: int) -> None:
    rng = np.random.default_rng(d)
    X = rng.standard_normal((21, d, d))
    A = X + X.swapaxes(1, 2)
    values, vectors = np.linalg.eigh(A)
    expected = (vectors * np.maximum(values, 0.25)[:, None, :]) @ vectors.swapaxes(1, 2)
    found = unpack(project_psd(pack(A), d, floor=0.25), d)
    np.testing.assert_allclose(found, expected, atol=1e-12 * d)


def test_projection_leaves_a_positive_definite_matrix_as_it_is_and_refuses_what_is_not_finite() -> None:  # fmt: skip
    X = np.random.default_rng(3).standard_normal((4, 20, 9))
    packed = pack(X.swapaxes(1, 2) @ X)
    assert project_psd(packed, 9).tobytes() == packed.tobytes()
    packed[2, 5] = np.nan
    with pytest.raises(ValueError, match="1 matrices have no eigenvalues, the first is row 2"):
        project_psd(packed, 9)


@pytest.mark.slow
def test_released_models_of_clicks_are_the_same_whether_numpy_solved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Forms differ in the last bits; the grid of reports absorbs them."""
    train = fedrec.Dataset.planted("small", kind="clicks").split("random", seed=1)[0]
    found = []
    for few in (-1, 1 << 22):
        monkeypatch.setattr(least_squares, "FEW_ITEMS", few)
        model = fedrec.MatrixFactorization(noise="seeded").fit(train)
        model.save(tmp_path / str(few))
        found.append((tmp_path / str(few) / "model.safetensors").read_bytes())
    assert found[0] == found[1]


@pytest.mark.usefixtures("form")
def test_rows_without_events_are_zero() -> None:
    none = np.zeros(3, np.int64)
    assert not solve_clicks(none, none[:0].astype(np.int32), np.eye(4), ridge=1.0, alpha=2.0).any()
