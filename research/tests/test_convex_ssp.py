"""What is particular to SSP for convex losses; the five tests of a private algorithm are in
`test_recipes.py` too."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedrec.data.interactions import Interactions
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import solve_clicks
from fedrec.federation.messages import RoundDone, train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load
from fedrec_research.convex_ssp import client as convex_client
from fedrec_research.convex_ssp.client import Catalogue, Logistic, Loss, Quadratic
from fedrec_research.convex_ssp.recipe import Population

ITEMS = 25
d = 4
LOSSES: dict[str, Loss] = {
    "plain": Logistic(0.0),
    "weighed": Logistic(5.0),
    "squares": Quadratic(20.0),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def f(loss: Loss, s: Any) -> Any:
    return s**2 / 2 if isinstance(loss, Quadratic) else np.logaddexp(0, s)


def g(loss: Loss, s: Any) -> Any:
    """Loss of a click less that of an item that was not clicked, as a textbook writes both."""
    click = (1 - s) ** 2 / 2 if isinstance(loss, Quadratic) else np.logaddexp(0, -s)
    return (1 + loss.click_weight) * click - f(loss, s)


def some_clicks(seed: int = 0, num_users: int = 40) -> Interactions:
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((num_users, ITEMS)) < rng.random((num_users, 1)) * 0.6)
    return Interactions.from_columns(
        users,
        items,
        None,
        num_users=num_users,
        num_items=ITEMS,
        value_range=(0.0, 1.0),
        kind="clicks",
    )


def prepared_for(events: Interactions, *keys: str) -> Prepared:
    facts = PublicFacts(
        events.num_users, events.num_items, events.kind, events.value_range, None, Streams(1)
    )
    return prepare(load(None, ["recipe=convex-ssp", *keys]), facts)


def rounds_of(events: Interactions, made: Prepared) -> list[RoundDone]:
    return list(
        train(
            made.recipe,
            Loopback(events, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee)),
            made.recipe.begin(),
        )
    )


@every_loss
@settings(max_examples=60)
@given(s=st.floats(-30, 30), step=st.floats(-10, 10))
def test_a_click_s_quadratic_has_the_slope_of_g_and_lies_above_it(
    loss: Loss, s: float, step: float
) -> None:
    slope, curvature = (float(x[0]) for x in loss.clicked(np.array([s])))
    assert slope == pytest.approx(float(g(loss, s + 1e-5) - g(loss, s - 1e-5)) / 2e-5, abs=1e-4)
    assert g(loss, s + step) <= g(loss, s) + slope * step + curvature * step**2 / 2 + 1e-9 * (
        1 + abs(g(loss, s))
    )


@every_loss
@settings(max_examples=60)
@given(centre=st.floats(-8, 8), spread=st.floats(0, 2))
def test_everywhere_is_the_mean_slope_and_curvature_under_a_normal(
    loss: Loss, centre: float, spread: float
) -> None:
    """Against a sum over 4,001 points of +-8 standard deviations; nine nodes leave an error of
    0.0012 at a spread of 2."""
    z = np.linspace(-8, 8, 4_001)
    p = np.exp(-(z**2) / 2)
    h = 1e-4
    s = centre + spread * z
    slopes = (f(loss, s + h) - f(loss, s - h)) / (2 * h)
    curvatures = (f(loss, s + h) - 2 * f(loss, s) + f(loss, s - h)) / h**2
    slope, curvature = loss.everywhere(np.array([centre]), np.array([spread]))
    np.testing.assert_allclose(
        [slope[0], curvature[0]], [p @ slopes / p.sum(), p @ curvatures / p.sum()], atol=2e-3
    )


@every_loss
@pytest.mark.parametrize("rate", [0.001, 0.2])
def test_intercepts_are_the_best_scores_of_users_who_are_all_alike(loss: Loss, rate: float) -> None:
    b = float(loss.intercepts(np.array([rate]))[0])
    total = [float(f(loss, s) + rate * g(loss, s)) for s in (b - 1e-3, b, b + 1e-3)]
    assert total[1] == min(total)


def test_with_squares_a_user_solves_the_problem_of_hu_koren_and_volinsky() -> None:
    events = some_clicks()
    V = np.random.default_rng(1).standard_normal((ITEMS, d))
    catalogue = Catalogue(V.T @ V, np.zeros(d))
    ours = convex_client.user_vectors(
        events, V, np.zeros(ITEMS), catalogue, Quadratic(20.0), ridge=3.0
    )
    theirs = solve_clicks(events.user_ptr, events.items, V, ridge=3.0, alpha=20.0)
    np.testing.assert_allclose(ours, theirs, atol=1e-10)


@every_loss
def test_a_user_finds_the_minimum_of_its_own_problem(loss: Loss) -> None:
    """A general minimiser, per user, of the objective as it is written.

    Six passes leave less than 1% of the first pass's gain."""
    rng = np.random.default_rng(2)
    events = some_clicks(num_users=6)
    V = 0.7 * rng.standard_normal((ITEMS, d))
    b = rng.standard_normal(ITEMS) - 2
    catalogue = Catalogue(V.T @ V / 4, V.T @ rng.random(ITEMS))
    U = convex_client.user_vectors(events, V, b, catalogue, loss, ridge=0.5)
    for k, (start, stop) in enumerate(itertools.pairwise(events.user_ptr)):
        mine = events.items[start:stop]

        def objective(u: np.ndarray, mine: np.ndarray = mine) -> float:
            own = np.sum(g(loss, V[mine] @ u + b[mine])) + 0.25 * u @ u
            return float(own + catalogue.pull @ u + u @ catalogue.base @ u / 2)

        best = minimize(objective, np.zeros(d), tol=1e-12).fun
        assert objective(U[k]) - best <= 0.01 * (objective(np.zeros(d)) - best) + 1e-9


