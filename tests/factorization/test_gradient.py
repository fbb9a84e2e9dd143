import dataclasses

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.encoders import items
from fedrec.encoders.items import EncoderParameters, ItemInputs
from fedrec.errors import SettingsError
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp.gradient import Adam, Constant, Descent, GradientDescent, Optimizer
from fedrec.factorization.item_statistics import ItemStatistics
from fedrec.numerics.segments import pack

Floats = npt.NDArray[np.floating]
M = 12
D = 4


@dataclasses.dataclass(frozen=True)
class Examples:
    """Frozen user vectors (n, d), items (n,), labels (n,)."""

    U: Floats
    items: npt.NDArray[np.int64]
    y: Floats


def some_examples(seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    n = 300
    return Examples(rng.standard_normal((n, D)), rng.integers(0, M, n), rng.standard_normal(n))


def statistics_of(e: Examples) -> ItemStatistics:
    """AM-SSP eq. 5, written as it stands."""
    A = np.zeros((M, D, D))
    b = np.zeros((M, D))
    for u, j, y in zip(e.U, e.items, e.y, strict=True):
        A[j] += np.outer(u, u)
        b[j] += y * u
    return ItemStatistics(pack(A), b)


def loss_3(V: Floats, e: Examples, ridge: float) -> float:
    """AM-SSP eq. 3 with the regulariser of App. E, from the examples themselves."""
    return float(
        0.5 * np.sum((np.sum(e.U * V[e.items], axis=1) - e.y) ** 2) + 0.5 * ridge * np.sum(V**2)
    )


def a_start(*, identities: bool = False) -> tuple[ItemInputs, EncoderParameters]:
    rng = np.random.default_rng(3)
    counts = rng.poisson(0.5, (M, 9)).astype(np.float32)
    features = PublicFeatures({"word": FeatureBag(tuple("abcdefghi"), sparse.csr_matrix(counts))})
    inputs = items.prepare(features, identities=identities)
    theta = items.init(inputs, D, rng=rng)
    return inputs, EncoderParameters(
        theta.embeddings.astype(float), theta.dense.astype(float), theta.bias.astype(float)
    )


@pytest.mark.slow
def test_residuals_are_gram_times_embedding_minus_moment_plus_ridge() -> None:
    rng = np.random.default_rng(4)
    for d in (1, 2, 7, 16, 33):
        A = rng.standard_normal((5, d, d))
        A = A + A.transpose(0, 2, 1)
        b = rng.standard_normal((5, d))
        V = rng.standard_normal((3, d))
        ridge = rng.random(5)
        chosen = np.array([4, 0, 2])
        R, losses = gradient.residuals(ItemStatistics(pack(A), b), V, ridge=ridge, items=chosen)
        np.testing.assert_allclose(
            R,
            np.einsum("jrc,jc->jr", A[chosen], V) - b[chosen] + ridge[chosen, None] * V,
            atol=1e-12,
        )
        expected = [
            0.5 * v @ A[j] @ v - b[j] @ v + 0.5 * ridge[j] * v @ v
            for v, j in zip(V, chosen, strict=True)
        ]
        np.testing.assert_allclose(losses, expected, atol=1e-11)


def test_the_gradient_is_that_of_the_loss_over_examples_by_finite_differences() -> None:
    e, (inputs, theta) = some_examples(), a_start()
    g, _ = gradient.gradient(theta, inputs, statistics_of(e), ridge=0.7)
    full = np.zeros_like(theta.embeddings)
    full[g.features] = g.embeddings
    for name, analytic in {"embeddings": full, "dense": g.dense, "bias": g.bias}.items():
        for position in range(analytic.size):
            ends = []
            for sign in (1, -1):
                tables = {k: v.copy() for k, v in vars(theta).items()}
                tables[name].flat[position] += sign * 1e-5
                ends.append(loss_3(items.forward(EncoderParameters(**tables), inputs), e, 0.7))
            assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(analytic.flat[position], abs=2e-5), (
                name
            )


def test_differences_of_the_reported_loss_are_differences_of_the_loss_over_examples() -> None:
    e, (inputs, theta) = some_examples(), a_start()
    other = EncoderParameters(theta.embeddings * 0.5, theta.dense, theta.bias + 1)
    reported = [
        gradient.gradient(t, inputs, statistics_of(e), ridge=0.7)[1] for t in (theta, other)
    ]
    true = [loss_3(items.forward(t, inputs), e, 0.7) for t in (theta, other)]
    assert reported[1] - reported[0] == pytest.approx(true[1] - true[0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "rate", "steps"),
    [(GradientDescent(), 0.004, 2000), (Adam(), 0.05, 500)],
)
def test_enough_steps_on_exact_statistics_reach_the_minimiser(
    optimizer: Optimizer, rate: float, steps: int
) -> None:
    """With an identity category the encoder can be any V, so the minimiser is the ridge solution of
    every item."""
    statistics, (inputs, theta) = statistics_of(some_examples()), a_start(identities=True)
    descent = Descent(steps=steps, rate=Constant(rate), optimizer=optimizer)
    found = gradient.ssp2(
        theta, inputs, statistics, descent=descent, ridge=1.0, rng=np.random.default_rng(0)
    )
    e = some_examples()
    for j in range(M):
        mine = e.items == j
        best = np.linalg.solve(e.U[mine].T @ e.U[mine] + np.eye(D), e.U[mine].T @ e.y[mine])
        np.testing.assert_allclose(items.forward(found.parameters, inputs)[j], best, atol=1e-3)
    assert found.losses[-1] < found.losses[0]


def test_descent_leaves_its_start_as_it_was() -> None:
    inputs, theta = a_start()
    before = {name: array.copy() for name, array in vars(theta).items()}
    descent = Descent(steps=3, rate=Constant(0.1))
    found = gradient.ssp2(
        theta,
        inputs,
        statistics_of(some_examples()),
        descent=descent,
        ridge=1.0,
        rng=np.random.default_rng(0),
    )
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(theta, name), array)
        assert not np.array_equal(getattr(found.parameters, name), array)


