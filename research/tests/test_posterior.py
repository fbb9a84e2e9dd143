"""Fast DP matrix factorisation as published: what its density, its weights and its claim are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

import fedrec
from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.preparing import prepare
from fedrec.randomness import Streams
from fedrec.run import statement
from fedrec.settings import load
from fedrec_research.fast_dpmf.blocked_sgd import (
    Diffusion,
    Pass,
    Rows,
    blocks_of,
    descend,
    settle,
)
from fedrec_research.fast_dpmf.recipe import (
    PosteriorSettings,
    SampleRecipe,
    Scaling,
    guarantee_for,
    sample,
    user_weights,
)

SETTINGS = PosteriorSettings(dimension=2, passes=5, most_ratings=6, weight_limit=3.0)


def some_ratings(seed: int, users: int = 12, items: int = 15) -> Interactions:
    rng = np.random.default_rng(seed)
    who, what = np.nonzero(rng.random((users, items)) < rng.random((users, 1)))
    values = rng.integers(1, 6, len(who)).astype(float)
    return Interactions.from_columns(
        who, what, values, num_users=users, num_items=items, value_range=(1.0, 5.0)
    )


def test_the_claim_says_what_it_rests_on() -> None:
    claim = guarantee_for(5.0, 1e-5)
    assert not claim.established
    assert "NOT ESTABLISHED, assumes an exact posterior sample" in str(claim)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), limit=st.floats(0.1, 20.0))
def test_no_user_has_more_loss_than_the_public_bound(seed: int, limit: float) -> None:
    """Whatever U and V are: tau L at most."""
    ratings = some_ratings(seed)
    chosen = replace(SETTINGS, weight_limit=limit)
    bound = Scaling.of(chosen, 1.0, ratings.value_range).loss_bound
    assert bound == 6 * 5**2
    weights = user_weights(ratings, chosen)
    losses = weights * np.minimum(np.diff(ratings.user_ptr), 6) * 5**2
    assert np.all(losses <= bound * (1 + 1e-12))


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_two_exact_densities_of_v_differ_by_at_most_the_claim(share: float) -> None:
    """One user, one item, d = 1, by quadrature over u: the density of v with the user against the
    one without, for every rating."""
    chosen = PosteriorSettings(dimension=1, most_ratings=1, prior_std=1.0, ridge=0.0)
    scaling = Scaling.of(chosen, 2.0, (1.0, 5.0))
    epsilon = 2.0
    c = 1 / scaling.temperature
    largest = 0.0
    grid = np.linspace(-6, 6, 241)
    prior = np.exp(-c * scaling.ridge * grid**2)
    for rating in (-2.0, 0.5, 2.0):
        loss = np.minimum((rating - np.outer(grid, grid)) ** 2, scaling.cap**2)
        factor = integrate.trapezoid(np.exp(-c * share * loss) * prior[:, None], grid, axis=0)
        with_user = prior * factor
        without = prior
        ratio = np.log(with_user / with_user.sum()) - np.log(without / without.sum())
        largest = max(largest, float(np.abs(ratio).max()))
    assert 0 < largest <= share * epsilon


def test_the_printed_conversion_is_four_times_as_hot() -> None:
    ours, printed = (
        Scaling.of(replace(SETTINGS, conversion=name), 5.0, (1.0, 5.0)).temperature
        for name in ("add/remove", "printed")  # type: ignore[arg-type]
    )
    assert printed == pytest.approx(4 * ours)


@pytest.mark.slow
def test_a_long_chain_has_the_moments_of_its_density() -> None:
    """One user, one item, d = 1: means of u^2 and u v against quadrature of exp(-c F), within 5
    standard errors of 10 batches and .02."""
    ratings = Interactions.from_columns(
        np.zeros(1, int),
        np.zeros(1, int),
        np.ones(1),
        num_users=1,
        num_items=1,
        value_range=(1.0, 5.0),
    )
    ridge = 0.6
    temperature = 0.8
    value = 1.5
    cap = 2.5
    grid = np.linspace(-7, 7, 701)
    product = np.outer(grid, grid)
    F = np.minimum((value - product) ** 2, cap**2) + ridge * np.add.outer(grid**2, grid**2)
    density = np.exp(-F / temperature)
    expected = [
        float((density * f).sum() / density.sum())
        for f in (np.add.outer(grid**2, 0 * grid), product)
    ]
    blocks = blocks_of(ratings, np.array([value]), stripes=1)
    rows = Rows.of(np.ones((1, 1)), np.ones((1, 1)), blocks)
    rate = 0.01
    chain = Diffusion(ridge, temperature, key=3)
    seen = list[tuple[float, float]]()
    for _ in range(60_000):
        descend(rows, blocks, Pass(2 * rate, cap=cap, time=rate), chain)
        settle(rows, chain)
        seen.append((float(rows.U[0, 0] ** 2), float(rows.U[0, 0] * rows.V[0, 0])))
    batches = np.array(seen[2_000:]).reshape(10, -1, 2).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / math.sqrt(10)
    assert np.all(np.abs(batches.mean(axis=0) - expected) < 5 * error + 0.02)


@pytest.mark.slow
def test_without_a_budget_the_chain_is_plain_descent_and_learns() -> None:
    dataset = planted(replace(SHAPES["small"], users=1_000, events=30_000), seed=1)
    unseen = np.random.default_rng(1).random(len(dataset.interactions)) < 0.1
    seen = dataset.interactions.select(~unseen)
    asked = dataset.interactions.select(unseen)
    errors = dict[float, float]()
    for epsilon in (math.inf, 1e5, 1.0):
        chosen = PosteriorSettings(dimension=4, passes=30, rate=0.01)
        *_, last = sample(seen, chosen, epsilon=epsilon, streams=Streams(1))
        errors[epsilon] = float(
            np.sqrt(np.mean((predict(last.model, seen, asked) - asked.values) ** 2))
        )
    assert errors[math.inf] < 0.9 * np.std(asked.values)
    assert errors[1e5] < 0.9 * np.std(asked.values)
    assert errors[1.0] > errors[1e5]


def test_a_step_is_equation_4_with_the_erratum_read_line_by_line() -> None:
    """20,000 users with one rating each of an item of their own, all alike, so that one step is
    drawn 20,000 times: its mean and its variance, of the paper's line 3 of Alg. 1 and eq. 4."""
    pairs = 20_000
    who = np.arange(pairs)
    ratings = Interactions.from_columns(
        who, who, np.full(pairs, 5.0), num_users=pairs, num_items=pairs, value_range=(1.0, 5.0)
    )
    chosen = PosteriorSettings(dimension=2, most_ratings=3, weight_limit=0.5, conversion="printed")
    epsilon = 40.0
    scaling = Scaling.of(chosen, epsilon, (1.0, 5.0))
    # the paper, line by line
    tau, kappa, rho = 3, 1.0, 0.5
    w = min(rho, tau / 1)  # Sec. 6.5: w_i = min(rho, B / (m_i (5 - 1 + kappa)^2))
    B = tau * (5 - 1 + kappa) ** 2  # Alg. 1 l. 1, as set in Sec. 6.5
    temperature = 4 * B / epsilon  # l. 4: exp(-epsilon F / 4B)
    prior_std = chosen.prior_std
    lam = chosen.ridge + temperature / (2 * prior_std**2)
    u = np.array([0.6, -0.3])
    v = np.array([0.2, 0.5])
    r = 1.7
    eta = 1e-5
    gradient_u = -2 * w * (r - u @ v) * v + 2 * lam * u  # l. 3, differentiated
    gradient_v = -2 * w * (r - u @ v) * u + 2 * lam * v
    expected = np.concatenate([u - eta * gradient_u, v - eta * gradient_v])
    variance = 2 * eta * temperature  # eq. 4 has eta, of which the density would be exp(-2 c F)
    # the kernel
    weights = user_weights(ratings, chosen)
    blocks = blocks_of(ratings, np.full(pairs, r), stripes=1)
    rows = Rows.of(np.tile(u, (pairs, 1)), np.tile(v, (pairs, 1)), blocks)
    assert (w, B, temperature, lam) == pytest.approx(
        (weights[0], scaling.loss_bound, scaling.temperature, scaling.ridge)
    )
    for heat, bound in ((0.0, 1e-7), (scaling.temperature, 5 * math.sqrt(variance / pairs))):
        rows = Rows.of(np.tile(u, (pairs, 1)), np.tile(v, (pairs, 1)), blocks)
        noise = Diffusion(scaling.ridge, heat, key=5)
        descend(rows, blocks, Pass(2 * eta, cap=scaling.cap, weights=weights, time=eta), noise)
        settle(rows, noise)
        found = np.column_stack([rows.U[:, :2], rows.V[:, :2]]).astype(np.float64)
        assert np.all(np.abs(found.mean(0) - expected) < bound + 1e-6 * np.abs(expected))
    assert found.var(0) == pytest.approx(np.full(4, variance), rel=0.05)


