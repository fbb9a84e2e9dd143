"""The M-step for the widths of users' vectors: what it finds on vectors that are drawn, and what it
leaves as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrec.data.planted import PlantedShape, planted
from fedrec.factorization.default_ratings.client import step_scales
from fedrec.factorization.default_ratings.cross_fitting import CrossFit
from fedrec.factorization.default_ratings.recipe import DefaultRecipe
from fedrec.factorization.default_ratings.scales import (
    _NARROWEST,
    _WIDEST,
    StepScales,
    rescaled,
    widths,
)
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load

D = 5
WIDTH = 2
KNOWN = np.array([0.6, 0.4, 0.3, 0.2, 0.1])


def scales(known: np.ndarray) -> StepScales:
    expected = StepScales.expected(
        0.7, KNOWN[:WIDTH], 0.06, stds=(0.25, 0.5), alpha=1.5, users=100, sizes=((1.0, 1.0),)
    )
    return replace(expected, known=known)


def state() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    one = {name: rng.normal(size=(7, D)) for name in ("phi", "public_phi", "rest")}
    beside_bias = {
        name: rng.uniform(0.5, 2, (7, 1 + WIDTH))
        for name in ("observed", "precision", "observed_variance")
    }
    return one | beside_bias | {"variances": rng.uniform(0.1, 1, (7, 1 + WIDTH))}


def test_what_was_expected_changes_nothing() -> None:
    np.testing.assert_allclose(
        widths(scales(KNOWN[:WIDTH]), scales(KNOWN[:WIDTH]), KNOWN), np.ones(D)
    )


@pytest.mark.slow
def test_repeated_steps_find_the_spread_that_vectors_were_drawn_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """w ~ N(0, s^2) seen through noise of variance t: EM with the posterior under the prior of the
    moment ends at the s of the draw.

    200,000 draws: the mean square has a relative standard deviation of .003, and .03 is ten of
    them.
    """
    truth = np.array([0.3, 1.6])
    t = 0.5
    users = 200_000
    rng = np.random.default_rng(3)
    seen = truth * rng.standard_normal((users, WIDTH)) + np.sqrt(t) * rng.standard_normal(
        (users, WIDTH)
    )
    s = np.ones(WIDTH)
    for _ in range(200):
        known = s**2 / (s**2 + t)  # mean square of the posterior mean, in units of the prior
        found = np.mean((seen * known / s) ** 2, axis=0)
        s *= widths(scales(known), scales(found), known)
    np.testing.assert_allclose(s, truth, rtol=0.03)


def test_directions_that_no_step_asks_for_get_what_the_asked_ones_show_together() -> None:
    narrower = widths(scales(KNOWN[:WIDTH]), scales(KNOWN[:WIDTH] / 2), KNOWN)
    assert (narrower < 1).all()
    # the fourth power: a variance, half a step
    np.testing.assert_allclose(narrower**4, 1 - KNOWN / 2)


def test_a_slope_scales_the_variance_of_all_directions_but_the_users_own_mean() -> None:
    expected = scales(KNOWN[:WIDTH])
    np.testing.assert_allclose(
        widths(expected, replace(expected, slope=0.25), KNOWN), [1.0, *[0.5] * (D - 1)]
    )


def test_tastes_that_add_twice_what_they_should_have_a_slope_of_a_half() -> None:
    """Predictions a sum of the own mean and g, ratings of it and g / 2: what step_scales reports
    has the slope 1/2, exactly."""
    rng = np.random.default_rng(5)
    n = 12
    users = 40
    added = rng.normal(size=n * users)
    own = rng.normal(size=n * users)
    # of ratings less both
    fit = CrossFit(added / 2 - added, np.zeros((users, 1)), np.full(n * users, 0.5))
    pointers = np.arange(users + 1) * n
    owners = np.repeat(np.arange(users), n)
    columns = step_scales(pointers, fit, added / 2, owners, own, np.ones(users))
    assert columns[:, 4].sum() / columns[:, 5].sum() == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("interaction", "low", "high"), [(0.0, 0.0, 0.015), (0.9, 0.05, 1.0)])
def test_tastes_add_to_predictions_where_there_are_any(
    interaction: float, low: float, high: float
) -> None:
    """1,200 planted users at epsilon 20: the mean square of what the trained model's tastes add,
    for people without tastes and with strong ones. Over ten seeds it was .004 to .008, and .09 to
    .17."""
    world = planted(
        PlantedShape(users=1_200, items=150, events=24_000, interaction_std=interaction), seed=4
    )
    data = world.interactions
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, world.features, Streams(1)
    )
    made = prepare(load(None, ["privacy.epsilon=20"]), facts)
    link = Loopback(data, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    assert isinstance(made.recipe, DefaultRecipe)
    assert low <= made.recipe._added(last.state, made.recipe._known(last.state)) <= high


def test_a_release_of_noise_moves_no_width_far() -> None:
    for wild in (1e-9, 1e9):
        factors = widths(scales(KNOWN[:WIDTH]), scales(np.full(WIDTH, wild)), KNOWN)
        assert (factors >= _NARROWEST**0.25).all()
        assert (factors <= _WIDEST**0.25).all()


def test_a_rescaled_state_says_the_same_of_every_rating() -> None:
    """phi'w is the same where w is divided by what phi is multiplied with: observations, their
    variances and what shrinks them too."""
    before = state()
    factors = np.array([0.5, 2.0, 1.0, 0.3, 0.7])
    after = before | rescaled(before, factors)
    w = np.random.default_rng(1).normal(size=D)
    for name in ("phi", "public_phi"):
        np.testing.assert_allclose(after[name] @ (w / factors), before[name] @ w)
    # the bias has no width
    np.testing.assert_array_equal(after["observed"][:, 0], before["observed"][:, 0])
    np.testing.assert_allclose(
        after["observed"][:, 1:] @ (w / factors)[:WIDTH], before["observed"][:, 1:] @ w[:WIDTH]
    )
    for name in ("observed_variance", "variances"):
        np.testing.assert_allclose(
            after[name][:, 1:] / after["observed"][:, 1:] ** 2,
            before[name][:, 1:] / before["observed"][:, 1:] ** 2,
        )
    np.testing.assert_allclose(
        after["precision"][:, 1:] * after["observed"][:, 1:] ** 2,
        before["precision"][:, 1:] * before["observed"][:, 1:] ** 2,
    )
    np.testing.assert_allclose(after["variance"], after["variances"].sum(axis=1))
