"""Task-weighted noisy gradient descent (Ada-DPALS Alg. 2, every user bounded): the five tests of a
private algorithm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, pld
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedrec.factorization import weights
from fedrec.federation.messages import RoundDone, train
from fedrec.federation.reports import within_radius
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec_research.papers import task_descent
from fedrec_research.papers.multitask import TaskData, TaskShape, planted_tasks
from fedrec_research.papers.task_descent import TaskDescent, TaskDescentSettings

SHAPE = TaskShape(users=60, tasks=12, dimension=3, tasks_per_user=5)
SETTINGS = TaskDescentSettings(dimension=3, mu=0.5, steps=3, rate=0.5, gradient_radius=0.3)


def some_tasks(seed: int, shape: TaskShape = SHAPE) -> TaskData:
    return planted_tasks(shape, streams=Streams(seed)).data


def recipe_for(
    data: TaskData,
    guarantee: Guarantee,
    settings: TaskDescentSettings = SETTINGS,
    *,
    public: bool = True,
) -> TaskDescent:
    plan = task_descent.plan_for(guarantee, settings, public_sizes=public)
    m = data.labels.num_items
    sizes = np.bincount(data.labels.items, minlength=m).astype(float) if public else None
    return TaskDescent(plan, settings, data.num_users, m, sizes)


def rounds(data: TaskData, recipe: TaskDescent, *, seed: int = 1) -> list[RoundDone]:
    steps = task_descent.client_steps(recipe.settings)
    return list(
        train(
            recipe,
            Loopback(data, steps, recipe.plan, Streams(seed), Ledger(recipe.plan.guarantee)),
            recipe.begin(),
        )
    )


def test_without_noise_the_steps_are_those_of_a_second_code() -> None:
    """To 1e-10 from what was reported, and the grid of reports moves a gradient by less than a
    hundredth."""
    data = some_tasks(3)
    recipe = recipe_for(some_tasks(3), non_private(1e-5))
    labels = data.labels
    counts = np.maximum(np.bincount(data.labels.items, minlength=12), 1.0)
    w = weights.normalised(labels, counts, mu=0.5, budget=1.0).values
    mass = counts * (counts**-0.5 / np.sqrt(12 / 60))  # eq. 16 at mu = 1/2
    theta = np.zeros((12, 3))
    for done in rounds(data, recipe):
        (reported,), (spec,) = (
            task_descent.client_steps(SETTINGS)[done.question.step](done.question, data).blocks,
            done.question.blocks,
        )
        plain = np.zeros((12, 3))
        sums = np.zeros((12, 3))
        for e, (k, i) in enumerate(zip(labels.users, labels.items, strict=True)):
            x = data.features[k]
            g = (theta[i] @ x - np.clip(labels.values[e], -1, 1)) * x
            plain[i] += w[e] * g * min(1, 0.3 / np.linalg.norm(g))
            sums[i] += float(reported.coefficients[e]) * reported.vectors[k] * spec.step * 0.3
        np.testing.assert_allclose(sums, plain, rtol=0, atol=0.01 * np.abs(plain).max())
        theta = theta - 0.5 * 3 / mass[:, None] * sums
        theta = theta / np.maximum(np.linalg.norm(theta, axis=1, keepdims=True), 1)
        np.testing.assert_allclose(recipe.theta(done.state), theta, rtol=0, atol=1e-10)


@given(seed=st.integers(0, 2**32), leaver=st.integers(0, 59), radius=st.floats(1e-3, 1e3))
def test_removing_one_user_moves_no_release_by_more_than_its_radius(
    seed: int, leaver: int, radius: float
) -> None:
    data = some_tasks(seed)
    data = TaskData(data.labels, data.features * 10.0)  # far outside the ball
    settings = replace(SETTINGS, gradient_radius=radius)
    recipe = recipe_for(data, Guarantee(1.0, 1e-5), settings, public=False)
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(12, 3))
    counts = np.maximum(rng.normal(20, 20, 12), 1)
    for state in (recipe.begin(), {"round": np.array(1), "theta": theta, "counts": counts}):
        question = recipe.ask(state)
        assert question is not None
        step = task_descent.client_steps(settings)[question.step]
        everybody = step(question, data)
        alone = step(question, data.users_subset(np.array([leaver])))
        mine = slice(everybody.user_ptr[leaver], everybody.user_ptr[leaver + 1])
        np.testing.assert_array_equal(
            everybody.blocks[0].coefficients[mine], alone.blocks[0].coefficients
        )
        np.testing.assert_array_equal(
            everybody.blocks[0].vectors[leaver], alone.blocks[0].vectors[0]
        )
        assert within_radius(everybody, question.releases).all()


def test_noise_has_the_planned_std_and_no_other() -> None:
    """Kolmogorov-Smirnov at 0.001 on the first step (one false alarm in a thousand seeds); 2/3 and
    3/2 of the std must be refused."""
    data = some_tasks(5)
    recipe = recipe_for(some_tasks(5), Guarantee(1.0, 1e-5))
    silent = rounds(data, recipe_for(data, non_private(1e-5)))[0].answer.values["gradient/0"]
    draws = np.concatenate(
        [
            (rounds(data, recipe, seed=s)[0].answer.values["gradient/0"] - silent).ravel()
            for s in range(60)
        ]
    )
    for factor, fits in ((1.0, True), (2 / 3, False), (1.5, False)):
        assert (
            stats.kstest(draws * recipe.plan["gradient/0"].mu / factor, "norm").pvalue > 0.001
        ) == fits


@pytest.mark.parametrize("public", [True, False])
def test_epsilon_equals_that_of_an_independent_accountant(public: bool) -> None:
    plan = recipe_for(some_tasks(1), Guarantee(5.0, 1e-5), public=public).plan
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    for release in plan.releases:
        accountant.compose(GaussianDpEvent(release.noise_multiplier))
    assert accountant.get_epsilon(1e-5) == pytest.approx(5.0, rel=1e-3)
    assert ("public knowledge" in str(plan.guarantee)) == public


def test_planted_tasks_are_found_with_estimated_sizes() -> None:
    """At App. C's sizes and epsilon 5 the error of theta is a tenth of theta's own size."""
    planted = planted_tasks(TaskShape(), streams=Streams(1))
    settings = replace(SETTINGS, dimension=5, steps=10, rate=1.0, gradient_radius=0.1)
    recipe = recipe_for(planted.data, Guarantee(5.0, 1e-5), settings, public=False)
    found = recipe.theta(rounds(planted.data, recipe)[-1].state)
    assert np.linalg.norm(found - planted.theta) < 0.1 * np.linalg.norm(planted.theta)
