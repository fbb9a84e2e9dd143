"""`central`: the gradient, its bound, its noise and its price."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import BudgetExceededError
from fedrec.evaluation.impressions import evaluate_impressions, history_swap
from fedrec.federation.messages import Question, Reports
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.reports import ExactSums, within_radius
from fedrec.news import central, text_topics, topics
from fedrec.news.central import CentralSettings, plan_of
from fedrec.news.central_client import (
    Users,
    Whitening,
    gradient_question,
    gradient_reports,
    population_question,
    population_reports,
    user_gradients,
)
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams

SHAPE = PlantedNewsShape(
    users=600, news=500, history_mean=10, impressions_mean=5, candidates=10, strength=5.0
)


@pytest.fixture(scope="module")
def world() -> tuple[Impressions, Impressions, TopicTable, np.ndarray]:
    planted = planted_news(SHAPE, seed=2)
    vectors = topics.public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=24)
    return (
        planted.log.train,
        planted.log.test,
        text_topics.text_topics(vectors, topics=10, rng=np.random.default_rng(2)),
        vectors,
    )


def some_users(seed: int, n: int = 7) -> tuple[Users, Whitening, np.ndarray, np.ndarray]:
    """A few users with random impressions of 2 to 5 of 11 items, B = 4, p = 3."""
    rng = np.random.default_rng(seed)
    owner = np.sort(np.concatenate([np.arange(n), rng.integers(n, size=9)])).astype(np.int32)
    sizes = rng.integers(2, 6, len(owner))
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    candidates = np.concatenate([rng.permutation(11)[:size] for size in sizes]).astype(np.int32)
    clicked = rng.random(len(candidates)) < 0.4
    data = Impressions(
        11, np.zeros(n + 1, np.int64), np.empty(0, np.int32), owner, ptr, candidates, clicked
    )
    a = rng.dirichlet(np.ones(4), n)
    X = rng.standard_normal((11, 3))
    return (
        Users(a, data),
        Whitening(a.mean(0), 3 * np.eye(4)),
        rng.standard_normal((5, 3)),
        X / np.linalg.norm(X, axis=1, keepdims=True),
    )


def slow_loss(z: np.ndarray, W: np.ndarray, data: Impressions, X: np.ndarray, user: int) -> float:
    mine = np.flatnonzero(data.users == user)
    total = 0.0
    for i in mine:
        part = slice(data.candidate_ptr[i], data.candidate_ptr[i + 1])
        scores = X[data.candidates[part]] @ (z @ W)
        y = data.clicked[part]
        if y.any():
            total -= float((scores - np.log(np.exp(scores).sum()))[y].mean())
    return total / max(len(mine), 1)


def test_a_users_outer_product_is_the_gradient_of_its_loss() -> None:
    users, whitening, W, X = some_users(1)
    z = whitening(users.coefficients)
    g = user_gradients(z @ W, users.data, X)
    for k in range(len(z)):
        for at in np.ndindex(W.shape):
            bump = np.zeros_like(W)
            bump[at] = 1e-6
            slope = (
                slow_loss(z[k], W + bump, users.data, X, k)
                - slow_loss(z[k], W - bump, users.data, X, k)
            ) / 2e-6
            assert z[k, at[0]] * g[k, at[1]] == pytest.approx(slope, abs=1e-7)


@given(st.integers(0, 10_000), st.floats(0.01, 3))
def test_every_report_stays_within_the_declared_radius(seed: int, clip: float) -> None:
    users, whitening, W, X = some_users(seed)
    reports = gradient_reports(users, whitening, W * 5, X, clip=clip)
    assert within_radius(reports, gradient_question(1, 5, 3).releases).all()
    assert within_radius(population_reports(users), population_question(4).releases).all()


@given(st.integers(0, 10_000), st.integers(0, 6))
def test_when_a_user_leaves_the_sum_moves_by_at_most_the_clip(seed: int, leaver: int) -> None:
    users, whitening, W, X = some_users(seed)
    stays = np.delete(np.arange(7), leaver)
    fewer = Users(users.coefficients[stays], users.data.users_subset(stays))
    question = gradient_question(1, 5, 3)
    moved = summed(gradient_reports(users, whitening, W, X, clip=0.3), question) - summed(
        gradient_reports(fewer, whitening, W, X, clip=0.3), question
    )
    assert np.linalg.norm(moved) <= 1.0


def summed(reports: Reports, question: Question) -> np.ndarray:
    sums = ExactSums(question.blocks)
    sums.add(reports)
    return np.asarray(sums.blocks[0] * question.blocks[0].step)


def test_without_noise_the_sum_is_that_of_the_clipped_gradients_up_to_the_grid() -> None:
    users, whitening, W, X = some_users(3)
    z = whitening(users.coefficients)
    g = user_gradients(z @ W, users.data, X)
    g *= np.minimum(1, 0.3 / np.linalg.norm(g, axis=1, keepdims=True)) / 0.3
    found = summed(gradient_reports(users, whitening, W, X, clip=0.3), gradient_question(1, 5, 3))
    np.testing.assert_allclose(found, z.T @ g, atol=7 * 3 * 2.0**-13)


def test_noise_has_its_std_and_no_other() -> None:
    plan = plan_of(Guarantee(3.0, 1e-5), CentralSettings(rounds=2))
    question = gradient_question(1, 11, 200)
    answer, _ = release(
        question, [np.zeros((11, 200), np.int64)], plan, Ledger(plan.guarantee), noise=Streams(4)
    )
    std = noise_stds(question, plan)["gradient/1"]
    noise = answer.values["gradient"].ravel() / std
    pvalues = [stats.kstest(noise / wrong, "norm").pvalue for wrong in (1, 2 / 3, 3 / 2)]
    assert pvalues[0] > 1e-3  # false alarms: one seed in a thousand, and the seed is fixed
    assert max(pvalues[1:]) < 1e-9
    assert std == pytest.approx(1 / plan["gradient/1"].mu, rel=1e-4)


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 10.0])
def test_all_releases_together_cost_what_was_promised_by_another_accountant(epsilon: float) -> None:
    opinions = plan_of(Guarantee(epsilon, 1e-5), CentralSettings()).opinions()
    assert opinions.gdp == pytest.approx(epsilon, rel=1e-9)
    assert opinions.pld == pytest.approx(epsilon, rel=2e-3)
    assert opinions.rdp >= epsilon


def test_a_round_too_many_is_refused(
    world: tuple[Impressions, Impressions, TopicTable, np.ndarray],
) -> None:
    train, _, table, vectors = world
    settings = CentralSettings(rounds=2)
    generous = calibrate(Guarantee(20.0, 1e-5), {"population": 1, "gradient/1": 1, "gradient/2": 1})
    plan = Plan(Guarantee(5.0, 1e-5), generous.releases)
    with pytest.raises(BudgetExceededError):
        list(central.train(train, table, vectors, plan, settings, history=20, noise=Streams(1)))


def test_planted_interests_are_found(
    world: tuple[Impressions, Impressions, TopicTable, np.ndarray],
) -> None:
    train, test, table, vectors = world
    settings = CentralSettings(rounds=8, width=24)
    *_, last = central.train(
        train,
        table,
        vectors,
        plan_of(non_private(1e-5), settings),
        settings,
        history=20,
        noise=Streams(1),
    )
    bare = non_private(1e-5, "click", "replace")
    auc = evaluate_impressions(last.model.serve(test, guarantee=bare, key=bytes(32)), test).auc
    swapped = history_swap(
        lambda q: last.model.serve(q, guarantee=bare, key=bytes(32)),
        test,
        rng=np.random.default_rng(1),
    ).auc
    assert auc > 0.6
    assert swapped < auc - 0.05
    assert math.isinf(last.ledger.epsilon)