@every_loss
def test_two_moments_of_a_normal_population_give_the_gradient_of_all_that_is_no_click(
    loss: Loss,
) -> None:
    """Stein's lemma, within five standard errors of the sum over 20,000 drawn users."""
    rng = np.random.default_rng(3)
    mean = rng.standard_normal(d) / 3
    root = rng.standard_normal((d, d)) / 3
    v = rng.standard_normal((1, d))
    b = np.array([-2.0])
    U = mean + rng.standard_normal((20_000, d)) @ root.T
    s = U @ v[0] + b
    each = (s if isinstance(loss, Quadratic) else 1 / (1 + np.exp(-s)))[:, None] * U
    people = Population(mean, root @ root.T)
    slope, curvature = loss.everywhere(*people.scores(v, b))
    error = each.std(axis=0) / np.sqrt(len(U))
    assert (
        np.abs(slope * mean + curvature * (people.covariance @ v[0]) - each.mean(axis=0))
        < 5 * error
    ).all()


@pytest.mark.parametrize(
    "keys", [[], ["model.click_weight=4"], ["model.loss=quadratic", "model.click_weight=20"]]
)
def test_without_noise_a_release_is_the_gradient_of_the_dense_algorithm(keys: list[str]) -> None:
    """All sums from users x items matrices: second code.

    Equal up to the grid, on which numbers are cut towards zero."""
    events = some_clicks()
    made = prepared_for(events, "privacy.epsilon=inf", "model.dimension=3", *keys)
    loss = Logistic(float("0" if not keys else "4"))
    if len(keys) == 2:
        loss = Quadratic(20.0)  # type: ignore[assignment]
    done = rounds_of(events, made)[-1]
    public = {name: np.asarray(array, np.float64) for name, array in done.question.public.items()}
    X = np.zeros((events.num_users, ITEMS))
    X[events.users, events.items] = 1
    catalogue = Catalogue(public["base"], public["pull"])
    U = convex_client.user_vectors(
        events, public["V"], public["intercepts"], catalogue, loss, float(public["ridge"])
    )
    x = U / np.maximum(np.linalg.norm(U, axis=1, keepdims=True), public["radius"])
    slopes = loss.clicked(x * public["radius"] @ public["V"].T + public["intercepts"])[0]
    limit = 1 + loss.click_weight
    W = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    q = convex_client.POPULATION
    with_one = np.column_stack([np.ones(len(x)), x])[X.any(axis=1)]
    expected = {
        "slopes": np.sqrt(1 - q) * (W * np.clip(slopes, -limit, limit) / limit).T @ x,
        "population": np.sqrt(q) / 2 * (with_one.T @ with_one)[np.triu_indices(4)][None],
    }
    for spec in done.question.blocks:
        cut = events.num_users * (2 * spec.coefficient_step + 4 * spec.vector_step)
        np.testing.assert_allclose(
            done.answer.values[spec.name], expected[spec.name], rtol=0, atol=cut
        )


def test_a_model_is_there_after_every_round() -> None:
    events = some_clicks()
    made = prepared_for(events)
    for state in [made.recipe.begin(), *(done.state for done in rounds_of(events, made))]:
        model = made.recipe.model(state)
        assert np.isfinite(model.user_vectors(events) @ np.asarray(model.item_vectors).T).all()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["recipe=default", "model.loss=quadratic"], "needs recipe"),
        (["recipe=published", "model.click_weight=2"], "needs recipe"),
        (["recipe=convex-ssp", "model.resamples=2"], "has no effect"),
        (["recipe=convex-ssp", "model.weight_exponent=0.5"], "has no effect"),
        (["recipe=convex-ssp", "data.kind=ratings"], "fits clicks"),
        (["recipe=convex-ssp", "privacy.unit=example"], "whole users"),
    ],
)
def test_what_means_nothing_to_it_is_refused(keys: list[str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(None, keys)
