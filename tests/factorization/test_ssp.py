"""What is particular to federated SSP2 (AM-SSP Alg. 8); the five tests of a private algorithm are
in test_recipes.py."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Literal

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.factorization.am_ssp import client as ssp_client
from fedrec.factorization.am_ssp import client as ssp_settings
from fedrec.factorization.am_ssp import gradient
from fedrec.factorization.am_ssp import recipe as ssp
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.numerics.segments import unpack
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams

SETTINGS = ssp_settings.PublishedSettings(
    dimension=3, steps=2, user_ridge=1.0, item_ridge=3.0, weights="normalised",
    weight_exponent=0.25,
    descent=gradient.Descent(30, gradient.Constant(0.02)),
)  # fmt: skip
ITEMS = 12


def some_ratings(seed: int, num_users: int = 8) -> Interactions:
    rng = np.random.default_rng(seed)
    pairs = [
        (k, j) for k in range(num_users) for j in np.flatnonzero(rng.random(ITEMS) < rng.random())
    ]
    users, items = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    values = rng.integers(1, 6, len(users)).astype(float)
    return Interactions.from_columns(
        users, items, values, num_users=num_users, num_items=ITEMS, value_range=(1.0, 5.0)
    )


def recipe_for(
    ratings: Interactions, guarantee: Guarantee, chosen: ssp_settings.PublishedSettings = SETTINGS
) -> ssp.PublishedRecipe:
    plan = calibrate(guarantee, ssp_settings.shares(chosen, ratings.kind, count_share=0.14))
    facts = PublicFacts(
        ratings.num_users, ratings.num_items, ratings.kind, ratings.value_range, None, Streams(1)
    )
    return ssp.PublishedRecipe.of(plan, chosen, facts, with_features=False)


def loopback(ratings: Interactions, recipe: ssp.PublishedRecipe, **kwargs: int) -> Loopback:
    return Loopback(
        ratings,
        ssp_client.client_steps(recipe.settings),
        recipe.plan,
        Streams(1),
        Ledger(recipe.plan.guarantee),
        **kwargs,
    )


def test_the_integer_grid_costs_less_than_a_hundredth_of_the_statistics() -> None:
    ratings = some_ratings(2)
    recipe = recipe_for(some_ratings(2), non_private(1e-5))
    question, answer = next(
        (done.question, done.answer)
        for done in train(recipe, loopback(ratings, recipe), recipe.begin())
        if done.question.round
    )
    V = np.asarray(question.public["V"], np.float64)
    mean = float(question.public["mean"])
    gram = np.zeros((ITEMS, 3, 3))
    moment = np.zeros((ITEMS, 3))
    for a, b in itertools.pairwise(ratings.user_ptr):
        if a == b:
            continue
        items = ratings.items[a:b]
        y = ratings.values[a:b] - mean
        u = np.linalg.solve(V[items].T @ V[items] + np.eye(3), V[items].T @ y)
        u /= max(1, np.linalg.norm(u))
        w = np.asarray(question.public["counts"])[items] ** -0.25
        w /= np.linalg.norm(w)
        for j, weight, value in zip(items, w, np.clip(y, -1, 1), strict=True):
            gram[j] += weight * np.outer(u, u)
            moment[j] += weight * value * u
    released = unpack(answer.values["gram/0/0"], 3), answer.values["moment/0/0"]
    for plain, found in zip((gram, moment), released, strict=True):
        np.testing.assert_allclose(found, plain, atol=1e-2 * np.abs(plain).max())


def test_a_planted_answer_is_found() -> None:
    """Ratings of exact rank 2 around a mean: without noise, and clipping hardly anybody, unseen
    ones are predicted closely."""
    rng = np.random.default_rng(1)
    tastes = 3 + rng.normal(size=(400, 2)) @ rng.normal(size=(2, 40)) * 0.5
    rated = rng.random((400, 40)) < 0.6
    unseen = rng.random((400, 40)) < 0.1
    columns = {"num_users": 400, "num_items": 40, "value_range": (-3.0, 9.0)}
    seen, asked = (
        Interactions.from_columns(*np.nonzero(mask), tastes[mask], **columns)
        for mask in (rated & ~unseen, rated & unseen)
    )
    chosen = dataclasses.replace(
        SETTINGS,
        dimension=2,
        steps=8,
        user_ridge=0.1,
        item_ridge=0.1,
        user_radius=2.0,
        target_radius=3.0,
    )
    recipe = recipe_for(seen, non_private(1e-5), chosen)
    *_, last = train(recipe, loopback(seen, recipe), recipe.begin())
    error = predict(recipe.model(last.state), seen, asked) - asked.values
    assert np.sqrt(np.mean(error**2)) < 0.15 * asked.values.std()


def test_example_level_alternating_minimisation_is_not_called_established() -> None:
    from fedrec.recipes import guarantee_of
    from fedrec.settings import load

    promised = guarantee_of(load(None, ["recipe=published", "privacy.unit=example"]).privacy)
    assert not promised.established
    assert "NOT ESTABLISHED" in str(promised)


def test_resampling_is_charged_in_full() -> None:
    """SSP1 with R resamples has R releases of each statistic, each with 1/R of the share: std
    sqrt(R) times as large."""
    one, four = (
        ssp_settings.shares(dataclasses.replace(SETTINGS, resamples=r), "ratings", count_share=0.1)
        for r in (1, 4)
    )
    plans: list[Plan] = [calibrate(Guarantee(5.0, 1e-5), shares) for shares in (one, four)]
    assert plans[0]["gram/0/0"].mu == pytest.approx(2 * plans[1]["gram/0/3"].mu)
    assert len(plans[1].releases) == 2 + 2 * 4 * SETTINGS.steps


@pytest.mark.parametrize("sampling", ["uniform", "tail"])
def test_dpals_gives_every_kept_item_the_same_weight_in_every_report(
    sampling: Literal["uniform", "tail"],
) -> None:
    """Weight 1 / sqrt(4) on at most 4 items, so that a short history leaves part of the budget
    unused (Ada-DPALS Rem. 3.5)."""
    ratings = some_ratings(2)
    chosen = dataclasses.replace(SETTINGS, weights="constant", max_items=4, sampling=sampling)
    recipe = recipe_for(ratings, Guarantee(5.0, 1e-5), chosen)
    counts = np.arange(1.0, ITEMS + 1)
    state = {**recipe.begin(), "round": np.array(1), "mean": np.array(3.0), "counts": counts}
    question = recipe.ask(state)
    assert question is not None
    reports = ssp_client.client_steps(chosen)[question.step](question, ratings)
    gram = reports.blocks[0]
    spec = question.blocks[0]
    sizes = np.diff(ratings.user_ptr)
    assert list(np.diff(reports.user_ptr)) == list(np.minimum(sizes, 4))
    by_user = [gram.coefficients[a:b] for a, b in itertools.pairwise(reports.user_ptr) if a < b]
    assert all(
        len(np.unique(own)) == 1 and own[0] * spec.coefficient_step <= 0.5 for own in by_user
    )
    if sampling == "tail":  # counts rise with the item's number
        kept = [list(ratings.items[a:b][:4]) for a, b in itertools.pairwise(ratings.user_ptr)]
        assert kept == [list(reports.items[a:b]) for a, b in itertools.pairwise(reports.user_ptr)]
