"""The simple recipes: what their reports hold, what their servers make of it, and that they are
worth something."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.planted import planted, planted_truth, shape_of_sizes
from fedrec.data.splits import Split, random_split
from fedrec.errors import SettingsError
from fedrec.evaluation.bias_baselines import item_user_bias
from fedrec.factorization.facts import PublicFacts, predict
from fedrec.factorization.rankers import Model, ranker_of
from fedrec.federation.messages import Question, State, train
from fedrec.federation.reports import block
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger, mu_for
from fedrec.randomness import Streams
from fedrec.recipes import dp_bias, prepare
from fedrec.settings import load


def trained(keys: list[str], events: Interactions, seed: int = 1) -> tuple[Model, State]:
    facts = PublicFacts(
        events.num_users, events.num_items, events.kind, events.value_range, None, Streams(seed)
    )
    made = prepare(load(None, keys), facts)
    *_, last = train(
        made.recipe,
        Loopback(events, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee)),
        made.recipe.begin(),
    )
    return made.recipe.model(last.state), last.state


def rmse(model: Model, split: Split) -> float:
    targets = split.validation.targets
    return float(
        np.sqrt(np.mean((predict(model, split.validation.history, targets) - targets.values) ** 2))
    )


def test_a_report_of_residuals_holds_what_it_says_of_one_user() -> None:
    """Second code for a user with ratings 5, 2 and 4 of items 0, 1 and 3."""
    mine = Interactions.from_columns(
        np.zeros(3, int),
        np.array([0, 1, 3]),
        np.array([5.0, 2.0, 4.0]),
        num_users=1,
        num_items=4,
        value_range=(1.0, 5.0),
    )
    bias = np.array([0.5, -0.2, 0.3, 0.1])
    variance = np.array([0.0, 0.1, 0.2, 0.3])
    omega = np.array([1.0, 2.0, 3.0, 0.5])
    numbers = {"mean": 0.25, "own": 0.2, "noise": 0.8, "kappa": 0.35}
    public = {"bias": bias, "variance": variance, "omega": omega} | {
        name: np.array(number) for name, number in numbers.items()
    }
    blocks = [block(name, "linear", rows=4, width=1) for name in ("residuals", "weights")] + [
        block("moments", "linear", rows=1, width=3)
    ]
    spec = dp_bias.ReleaseSpec("residuals/0", tuple(blocks))
    sent = dp_bias.report_residuals(Question(1, "bias/residuals", public, (spec,)), mine)

    x = [2.0 - 0.25, -1.0 - 0.25, 1.0 - 0.25]
    sums = sum(
        (value - bias[j]) / (0.8 + variance[j]) for value, j in zip(x, (0, 1, 3), strict=True)
    )
    own = sums / (sum(1 / (0.8 + variance[j]) for j in (0, 1, 3)) + 1 / 0.2)
    raw = [
        (omega[j] * (value - own), omega[j] * 0.35) for value, j in zip(x, (0, 1, 3), strict=True)
    ]
    unit = math.sqrt((1 - dp_bias.MOMENTS) / sum(a * a + b * b for a, b in raw))
    mean = sum(x) / 3
    s2 = sum((value - sum(x) / 3) ** 2 for value in x) / 2
    moments = [1.0, s2 / 3.0, (mean**2 - s2 / 3) / 1.5]

    def real(place: int) -> np.ndarray:
        part = sent.blocks[place]
        rows = (
            part.coefficients[:, None]
            * blocks[place].coefficient_step
            * part.vectors
            * blocks[place].vector_step
        )
        return np.asarray(rows[:, 0] if place < 2 else rows[0])

    np.testing.assert_allclose(real(0), [unit * a for a, _ in raw], atol=2e-4)
    np.testing.assert_allclose(real(1), [unit * b for _, b in raw], atol=2e-4)
    np.testing.assert_allclose(
        real(2), [math.sqrt(dp_bias.MOMENTS / 3) * part for part in moments], atol=2e-4
    )


def test_without_noise_the_variances_that_were_planted_are_found() -> None:
    """Scale .5 to 5, mapped to [-2, 2]: std .4 of users' means, and .75 and .45 of noise and tastes
    together; few ratings at its ends."""
    shape = dataclasses.replace(shape_of_sizes(6_000, 200, 150_000), mean=2.75)
    events = planted(shape, seed=2).interactions
    truth = planted_truth(shape, seed=2)
    _, state = trained(["recipe=dp-bias", "privacy.epsilon=inf"], events)
    unit = (4 / 4.5) ** 2
    assert float(state["own"]) == pytest.approx(unit * 0.4**2, rel=0.15)
    assert float(state["noise"]) == pytest.approx(unit * (0.75**2 + 0.45**2), rel=0.15)
    often = np.bincount(events.items, minlength=200) > 200
    assert np.corrcoef(np.asarray(state["bias"])[often], truth.item_bias[often])[0, 1] > 0.97


@pytest.mark.parametrize(
    ("users", "items", "per"), [(300, 120, 25), (300, 300, 10), (4_000, 2_000, 25)]
)
def test_it_is_near_the_biases_without_privacy_and_never_far_above_the_mean(
    users: int, items: int, per: int
) -> None:
    """One split and one draw of the noise, both fixed.

    Item + user bias without privacy is the plain method's ridge solution."""
    split = random_split(
        planted(shape_of_sizes(users, items, users * per), seed=3).interactions, seed=1
    )
    targets = split.validation.targets
    plain = item_user_bias(split.train).predict(targets.users, targets.items)
    best = float(np.sqrt(np.mean((plain - targets.values) ** 2)))
    spread = float(np.std(targets.values))
    models = {
        e: trained(["recipe=dp-bias", f"privacy.epsilon={e}"], split.train)[0]
        for e in ("0.05", "1", "5", "inf")
    }
    found = {e: rmse(model, split) for e, model in models.items()}
    assert found["inf"] < best * 1.005, found
    assert found["5"] < best + 0.3 * (spread - best), (found, best, spread)
    assert found["1"] < best + 0.6 * (spread - best), (found, best, spread)
    assert found["0.05"] < spread * 1.1, (found, spread)


