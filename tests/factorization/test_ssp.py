"""The five tests of a private algorithm, for federated SSP2 (AM-SSP Alg. 8) inside alternating minimisation."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.factorization import gradient, ssp
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.model import predict
from fedrec.factorization.statistics import ExactSums
from fedrec.federation.messages import Question
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.rounds import Loopback, train
from fedrec.privacy.accounting import epsilon_of
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.privacy.ledger import Ledger
from fedrec.streams import Streams

SETTINGS = ssp.PublishedSettings(
    dimension=3, steps=2, user_ridge=1.0, item_ridge=3.0, weights="normalised", weight_exponent=0.25,
    descent=gradient.Descent(30, gradient.Constant(0.02)),
)  # fmt: skip
ITEMS = 12


def some_ratings(seed: int, num_users: int = 8) -> Interactions:
    rng = np.random.default_rng(seed)
    pairs = [(k, j) for k in range(num_users) for j in np.flatnonzero(rng.random(ITEMS) < rng.random())]
    users, items = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    values = rng.integers(1, 6, len(users)).astype(float)
    return Interactions.from_columns(users, items, values, num_users=num_users, num_items=ITEMS, value_range=(1.0, 5.0))


def recipe_for(ratings: Interactions, guarantee: Guarantee, chosen: ssp.PublishedSettings = SETTINGS) -> ssp.PublishedRecipe:
    plan = calibrate(guarantee, ssp.shares(chosen, ratings.kind, count_share=0.14))
    facts = PublicFacts(ratings.num_users, ratings.num_items, ratings.kind, ratings.value_range, None, Streams(1))
    return ssp.PublishedRecipe.of(plan, chosen, facts, with_features=False)


def loopback(ratings: Interactions, recipe: ssp.PublishedRecipe, **kwargs: int) -> Loopback:
    return Loopback(ratings, ssp.client_steps(recipe.settings), recipe.plan, Streams(1), Ledger(recipe.plan.guarantee), **kwargs)


def questions_of(ratings: Interactions, recipe: ssp.PublishedRecipe) -> list[Question]:
    return [done.question for done in train(recipe, loopback(ratings, recipe), recipe.begin())]


def dense_sums(question: Question, ratings: Interactions, chosen: ssp.PublishedSettings = SETTINGS) -> list[np.ndarray]:
    """What a round's reports add up to, user by user in real numbers: second code, in svec coordinates."""
    reports = ssp.client_steps(chosen)[question.step](question, ratings, 0)
    totals = []
    for spec, part in zip(question.blocks, reports.blocks, strict=True):
        total = np.zeros((spec.rows, spec.width if spec.kind == "linear" else spec.width**2))
        for k, (a, b) in enumerate(itertools.pairwise(reports.user_ptr)):
            x = part.vectors[k] * spec.vector_step
            row = x if spec.kind == "linear" else np.outer(x, x).ravel()
            events = [(0, part.coefficients[k])] if spec.rows == 1 else zip(reports.items[a:b], part.coefficients[a:b], strict=True)
            for j, c in events:
                total[j] += c * spec.coefficient_step * row
        totals.append(total)
    return totals


def full(values: np.ndarray, width: int) -> np.ndarray:
    rows, columns = np.triu_indices(width)
    square = np.zeros((len(values), width, width))
    square[:, rows, columns] = square[:, columns, rows] = values
    return square.reshape(len(values), -1)


@pytest.mark.parametrize("unit", ["user", "example"])
def test_with_an_infinite_budget_releases_are_the_plain_sums(unit: str) -> None:
    ratings = some_ratings(1)
    chosen = dataclasses.replace(SETTINGS, unit=unit)
    recipe = recipe_for(ratings, non_private(1e-5), chosen)
    for done in train(recipe, loopback(ratings, recipe), recipe.begin()):
        for spec, plain in zip(done.question.blocks, dense_sums(done.question, ratings, chosen), strict=True):
            released = done.answer.values[spec.name]
            np.testing.assert_allclose(released if spec.kind == "linear" else full(released, spec.width), plain, rtol=0, atol=1e-10)


def test_the_integer_grid_costs_less_than_a_hundredth_of_the_statistics() -> None:
    ratings, recipe = some_ratings(2), recipe_for(some_ratings(2), non_private(1e-5))
    question = questions_of(ratings, recipe)[1]
    V, mean = np.asarray(question.public["V"], np.float64), float(question.public["mean"])
    gram, moment = np.zeros((ITEMS, 3, 3)), np.zeros((ITEMS, 3))
    for a, b in itertools.pairwise(ratings.user_ptr):
        if a == b:
            continue
        items, y = ratings.items[a:b], ratings.values[a:b] - mean
        u = np.linalg.solve(V[items].T @ V[items] + np.eye(3), V[items].T @ y)
        u /= max(1, np.linalg.norm(u))
        w = np.asarray(question.public["counts"])[items] ** -0.25
        w /= np.linalg.norm(w)
        for j, weight, value in zip(items, w, np.clip(y, -1, 1), strict=True):
            gram[j] += weight * np.outer(u, u)
            moment[j] += weight * value * u
    plain = dense_sums(question, ratings)
    np.testing.assert_allclose(plain[0].reshape(gram.shape), gram, atol=1e-2 * np.abs(gram).max())
    np.testing.assert_allclose(plain[1], moment, atol=1e-2 * np.abs(moment).max())


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), leaver=st.integers(0, 7), kind=st.sampled_from(["ratings", "clicks"]))
def test_every_release_moves_by_at_most_its_radius_when_a_user_leaves(seed: int, leaver: int, kind: str) -> None:
    ratings = dataclasses.replace(some_ratings(seed), kind=kind)
    recipe = recipe_for(ratings, non_private(1e-5))
    keep = np.repeat(np.arange(8) != leaver, np.diff(ratings.user_ptr))
    for question in questions_of(ratings, recipe):  # the same public state for both neighbours, as in adaptive composition
        moved = [
            np.sum((a - b) ** 2) for a, b in zip(dense_sums(question, ratings), dense_sums(question, ratings.select(keep)), strict=True)
        ]
        for spec in question.releases:
            squares = [moved.pop(0) for _ in spec.blocks]
            assert math.fsum(squares) <= spec.radius**2


