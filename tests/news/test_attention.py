import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from fedrec.errors import UnitMismatchError
from fedrec.news import attention as a
from fedrec.privacy.accounting import GaussianEvent, delta_of, epsilon_of
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.privacy.mixtures import epsilon_of_events
from fedrec.randomness import Streams

KEY = Streams(6).key("attention")


def click(epsilon: float, delta: float = 1e-5) -> Guarantee:
    return Guarantee(epsilon, delta, "click", "replace")


def some_weights(users: int = 5, basis: int = 5) -> np.ndarray:
    rng = np.random.default_rng(1)
    return a.attention(rng.normal(size=(users, 8)), rng.normal(size=(basis, 8)))


@pytest.mark.parametrize("make", [a.gaussian_plan, a.laplace_plan])
def test_at_infinite_budget_the_weights_come_back(make: object) -> None:
    plan = make(non_private(1e-5, "click", "replace"), theta=1.0, padding=0.3)  # type: ignore[operator]
    weights = some_weights()
    released, event = a.release(weights, plan, key=KEY)
    np.testing.assert_allclose(released, weights, rtol=0, atol=1e-10)
    np.testing.assert_allclose(a.renormalise_relu(released), weights, rtol=0, atol=1e-10)
    assert math.isinf(epsilon_of_events([event], 1e-5))


def test_attention_is_the_softmax_over_scaled_products() -> None:
    rng = np.random.default_rng(2)
    U = rng.normal(size=(4, 9))
    b = rng.normal(size=(3, 9))
    for row, u in zip(a.attention(U, b), U, strict=True):
        terms = [math.exp(float(u @ v) / 3) for v in b]
        np.testing.assert_allclose(row, np.array(terms) / sum(terms), rtol=1e-12)


vectors = st.lists(st.floats(0, 1), min_size=5, max_size=5)


@given(pair=st.tuples(vectors, vectors), theta=st.floats(0.01, 2))
@settings(max_examples=200, deadline=None)
def test_any_two_clipped_vectors_are_within_the_declared_distance_on_the_lattice(
    pair: tuple[list[float], list[float]], theta: float
) -> None:
    """Softmax weights of any two histories; what is noised is the floored lattice."""
    raw = np.array(pair) + 1e-9
    simplex = raw / raw.sum(1, keepdims=True)
    for plan, radius, order in (
        (a.gaussian_plan(click(1.0), theta=theta), math.sqrt(2) * min(theta, 1), 2),
        (a.laplace_plan(click(1.0), theta=theta), 2 * min(theta, 1), 1),
    ):
        x, y = np.floor(a.clip(simplex, plan) / plan.step) * plan.step
        assert np.linalg.norm(x - y, order) <= radius * (1 + 1e-12)


def test_the_declared_distance_is_reached_and_more_than_the_printed_theta() -> None:
    plan = a.gaussian_plan(click(1.0), theta=0.3)
    x, y = a.clip(np.eye(3)[:2], plan)
    assert np.linalg.norm(x - y) == pytest.approx(math.sqrt(2) * 0.3)
    assert np.linalg.norm(x - y) > 0.3


@pytest.mark.parametrize(("basis", "factor"), [(3, 2.414), (5, 3.146)])
def test_printed_laplace_has_the_sensitivity_that_a_search_finds(basis: int, factor: float) -> None:
    """Second code: the best pair of supports by brute force, then a random search that never beats
    it."""
    theta = 0.1
    assert a.l1_diameter(basis, theta) == pytest.approx(factor * theta, rel=1e-3)
    best = 0.0
    for k in range(1, basis):
        x = np.zeros(basis)
        y = np.zeros(basis)
        x[:k] = theta / math.sqrt(k)
        y[k:] = theta / math.sqrt(basis - k)
        best = max(best, float(np.abs(x - y).sum()))
    assert a.l1_diameter(basis, theta) == pytest.approx(best)
    rng = np.random.default_rng(1)
    pairs = rng.dirichlet(np.full(basis, 0.3), size=(2, 20_000))
    clipped = theta * pairs / np.linalg.norm(pairs, axis=2, keepdims=True)
    assert np.abs(clipped[0] - clipped[1]).sum(1).max() <= a.l1_diameter(basis, theta) * (1 + 1e-12)
    assert a.l1_diameter(basis, 2.0) == 2.0  # weights add up to 1