def test_dpmf_is_trained_and_told_on_the_usual_path() -> None:
    """The recipe's V is the sampler's, its claim is not established, and ledgers count infinity."""
    train, test = fedrec.Dataset.planted("small").split()
    model = fedrec.MatrixFactorization(
        method="dpmf", noise="seeded", settings={"own.passes": 2, "own.dimension": 3}
    ).fit(train)
    assert "not established" in str(model.guarantee).lower()
    assert model.guarantee.accountants["gdp"] == math.inf
    assert math.isfinite(fedrec.evaluate(model, test, controls=False).metrics["rmse"])


def test_theorem_2_weighs_a_user_s_loss_by_its_own_epsilon() -> None:
    ratings = some_ratings(3)
    facts = PublicFacts(12, 15, "ratings", (1.0, 5.0), None, Streams(1))
    keys = ["recipe=dpmf", "own.passes=2", "own.dimension=2", "privacy.epsilon=5"]
    own = prepare(load(None, [*keys, "privacy.personal_epsilons={1=1.0}"]), facts)
    assert own.curated is not None
    question = own.recipe.ask(own.recipe.begin())
    assert question is not None
    (found,) = own.curated(question, ratings, Streams(2))
    whole = prepare(load(None, keys), facts)
    assert own.plan.claimed
    chosen = cast(SampleRecipe, whole.recipe).settings
    for shares, alike in ((0.2, True), (1.0, False)):
        *_, last = sample(
            ratings, chosen, epsilon=5.0, streams=Streams(1), noise=Streams(2), shares=shares
        )
        same = np.allclose(found * 2.0**-24, last.model.item_vectors[:, :-2], rtol=0, atol=1e-7)
        assert same == alike
    assert statement.personal(own.plan, {1.0: 1.0})["personal"][0]["weight"] == 0.2
