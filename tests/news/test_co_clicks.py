"""News without a text have rows by what their readers click besides, where that tells anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.evaluation.impressions import evaluate_impressions
from fedrec.news import co_clicks
from fedrec.news.co_clicks import clicked_together, with_untold
from fedrec.news.labels import LabelReports
from fedrec.news.local_clients import LocalClients
from fedrec.news.prior import public_prior
from fedrec.news.reports_training import Collected, Decoder, Trained
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue, TrainedNews
from fedrec.news.trainer_state import ReportModel, ReportModelSettings
from fedrec.news.variant import train_news
from fedrec.privacy.accounting import GaussianEvent
from fedrec.privacy.bounded_mean import Coefficients, topic_table
from fedrec.privacy.click_accounting import ClickAccountant
from fedrec.privacy.guarantee import non_private
from fedrec.privacy.selection import PureEvent
from fedrec.settings import validated

B = 4
NEWS = 300


def some_reports(
    *, taste: float, users: int = 1_500, seed: int = 0
) -> tuple[np.ndarray, Collected]:
    """Unit rows (m, B), and what readers report whose clicks follow them with that strength."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((NEWS, B))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    readers = rng.standard_normal((users, B))
    owner = np.repeat(np.arange(users), 4).astype(np.int32)
    candidates = np.array([rng.choice(NEWS, 6, replace=False) for _ in owner])
    utility = taste * np.einsum("ub,ucb->uc", readers[owner], rows[candidates])
    clicked = (utility + rng.gumbel(size=utility.shape)).argmax(axis=1)
    flags = np.arange(6) == clicked[:, None]
    nobody = np.zeros(len(owner), bool)
    ptr = np.arange(len(owner) + 1) * 6
    answers = LabelReports(ptr, flags.ravel(), nobody, 5.0, PureEvent("label", 5.0))
    event = GaussianEvent("report", 1.0, unit="click", neighbours="replace")
    values = 0.2 * readers + 0.05 * rng.standard_normal(readers.shape)
    coefficients = Coefficients(values, 0.05, event)
    ledger = ClickAccountant(non_private(1e-5, "click", "replace"))
    return rows, Collected(coefficients, answers, owner, candidates, ledger)


def a_model(known: np.ndarray, got: Collected) -> Trained:
    """At its public start, which knows these rows."""
    vectors = known.astype(np.float32)
    prior = public_prior(topic_table(known), vectors, history=10).matrix
    model = ReportModel(vectors, prior, ReportModelSettings(), rng=np.random.default_rng(0))
    shown = np.ones(len(known), np.int64)
    return Trained(model, Decoder.of(got.coefficients), topic_table(known), 10, shown)


def half_told(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    told = np.arange(len(rows)) % 2 == 0
    return np.where(told[:, None], rows, 0.0), told


def test_sums_are_those_of_the_module_read_line_by_line() -> None:
    _, got = some_reports(taste=2, users=20)
    sums, shown = clicked_together(got, NEWS)
    A = Decoder.of(got.coefficients)(got.coefficients)
    expected, times = np.zeros((NEWS, B)), np.zeros(NEWS)
    for i, (user, items) in enumerate(zip(got.users, got.candidates, strict=True)):
        reported = got.labels.reported[6 * i : 6 * i + 6]
        for j, flag in zip(items, reported, strict=True):
            expected[j] += (float(flag) - reported.sum() / 6) * A[user]
            times[j] += 1
    np.testing.assert_allclose(sums, expected, atol=1e-5)
    np.testing.assert_array_equal(shown, times)


def test_rows_that_no_text_tells_are_found_by_what_readers_click_besides() -> None:
    rows, got = some_reports(taste=3)
    known, told = half_told(rows)
    model = a_model(known, got)
    before = model.model.prior.numpy().copy()
    table = with_untold(model, got).topics
    found = table.weights[~told]
    np.testing.assert_array_equal(table.rows[told], topic_table(known).rows[told])
    lengths = np.linalg.norm(found, axis=1)
    assert (lengths <= 1).all()
    cosines = np.sum(found * rows[~told], axis=1) / np.maximum(lengths, 1e-12)
    assert cosines.mean() > 0.6
    fits = model.model.prior.numpy()
    np.testing.assert_array_equal(fits[told], before[told])
    whole = a_model(rows, got).model.prior.numpy()
    assert np.corrcoef(fits[~told].ravel(), whole[~told].ravel())[0, 1] > 0.6


@pytest.mark.parametrize("seed", range(4))
def test_where_clicks_tell_nothing_rows_stay_nearly_empty(seed: int) -> None:
    rows, got = some_reports(taste=0, seed=seed)
    known, told = half_told(rows)
    table = with_untold(a_model(known, got), got).topics
    assert np.linalg.norm(table.weights[~told], axis=1).mean() < 0.1


def test_a_catalogue_whose_news_all_have_a_text_stays_as_it_is() -> None:
    rows, got = some_reports(taste=3, users=20)
    model = a_model(rows, got)
    assert with_untold(model, got) is model


@pytest.mark.slow
def test_readers_of_news_without_text_get_better_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the planted news say nothing; ranked with and without their rows."""
    shape = PlantedNewsShape(
        users=1_200, news=700, history_mean=12, impressions_mean=12, candidates=12, strength=4.0
    )
    planted = planted_news(shape, seed=2)
    blank = np.arange(len(planted.news)) % 2 == 1
    texts = {
        name: tuple(part[:0] if empty else part for part, empty in zip(column, blank, strict=True))
        for name, column in vars(planted.news).items()
        if name != "ids"
    }
    news = replace(planted.news, **texts)
    vectors = public_vectors(news, PublicFeatures({}), seed=2)
    assert (vectors.any(axis=1) == ~blank).all(), "what says nothing has a row of zeros"
    content = {
        "recipe": "additive",
        "data": {"format": "planted-news"},
        "privacy": {"epsilon": 8, "noise": "seeded", "unit": "click"},
        "news": {"basis": 8, "epochs": 2},
    }
    scenario = validated(content, source="test")
    catalogue = Catalogue(news, vectors)
    test: Impressions = planted.log.test
    asked = non_private(1e-5, "click", "replace")

    def auc() -> float:
        *_, done = train_news(
            scenario, catalogue, LocalClients(scenario, catalogue, planted.log.train)
        )
        assert isinstance(done, TrainedNews)
        scores = done.recommender.serve(test, guarantee=asked, key=bytes(32))
        return evaluate_impressions(scores, test).auc

    ours = auc()
    monkeypatch.setattr(co_clicks, "with_untold", lambda trained, got: trained)
    assert ours > auc() + 0.01