def test_noise_has_the_planned_distribution_and_no_other() -> None:
    """Kolmogorov-Smirnov at level 1e-4 on about 10,000 numbers; stds a third off fail it by far."""
    ratings = some_ratings(3)
    wide = dataclasses.replace(SETTINGS, dimension=40, steps=1)
    recipe = recipe_for(ratings, Guarantee(5.0, 1e-5), wide)
    question = questions_of(ratings, recipe)[1]
    sums = ExactSums(question.blocks)
    sums.add(ssp.client_steps(wide)[question.step](question, ratings, 0))
    answer, _ = release(question, sums.blocks, recipe.plan, Ledger(recipe.plan.guarantee), noise=Streams(9))
    std = noise_stds(question, recipe.plan)["gram/0/0"]
    assert std == pytest.approx(1 / recipe.plan["gram/0/0"].mu, rel=1e-6)
    noise = (answer.values["gram/0/0"] - sums.blocks[0] * question.blocks[0].step).ravel()
    assert len(noise) > 9_000
    assert stats.kstest(noise / std, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / std / wrong, "norm").pvalue < 1e-4


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 20.0])
def test_epsilon_equals_an_independent_computation(epsilon: float) -> None:
    """The stds that are really used, recombined by hand and priced by the privacy loss distribution of dp_accounting."""
    ratings = some_ratings(4)
    recipe = recipe_for(ratings, Guarantee(epsilon, 1e-5))
    stds = {name: std for question in questions_of(ratings, recipe) for name, std in noise_stds(question, recipe.plan).items()}
    radii = {spec.name: spec.radius for question in questions_of(ratings, recipe) for spec in question.releases}
    assert set(stds) == {planned.name for planned in recipe.plan.releases}
    mu = math.sqrt(sum((radii[name] / stds[name]) ** 2 for name in stds))
    assert epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon * (1 - 1e-6) <= recipe.plan.opinions().pld <= epsilon * 1.001


def test_a_planted_answer_is_found() -> None:
    """Ratings of exact rank 2 around a mean: without noise, and clipping hardly anybody, unseen ones are predicted closely."""
    rng = np.random.default_rng(1)
    tastes = 3 + rng.normal(size=(400, 2)) @ rng.normal(size=(2, 40)) * 0.5
    rated, unseen = rng.random((400, 40)) < 0.6, rng.random((400, 40)) < 0.1
    columns = {"num_users": 400, "num_items": 40, "value_range": (-3.0, 9.0)}
    seen, asked = (Interactions.from_columns(*np.nonzero(mask), tastes[mask], **columns) for mask in (rated & ~unseen, rated & unseen))
    chosen = dataclasses.replace(SETTINGS, dimension=2, steps=8, user_ridge=0.1, item_ridge=0.1, user_radius=2.0, target_radius=3.0)
    recipe = recipe_for(seen, non_private(1e-5), chosen)
    *_, last = train(recipe, loopback(seen, recipe), recipe.begin())
    error = predict(recipe.model(last.state), seen, asked) - asked.values
    assert np.sqrt(np.mean(error**2)) < 0.15 * asked.values.std()


def test_the_same_bytes_come_out_of_any_order_and_sharding_of_users() -> None:
    ratings = planted(SHAPES["small"], seed=2).interactions
    order = np.random.default_rng(3).permutation(ratings.num_users)
    recipe = recipe_for(ratings, Guarantee(5.0, 1e-5))
    *_, whole = train(recipe, loopback(ratings, recipe), recipe.begin())
    *_, cut = train(recipe, loopback(ratings.users_subset(order), recipe, users_per_batch=37), recipe.begin())
    assert np.asarray(whole.state["V"]).tobytes() == np.asarray(cut.state["V"]).tobytes()


def test_example_level_alternating_minimisation_is_not_called_established() -> None:
    from fedrec.settings import load
    from fedrec_simulations.recipes import guarantee_of

    promised = guarantee_of(load(None, ["recipe=published", "privacy.unit=example"]))
    assert not promised.established
    assert "NOT ESTABLISHED" in str(promised)


def test_resampling_is_charged_in_full() -> None:
    """SSP1 with R resamples has R releases of each statistic, each with 1/R of the share: std sqrt(R) times as large."""
    one, four = (ssp.shares(dataclasses.replace(SETTINGS, resamples=r), "ratings", count_share=0.1) for r in (1, 4))
    plans: list[Plan] = [calibrate(Guarantee(5.0, 1e-5), shares) for shares in (one, four)]
    assert plans[0]["gram/0/0"].mu == pytest.approx(2 * plans[1]["gram/0/3"].mu)
    assert len(plans[1].releases) == 2 + 2 * 4 * SETTINGS.steps