def test_its_lists_are_those_of_a_ranker_by_counts_and_not_by_predictions() -> None:
    events = planted(shape_of_sizes(2_000, 200, 50_000), seed=2).interactions
    model, state = trained(["recipe=dp-bias", "privacy.epsilon=5"], events)
    first = np.argsort(-(ranker_of(model).item_vectors @ ranker_of(model).user_vectors(events)[0]))[
        :10
    ]
    counts = np.asarray(state["counts"])
    assert counts[first].mean() > 1.5 * counts[np.argsort(-model.item_vectors[:, -1])[:10]].mean()


def test_popularity_without_noise_is_the_weighted_count_and_with_noise_gets_the_whole_budget() -> None:  # fmt: skip
    ratings = planted(shape_of_sizes(500, 60, 5_000), seed=2).interactions
    clicks = Interactions(
        ratings.user_ptr, ratings.items, np.ones(len(ratings), np.float32), 60, (0.0, 1.0), "clicks"
    )
    model, state = trained(["recipe=dp-popularity", "privacy.epsilon=inf"], clicks)
    weights = 1 / np.sqrt(np.diff(clicks.user_ptr))[clicks.users]
    exact = np.bincount(clicks.items, weights=weights, minlength=60)
    np.testing.assert_allclose(np.asarray(state["counts"]), exact, rtol=1e-3, atol=0.02)
    scores = model.item_vectors @ model.user_vectors(clicks).T
    assert np.array_equal(np.argsort(-scores[:, 0]), np.argsort(-np.asarray(state["counts"])))
    facts = PublicFacts(500, 60, "clicks", (0.0, 1.0), None, Streams(1))
    [planned] = prepare(
        load(None, ["recipe=dp-popularity", "privacy.epsilon=5"]), facts
    ).plan.releases
    assert planned.mu == pytest.approx(mu_for(5.0, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["recipe=dp-bias", "model.dimension=2"], "it has no settings"),
        (["recipe=dp-bias", "data.kind=clicks"], "fits ratings"),
        (["recipe=dp-popularity", "data.kind=ratings"], "fits clicks"),
        (["recipe=dp-popularity", "privacy.unit=example"], "whole users"),
        (["recipe=dp-bias", "compare.published=true"], "compare.published needs"),
        (
            ["recipe=dp-bias", "collective.users_share=0.5", 'collective.sides=["public-users"]'],
            "needs recipe",
        ),
    ],
)
def test_settings_that_would_be_ignored_are_refused(keys: list[str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(None, keys)


@pytest.mark.parametrize(
    ("recipe", "kind", "remedy"),
    [("dp-bias", "clicks", "dp-popularity"), ("dp-popularity", "ratings", "clicks")],
)
def test_data_of_the_other_kind_is_refused_with_a_remedy(
    recipe: str, kind: str, remedy: str
) -> None:
    facts = PublicFacts(
        10, 10, "clicks" if kind == "clicks" else "ratings", (1.0, 5.0), None, Streams(1)
    )
    with pytest.raises(SettingsError, match=f"this data holds {kind}") as caught:
        prepare(load(None, [f"recipe={recipe}"]), facts)
    assert remedy in caught.value.remedy
