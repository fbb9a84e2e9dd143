"""The default form from reports to a model: what is paid, what is learnt, and that only reports are
looked at."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld
from scipy import stats

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNews, PlantedNewsShape, planted_news
from fedrec.errors import BudgetExceededError
from fedrec.evaluation.impressions import evaluate_impressions, history_swap
from fedrec.news import text_topics, topics
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.reports_training import (
    Collected,
    Decoder,
    EpochDone,
    NoiseLevels,
    Trained,
    collect,
    fit,
    noisier,
    report_loss,
    serve,
)
from fedrec.news.trainer_state import ReportModelSettings
from fedrec.privacy import bounded_mean
from fedrec.privacy.bounded_mean import Coefficients, Population, TopicTable
from fedrec.privacy.click_accounting import TrainingPlan, plan_training
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams

HISTORY = 20
SHAPE = PlantedNewsShape(
    users=600, news=500, history_mean=10, impressions_mean=5, candidates=10, strength=5.0
)
NOISE = DeviceNoise.numbered(Streams(5), 600)


@pytest.fixture(scope="module")
def world() -> tuple[PlantedNews, np.ndarray, TopicTable]:
    planted = planted_news(SHAPE, seed=3)
    vectors = topics.public_vectors(planted.news, PublicFeatures({}), seed=3, dimension=40)
    return (
        planted,
        vectors,
        text_topics.text_topics(vectors, topics=18, rng=np.random.default_rng(3)),
    )


def collected(world: tuple[PlantedNews, np.ndarray, TopicTable], epsilon: float) -> Collected:
    guarantee = (
        Guarantee(epsilon, 1e-5, "click", "replace")
        if math.isfinite(epsilon)
        else non_private(1e-5, "click", "replace")
    )
    return collect(
        world[0].log.train, world[2], plan_training(guarantee), history=HISTORY, noise=NOISE
    )


def trained(
    world: tuple[PlantedNews, np.ndarray, TopicTable], got: Collected, epochs: int = 4
) -> Trained:
    settings = ReportModelSettings(epochs=epochs, batch=128)
    levels = NoiseLevels((got.coefficients.noise_std,))
    *progress, last = fit(
        got, world[2], world[1], settings, history=HISTORY, levels=levels, streams=Streams(5)
    )
    assert all(isinstance(done, EpochDone) for done in progress)
    assert isinstance(last, Trained)
    return last


def test_at_infinite_epsilon_reports_are_the_coefficients_and_labels_the_clicks(
    world: tuple[PlantedNews, np.ndarray, TopicTable],
) -> None:
    got = collected(world, math.inf)
    train = world[0].log.train
    np.testing.assert_allclose(
        got.coefficients.values,
        bounded_mean.coefficients(train.last_clicks(HISTORY), world[2]),
        atol=1e-10,
    )
    single = np.add.reduceat(train.clicked, train.candidate_ptr[:-1]) == 1
    told = np.repeat(single, np.diff(train.candidate_ptr))
    np.testing.assert_array_equal(got.labels.reported[told], train.clicked[told])
    assert got.labels.weight == math.inf


def test_the_loss_is_the_likelihood_of_what_was_reported() -> None:
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((6, 5))
    reported = rng.random((6, 5)) < 0.4
    scores[2, 4] = -np.inf
    reported[2, 4] = False
    pi = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = -np.mean([math.log1p(19.0 * pi[i][reported[i]].sum()) for i in range(6)])
    assert report_loss(
        torch.tensor(scores), torch.tensor(reported), weight=19.0
    ).item() == pytest.approx(expected, rel=1e-12)


def test_at_infinite_epsilon_the_loss_is_cross_entropy() -> None:
    scores = torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    label = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    found = report_loss(scores, torch.nn.functional.one_hot(label, 4).bool(), weight=math.inf)
    assert found.item() == pytest.approx(
        torch.nn.functional.cross_entropy(scores, label).item(), rel=1e-10
    )


@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_a_click_costs_what_was_promised_by_another_accountant(
    world: tuple[PlantedNews, np.ndarray, TopicTable], epsilon: float
) -> None:
    got = collected(world, epsilon)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(
        dp_accounting.GaussianDpEvent(got.coefficients.noise_std / (world[2].diameter / HISTORY))
    )
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-3)
    assert got.labels.epsilon == epsilon
    assert got.ledger.epsilon == pytest.approx(epsilon, rel=1e-9)


def test_a_ledger_refuses_labels_that_cost_more_than_was_promised(
    world: tuple[PlantedNews, np.ndarray, TopicTable],
) -> None:
    plan = plan_training(Guarantee(1.0, 1e-5, "click", "replace"))
    with pytest.raises(BudgetExceededError, match="label"):
        collect(
            world[0].log.train,
            world[2],
            TrainingPlan(plan.guarantee, plan.report_mu, 1.1),
            history=HISTORY,
            noise=NOISE,
        )
    with pytest.raises(BudgetExceededError, match="report"):
        collect(
            world[0].log.train,
            world[2],
            TrainingPlan(plan.guarantee, 2 * plan.report_mu, 1.0),
            history=HISTORY,
            noise=NOISE,
        )


def test_extra_noise_brings_reports_to_the_declared_level_and_no_other() -> None:
    n = 4000
    B = 5
    own = 0.3
    level = 1.0
    rng = np.random.default_rng(7)
    from fedrec.privacy.accounting import GaussianEvent

    reports = Coefficients(
        own * rng.standard_normal((n, B)), own, GaussianEvent("report", 1.0, "click", "replace")
    )
    wide = Decoder(Population(np.zeros(B), np.eye(B) * 1e12), 1.0)  # shrinks by nothing
    noise = noisier(reports, wide, NoiseLevels((own, level)), rng=rng)
    np.testing.assert_allclose(noise[0], reports.values, rtol=1e-5)
    pvalues = [
        stats.kstest(noise[1].ravel() / (level * wrong), "norm").pvalue
        for wrong in (1, 2 / 3, 3 / 2)
    ]
    assert pvalues[0] > 1e-3  # false alarms: one seed in a thousand, and the seed is fixed
    assert max(pvalues[1:]) < 1e-9


def test_levels_are_the_reports_own_and_the_noisier_ones_served() -> None:
    assert NoiseLevels.of(0.2, [0.0, 0.1, 0.2, 0.5, 0.3, 0.5]).stds == (0.2, 0.3, 0.5)


def test_training_looks_at_nothing_but_reports_and_is_a_function_of_them(
    world: tuple[PlantedNews, np.ndarray, TopicTable],
) -> None:
    got = collected(world, 5.0)
    one = trained(world, got, epochs=1)
    two = trained(world, replace(got), epochs=1)
    for (name, p), (_, q) in zip(
        one.model.named_parameters(), two.model.named_parameters(), strict=True
    ):
        assert torch.equal(p, q), name


@pytest.mark.slow
def test_planted_interests_are_found_and_another_history_loses_them(
    world: tuple[PlantedNews, np.ndarray, TopicTable],
) -> None:
    model = trained(world, collected(world, math.inf))
    test = world[0].log.test
    scores = serve(model, test, mu=math.inf, key=bytes(32)).scores
    auc = evaluate_impressions(scores, test).auc
    swapped = history_swap(
        lambda q: serve(model, q, mu=math.inf, key=bytes(32)).scores,
        test,
        rng=np.random.default_rng(1),
    ).auc
    assert auc > 0.65
    assert swapped < auc - 0.08


@pytest.mark.slow
def test_serving_noise_costs_more_the_smaller_its_epsilon(
    world: tuple[PlantedNews, np.ndarray, TopicTable],
) -> None:
    model = trained(world, collected(world, math.inf))
    test = world[0].log.test
    aucs = [
        evaluate_impressions(serve(model, test, mu=mu, key=bytes(32)).scores, test).auc
        for mu in (math.inf, 1.0, 0.05)
    ]
    assert aucs[0] > aucs[1] > aucs[2]


def test_before_any_training_the_model_ranks_as_the_public_prior(
    world: tuple[PlantedNews, np.ndarray, TopicTable],
) -> None:
    from fedrec.news.prior import public_prior
    from fedrec.news.trainer_state import ReportModel

    prior = public_prior(world[2], world[1], history=HISTORY)
    model = ReportModel(world[1], prior.matrix, ReportModelSettings(), rng=np.random.default_rng(1))
    test = world[0].log.test
    a = bounded_mean.coefficients(test.last_clicks(HISTORY), world[2]).astype(np.float32)
    with torch.no_grad():
        scores = (model.users(torch.from_numpy(a)) @ model.items().T).numpy()
    owner = np.repeat(test.users, np.diff(test.candidate_ptr))
    ours = scores[owner, test.candidates]
    theirs = prior.scores(test)
    starts = test.candidate_ptr[:-1]
    best = [int(np.argmax(part)) for part in np.split(ours, starts[1:])]
    same = np.mean(
        [
            ours_best == int(np.argmax(part))
            for ours_best, part in zip(best, np.split(theirs, starts[1:]), strict=True)
        ]
    )
    assert same > 0.5  # the prior inside is centred per topic, so that some orders differ


def test_categories_as_topics_share_alike() -> None:
    planted = planted_news(replace(SHAPE, users=50), seed=1)
    table, names = topics.category_topics(planted.news)
    np.testing.assert_allclose(table.weights.sum(1), 1.0, atol=1e-5)
    assert len(names) == table.topics
    several = replace(planted.news, subcategories=("Drama|War",) * 500)
    np.testing.assert_allclose(topics.category_topics(several)[0].weights, 0.5)


def test_k_means_finds_separate_clusters() -> None:
    rng = np.random.default_rng(2)
    centres = np.eye(6) * 10
    X = np.repeat(centres, 30, axis=0) + 0.1 * rng.standard_normal((180, 6))
    found = text_topics.kmeans(X, 6, rng=rng)
    assert np.abs(found[:, None] - centres[None]).sum(2).min(0).max() < 1.0


@pytest.mark.parametrize(("wanted", "temperature"), [(0, 0.1), (1000, 0.1), (3, 0.0)])
def test_topics_that_cannot_be_are_refused(wanted: int, temperature: float) -> None:
    with pytest.raises(ValueError, match="topics"):
        text_topics.text_topics(
            np.eye(5), topics=wanted, rng=np.random.default_rng(1), temperature=temperature
        )