def test_one_plain_step_is_algorithm_3_line_8() -> None:
    inputs, theta = a_start()
    statistics = statistics_of(some_examples())
    g, _ = gradient.gradient(theta, inputs, statistics, ridge=0.5)
    descent = Descent(steps=1, rate=Constant(0.01), optimizer=GradientDescent())
    found = gradient.ssp2(
        theta, inputs, statistics, descent=descent, ridge=0.5, rng=np.random.default_rng(0)
    )
    np.testing.assert_allclose(found.parameters.dense, theta.dense - 0.01 * g.dense, atol=1e-12)
    np.testing.assert_allclose(found.parameters.bias, theta.bias - 0.01 * g.bias, atol=1e-12)


def test_a_batch_gradient_is_unbiased_for_the_whole_over_all_batches() -> None:
    """Alg. 5 sums over B without rescaling: over all singletons the gradients add up to the full
    one."""
    inputs, theta = a_start()
    statistics = statistics_of(some_examples())
    whole, loss = gradient.gradient(theta, inputs, statistics, ridge=0.5)
    parts = [
        gradient.gradient(
            theta, inputs.batch(np.array([j])), statistics, ridge=0.5, items=np.array([j])
        )
        for j in range(M)
    ]
    np.testing.assert_allclose(sum(g.dense for g, _ in parts), whole.dense, atol=1e-9)
    assert sum(part for _, part in parts) == pytest.approx(loss)


def test_mini_batches_move_only_the_features_of_their_items_and_depend_on_the_stream_alone() -> None:  # fmt: skip
    inputs, theta = a_start(identities=True)
    descent = Descent(steps=1, rate=Constant(0.05), optimizer=Adam(), batch_items=3)
    args = (theta, inputs, statistics_of(some_examples()))
    runs = [
        gradient.ssp2(*args, descent=descent, ridge=0.5, rng=np.random.default_rng(seed))
        for seed in (5, 5, 6)
    ]
    moved = [
        np.flatnonzero(
            np.any(run.parameters.embeddings[9:] != theta.embeddings[9:], axis=1)
        ).tolist()
        for run in runs
    ]
    assert len(moved[0]) == 3
    assert moved[0] == moved[1] != moved[2]
    np.testing.assert_array_equal(runs[0].parameters.dense, runs[1].parameters.dense)


def test_ssp1_with_the_same_statistics_each_time_is_ssp2() -> None:
    inputs, theta = a_start()
    statistics = statistics_of(some_examples())
    descent = Descent(steps=6, rate=Constant(0.01))
    rng = np.random.default_rng(0)
    once = gradient.ssp2(theta, inputs, statistics, descent=descent, ridge=1.0, rng=rng)
    fresh = gradient.ssp1(
        theta, inputs, lambda turn: statistics, resamples=6, descent=descent, ridge=1.0, rng=rng
    )
    np.testing.assert_array_equal(once.parameters.embeddings, fresh.parameters.embeddings)


@pytest.mark.parametrize("resamples", [1, 2, 3, 7])
def test_ssp1_asks_for_each_release_once_in_order_and_for_no_more_than_were_paid(
    resamples: int,
) -> None:
    inputs, theta = a_start()
    statistics = statistics_of(some_examples())
    asked = list[int]()

    def release(turn: int) -> ItemStatistics:
        asked.append(turn)
        return statistics

    descent = Descent(steps=7, rate=Constant(0.01))
    gradient.ssp1(
        theta,
        inputs,
        release,
        resamples=resamples,
        descent=descent,
        ridge=1.0,
        rng=np.random.default_rng(0),
    )
    assert asked == list(range(resamples))


def test_a_descent_that_diverges_says_so_with_a_remedy() -> None:
    inputs, theta = a_start()
    descent = Descent(steps=200, rate=Constant(1.0), optimizer=GradientDescent())
    with pytest.raises(SettingsError, match="diverged at step"):
        gradient.ssp2(
            theta,
            inputs,
            statistics_of(some_examples()),
            descent=descent,
            ridge=1.0,
            rng=np.random.default_rng(0),
        )


def test_impossible_plans_are_refused_with_their_numbers() -> None:
    inputs, theta = a_start()
    statistics = statistics_of(some_examples())
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="found 3 and 0"):
        Descent(steps=3, rate=Constant(0.1), batch_items=0)
    descent = Descent(steps=7, rate=Constant(0.1))
    with pytest.raises(ValueError, match="found 8"):
        gradient.ssp1(
            theta, inputs, lambda turn: statistics, resamples=8, descent=descent, ridge=1.0, rng=rng
        )
    with pytest.raises(ValueError, match=r"do not fit embeddings \(12, 3\)"):
        gradient.residuals(statistics, np.zeros((12, 3)), ridge=0.0)