@pytest.mark.parametrize(
    ("make", "law"), [(a.gaussian_plan, stats.norm), (a.laplace_plan, stats.laplace)]
)
def test_noise_has_the_declared_law_and_not_one_of_two_thirds_or_three_halves(
    make: object, law: object
) -> None:
    """KS at level 1e-4, 20,000 numbers each."""
    plan = make(click(2.0), theta=0.5, padding=0.2)  # type: ignore[operator]
    weights = np.full((4000, 5), 0.2)
    noise = (a.release(weights, plan, key=KEY)[0] - a.clip(weights, plan)).ravel()
    size = plan.noise_std if isinstance(plan, a.GaussianAttention) else plan.parameter
    for factor, expected in ((1, True), (2 / 3, False), (3 / 2, False)):
        assert bool(stats.kstest(noise / (size * factor), law.cdf).pvalue > 1e-4) is expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("padding", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_gaussian_plan_keeps_its_epsilon_by_an_independent_computation(
    epsilon: float, padding: float
) -> None:
    """Divergence of the two mixtures on a fine grid, for the worst pair: P at the radius, Q at 0,
    and r0 at either or between."""
    theta = 0.3
    delta = 1e-5
    plan = a.gaussian_plan(click(epsilon, delta), theta=theta, padding=padding)
    radius = math.sqrt(2) * theta
    s = plan.noise_std
    z = np.linspace(-12 * s, radius + 12 * s, 400_001)
    P = stats.norm.pdf(z, radius, s)
    Q = stats.norm.pdf(z, 0, s)
    for between in (0.0, 0.5, 1.0):
        N = stats.norm.pdf(z, between * radius, s)
        mixed = np.maximum(
            padding * N + (1 - padding) * P - math.exp(epsilon) * (padding * N + (1 - padding) * Q),
            0,
        )
        divergence = mixed.sum() * (z[1] - z[0])
        assert divergence <= delta * (1 + 1e-3)
        if between == 0.0:
            tightest = divergence
    assert tightest > delta * (0.99 if padding == 0 else 0.2)
    assert epsilon_of_events([plan.event], delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_laplace_plan_keeps_its_epsilon_by_enumerating_a_smaller_lattice(
    epsilon: float,
) -> None:
    """The same law on a grid of 16 steps per theta: the largest log ratio of two outputs a full
    diameter apart."""
    plan = a.laplace_plan(click(epsilon), theta=0.4, padding=0.3)
    t = plan.parameter / 0.4 * 16
    z = np.arange(-400, 401)
    law = lambda centre: np.exp(-np.abs(z - centre) / t)  # noqa: E731
    inner = 2 * float(np.log(law(16) / law(0)).max())  # one coordinate up by theta, another down
    assert math.log(0.3 + 0.7 * math.exp(inner)) == pytest.approx(epsilon, rel=1e-9)


def test_padding_allows_less_noise_and_happens_at_its_rate() -> None:
    stds = [a.gaussian_plan(click(0.5), theta=1.0, padding=p).noise_std for p in (0.0, 0.2, 0.5)]
    assert stds == sorted(stds, reverse=True)
    mask = a.padded_clicks(400, 50, padding=0.2, key=KEY)
    assert mask.shape == (400, 50)
    assert stats.binomtest(int(mask.sum()), mask.size, 0.2).pvalue > 1e-4
    assert not a.padded_clicks(4, 5, padding=0.0, key=KEY).any()


def test_as_printed_says_that_it_is_not_established_and_what_is_true() -> None:
    printed = a.gaussian_plan_as_printed(click(10.0), theta=0.005)
    assert printed.noise_std == pytest.approx(0.005 / 10 * math.sqrt(2 * math.log(1.25e5)))
    true = epsilon_of(math.sqrt(2) * 0.005 / printed.noise_std, 1e-5)
    assert true > 16  # SOUNDNESS: nominal 10 is really 16
    assert not printed.guarantee.established
    assert f"{true:.4g}" in str(printed.guarantee)
    laplace = a.laplace_plan_as_printed(click(2.0), theta=0.1, basis=5)
    assert not laplace.guarantee.established
    assert epsilon_of_events([laplace.event], 1e-12) == pytest.approx(2.0 * 3.1463, rel=1e-3)
    padded = a.gaussian_plan_as_printed(click(1.0), theta=0.1, padding=0.5)
    inner = math.log((math.e - 0.5) / 0.5)
    assert padded.noise_std == pytest.approx(0.1 / inner * math.sqrt(2 * math.log(1.25 * 0.5e5)))


def test_one_answer_without_padding_is_a_gaussian_event_with_its_epsilon() -> None:
    plan = a.gaussian_plan(click(1.0), theta=0.2)
    assert isinstance(plan.event, GaussianEvent)
    assert delta_of(plan.mu, 1.0) == pytest.approx(1e-5, rel=1e-9)
    s = plan.noise_std
    grid = plan.step
    assert math.sqrt(2) * 0.2 / math.sqrt(s**2 - 4 * grid**2) <= plan.mu * (1 + 1e-12)


@pytest.mark.parametrize("renormalise", [a.renormalise_softplus, a.renormalise_relu])
def test_renormalised_weights_are_a_simplex_for_any_noise(renormalise: object) -> None:
    noised = np.array(
        [
            [-1.0, -2.0, -3.0],
            [0.0, 0.0, 0.0],
            [1e6, -1e6, 0.0],
            [-2000.0, -1000.0, -1001.0],
            [0.2, 0.5, 0.3],
        ]
    )
    weights = renormalise(noised)  # type: ignore[operator]
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-12)


def test_softplus_and_relu_are_what_the_paper_writes() -> None:
    x = np.array([[-1.0, 0.5, 2.0]])
    soft = np.log(1 + np.exp(x))
    np.testing.assert_allclose(a.renormalise_softplus(x), soft / soft.sum(), rtol=1e-12)
    np.testing.assert_allclose(a.renormalise_relu(x), [[0.0, 0.2, 0.8]])
    np.testing.assert_array_equal(a.renormalise_relu(-x - 3), np.full((1, 3), 1 / 3))
    np.testing.assert_allclose(
        a.renormalise_softplus(np.array([[-2000.0, -1000.0, -1001.0]])),
        [[0.0, 1 / (1 + math.exp(-1)), 1 / (1 + math.e)]],
    )


def test_a_planted_interest_is_found_under_noise() -> None:
    """2,000 users of one basis vector each; at epsilon 20 the strongest released weight is theirs
    nine times in ten."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(16, 16)))[0][:3] * 12
    truth = rng.integers(3, size=2000)
    released, _ = a.release(
        a.attention(basis[truth], basis), a.gaussian_plan(click(20.0), theta=1.0), key=KEY
    )
    users = a.reconstruct(a.renormalise_softplus(released), basis)
    assert ((users @ basis.T).argmax(1) == truth).mean() > 0.9


def test_bad_weights_and_other_units_are_refused() -> None:
    plan = a.gaussian_plan(click(1.0), theta=0.2)
    for bad in (-0.1, math.nan):
        with pytest.raises(ValueError):
            a.release(np.array([[0.5, bad]]), plan, key=KEY)
    for make in (a.gaussian_plan, a.laplace_plan, a.gaussian_plan_as_printed):
        with pytest.raises(UnitMismatchError):
            make(Guarantee(1.0, 1e-5), theta=1.0)


def farthest_l1(coordinates: int, theta: float) -> float:
    """The longest L1 norm on that many coordinates under both constraints, by sequential quadratic
    programming."""
    within = [
        {"type": "ineq", "fun": lambda x: theta**2 - x @ x},
        {"type": "ineq", "fun": lambda x: 1 - x.sum()},
    ]
    start = np.full(coordinates, 0.1)
    bounds = [(0, 1)] * coordinates
    return -float(
        optimize.minimize(lambda x: -x.sum(), start, bounds=bounds, constraints=within).fun
    )


def test_the_diameter_in_l1_is_that_of_a_numerical_search_where_clipping_binds_partly() -> None:
    """theta = 0.7, B = 4: on one coordinate the L2 clip binds, on three the L1 norm does."""
    pairs = [(k, other) for k, other in itertools.product(range(1, 4), repeat=2) if k + other <= 4]
    found = max(farthest_l1(k, 0.7) + farthest_l1(other, 0.7) for k, other in pairs)
    assert a.l1_diameter(4, 0.7) == pytest.approx(found, rel=1e-5)
