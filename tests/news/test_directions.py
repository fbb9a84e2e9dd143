"""Signed public directions as the rows of a report: what they are, what they rank by untrained, and
that a model learns from them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.evaluation.impressions import evaluate_impressions, history_swap
from fedrec.news import text_topics, topics
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.prior import public_prior, rebuilding
from fedrec.news.reports_training import NoiseLevels, Trained, collect, fit, serve
from fedrec.news.trainer_state import ReportModelSettings
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.bounded_mean import BITS, topic_table
from fedrec.privacy.click_accounting import plan_training
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams

SHAPE = PlantedNewsShape(
    users=600, news=500, history_mean=10, impressions_mean=5, candidates=10, strength=5.0
)


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def test_rows_are_the_leading_coordinates_at_length_one_and_never_longer() -> None:
    X = np.random.default_rng(1).standard_normal((300, 12)).astype(np.float32)
    table = text_topics.directions(X, width=5)
    np.testing.assert_allclose(table.weights, unit(X[:, :5].astype(np.float64)), atol=2.0**-BITS)
    assert (table.rows**2).sum(1).max() <= 4**BITS
    assert math.sqrt(2) < table.diameter <= 2
    X[7] = 0
    assert not text_topics.directions(X, width=5).rows[7].any()


@pytest.mark.parametrize("width", [0, 13])
def test_more_directions_than_there_are_coordinates_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match="directions"):
        text_topics.directions(np.eye(12), width=width)


def test_untrained_directions_rank_by_the_mean_cosine() -> None:
    planted = planted_news(SHAPE, seed=3)
    X = np.random.default_rng(2).standard_normal((500, 9))
    prior = public_prior(text_topics.directions(X, width=9), X, history=4)
    asked = planted.log.test
    cosines = unit(X) @ unit(X).T
    padded = np.vstack([cosines, np.zeros(500)])[asked.last_clicks(4)].sum(1) / 4
    expected = padded[np.repeat(asked.users, np.diff(asked.candidate_ptr)), asked.candidates]
    np.testing.assert_allclose(prior.scores(asked), expected, atol=1e-4)


def test_untrained_topics_of_one_each_rank_by_the_mean_vector_of_a_topic() -> None:
    X = unit(np.random.default_rng(2).standard_normal((60, 7)))
    of = np.arange(60) % 5
    means = np.stack([X[of == topic].mean(0) for topic in range(5)])
    np.testing.assert_allclose(rebuilding(topic_table(np.eye(5)[of]), X), means, atol=1e-6)
    nobody = np.column_stack([np.eye(5)[of], np.zeros(60)])  # a topic that no item has
    np.testing.assert_allclose(
        rebuilding(topic_table(nobody), X), np.vstack([means, np.zeros(7)]), atol=1e-6
    )


def trained(epsilon: float) -> Trained:
    planted = planted_news(SHAPE, seed=3)
    vectors = topics.public_vectors(planted.news, PublicFeatures({}), seed=3, dimension=40)
    table = text_topics.directions(vectors, width=18)
    guarantee = (
        Guarantee(epsilon, 1e-5, "click", "replace")
        if math.isfinite(epsilon)
        else non_private(1e-5, "click", "replace")
    )
    got = collect(
        planted.log.train,
        table,
        plan_training(guarantee),
        history=20,
        noise=DeviceNoise.numbered(Streams(5), planted.log.train.num_users),
    )
    assert got.coefficients.noise_std == pytest.approx(
        0 if math.isinf(epsilon) else table.diameter / 20 / mu_for(epsilon, 1e-5), rel=1e-6
    )
    settings = replace(ReportModelSettings(), epochs=4, batch=128)
    levels = NoiseLevels((got.coefficients.noise_std,))
    *_, last = fit(got, table, vectors, settings, history=20, levels=levels, streams=Streams(5))
    assert isinstance(last, Trained)
    return last


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [math.inf, 5.0])
def test_planted_interests_are_found_from_directions_and_another_history_loses_them(
    epsilon: float,
) -> None:
    model = trained(epsilon)
    test = planted_news(SHAPE, seed=3).log.test
    auc = evaluate_impressions(serve(model, test, mu=math.inf, key=bytes(32)).scores, test).auc
    swapped = history_swap(
        lambda q: serve(model, q, mu=math.inf, key=bytes(32)).scores,
        test,
        rng=np.random.default_rng(1),
    ).auc
    assert auc > 0.65
    assert swapped < auc - 0.08
