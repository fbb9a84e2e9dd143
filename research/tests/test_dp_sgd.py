"""The five tests of a private algorithm for DP-SGD on whole users, a trusted curator's training."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

pytest.importorskip("opacus")

import dp_accounting
from dp_accounting import pld
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.errors import SettingsError
from fedrec.factorization.facts import predict
from fedrec.privacy.accounting import epsilon_of
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec_research.dp_sgd import sampled as dp_sgd
from fedrec_research.dp_sgd.sampled import DpSgdSettings, train_dpsgd

DELTA = 1e-5
SMALL = DpSgdSettings(dimension=2, steps=2, sample_rate=1.0, rate=0.05, user_ridge=2.0)


def some_ratings(seed: int, num_users: int = 8, num_items: int = 12) -> Interactions:
    """Users of very different sizes; the first rates nothing."""
    rng = np.random.default_rng(seed)
    pairs = [
        (k, j)
        for k in range(1, num_users)
        for j in np.flatnonzero(rng.random(num_items) < rng.random())
    ]
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    values = rng.integers(1, 6, len(users)).astype(float)
    return Interactions.from_columns(
        users, items, values, num_users=num_users, num_items=num_items, value_range=(1.0, 5.0)
    )


def summed_gradient(ratings: Interactions, noise: float = 0.0, seed: int = 1) -> np.ndarray:
    """What one full step divides and hands to Adam: clipped gradients of all users, added up, with
    noise."""
    kept = dataclasses.replace(SMALL, chunk=3)
    with dp_sgd.private(
        dp_sgd.UserLoss(dp_sgd.start(ratings, kept, Streams(1)), 2.0, 3.0),
        5,
        kept,
        noise,
        Streams(seed),
    ) as trained:
        dp_sgd.step(trained, ratings, np.arange(ratings.num_users))
        (table,) = trained.optimizer.params
        return np.asarray(table.grad, np.float64) * 5


def by_hand(ratings: Interactions, table: np.ndarray) -> np.ndarray:
    """Second code, user by user: minus the residuals times (u, 1), clipped to norm 1."""
    total = np.zeros_like(table)
    d = table.shape[1] - 1
    for a, b in itertools.pairwise(ratings.user_ptr):
        items = ratings.items[a:b]
        V = table[ratings.items[a:b], :d]
        y = ratings.values[a:b] - 3.0 - table[items, d]
        own = y.sum() / (len(y) + 3)
        u = np.linalg.solve(V.T @ V + 2 * np.eye(d), V.T @ (y - own))
        rows = -np.outer(y - own - V @ u, np.append(u, 1.0))
        total[items] += rows / max(1.0, np.linalg.norm(rows))
    return total


def test_with_an_infinite_budget_it_is_adam_on_clipped_gradients_of_users() -> None:
    """Networks are float32, so to 1e-5."""
    ratings = some_ratings(1)
    table = np.asarray(dp_sgd.start(ratings, SMALL, Streams(1)), np.float64)
    np.testing.assert_allclose(summed_gradient(ratings), by_hand(ratings, table), atol=1e-5)
    first = np.zeros_like(table)
    second = np.zeros_like(table)
    for t in (1, 2):
        g = by_hand(ratings, table) / ratings.num_users
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g**2
        table = table - 0.05 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    found = train_dpsgd(ratings, non_private(DELTA), SMALL, streams=Streams(1)).model.item_vectors
    np.testing.assert_allclose(found[:, [0, 1, 3]], table, atol=1e-4)


@limits(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), leaver=st.integers(0, 7))
def test_the_sum_of_gradients_moves_by_at_most_1_when_a_user_leaves(seed: int, leaver: int) -> None:
    ratings = some_ratings(seed)
    staying = ratings.select(np.repeat(np.arange(8) != leaver, np.diff(ratings.user_ptr)))
    assert np.linalg.norm(summed_gradient(ratings) - summed_gradient(staying)) <= 1 + 1e-5


def test_noise_has_the_planned_distribution_and_no_other() -> None:
    """Kolmogorov-Smirnov at level 1e-4 on 40 steps; stds a third off fail it."""
    silent = some_ratings(1).select(np.zeros(len(some_ratings(1)), np.bool_))
    noise = (
        np.concatenate(
            [summed_gradient(silent, noise=3.0, seed=seed).ravel() for seed in range(40)]
        )
        / 3.0
    )
    assert stats.kstest(noise, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / wrong, "norm").pvalue < 1e-4


@pytest.mark.parametrize(("epsilon", "share", "steps"), [(1.0, 0.1, 20), (5.0, 0.1, 30)])
def test_epsilon_equals_an_independent_computation(
    epsilon: float, share: float, steps: int
) -> None:
    """The noise that is really used, priced by dp_accounting for both directions: its steps of a
    Poisson-sampled Gaussian."""
    chosen = dataclasses.replace(SMALL, sample_rate=share, steps=steps)
    noise = dp_sgd.noise_multiplier(Guarantee(epsilon, DELTA), chosen)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise)), steps
    )
    assert epsilon * 0.98 <= float(accountant.get_epsilon(DELTA)) <= epsilon
    assert epsilon * 0.999 <= dp_sgd.spent(noise, chosen, DELTA) <= epsilon


def test_with_everybody_in_every_step_accounting_is_exact() -> None:
    noise = dp_sgd.noise_multiplier(Guarantee(5.0, DELTA), SMALL)
    assert epsilon_of(math.sqrt(2) / noise, DELTA) == pytest.approx(5.0, rel=1e-9)


@pytest.mark.slow
def test_a_planted_answer_is_found() -> None:
    """Planted ratings: without noise far below the mean's error on unseen events, with noise still
    below it."""
    everything = planted(
        dataclasses.replace(SHAPES["small"], users=3_000, events=75_000), seed=1
    ).interactions
    unseen = np.random.default_rng(1).random(len(everything)) < 0.1
    seen = everything.select(~unseen)
    asked = everything.select(unseen)
    for epsilon, gain in ((math.inf, 0.90), (20.0, 0.92), (5.0, 0.95)):
        settings = DpSgdSettings(dimension=2, steps=30, sample_rate=0.1, rate=0.05, user_ridge=2.0)
        done = train_dpsgd(seen, Guarantee(epsilon, DELTA), settings, streams=Streams(1))
        error = predict(done.model, seen, asked) - asked.values
        assert np.sqrt(np.mean(error**2)) < gain * np.std(asked.values), epsilon
        assert done.guarantee.epsilon <= epsilon


def test_guarantees_for_examples_and_clicks_are_refused() -> None:
    with pytest.raises(SettingsError, match="clips users"):
        train_dpsgd(some_ratings(1), Guarantee(5.0, DELTA, "example"), SMALL, streams=Streams(1))
    clicks = planted(dataclasses.replace(SHAPES["small"], kind="clicks"), seed=1).interactions
    with pytest.raises(SettingsError, match="holds clicks"):
        train_dpsgd(clicks, Guarantee(5.0, DELTA), SMALL, streams=Streams(1))
