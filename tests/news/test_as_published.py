"""PrivateRec as its authors ran it: sizes, Laplace serving and rounds that are charged alone, each a
key, and what each really costs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedrec.errors import SettingsError
from fedrec.news.answer_costs import answer_costs
from fedrec.news.attention import release_vectors
from fedrec.news.models import news_model
from fedrec.news.variant import costs_of, promise, schedule_of
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.click_accounting import dearest_click
from fedrec.privacy.mixtures import epsilon_of_events
from fedrec.privacy.selection import PureEvent
from fedrec.run.data.news import catalogue_of, load_news
from fedrec.run.news_run import answer_promise, serving_guarantee
from fedrec.settings import Scenario, load

PLANTED = ["recipe=privaterec", "data.format=planted-news", "data.preset=small"]


def scenario(*keys: str) -> Scenario:
    return load(None, [*PLANTED, *keys])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "width"), [("nrms", 256), ("naml", 400), ("plm-nr", 256)])
def test_published_sizes_are_those_of_the_papers(model: str, width: int) -> None:
    chosen = scenario("news.sizes=published", f"news.model={model}")
    data = load_news(chosen)
    made = news_model(chosen, data.news, catalogue_of(chosen, data).vectors, basis=5)
    assert made.basis is not None
    assert made.basis.vectors.shape == (5, width)
    if model != "naml":
        assert getattr(made.users, "attention").heads == 16  # noqa: B009


def test_a_round_that_is_charged_alone_has_all_of_epsilon_and_what_all_cost_is_told() -> None:
    """Three passes of `local` at epsilon 4 each: mu grows by sqrt 3, by hand."""
    each = scenario("news.variant=local", "news.accounting=per-round", "privacy.epsilon=4")
    assert not promise(each).established
    assert "charged alone" in promise(each).note
    assert promise(scenario("news.variant=local")).established
    mu = mu_for(4.0, each.privacy.delta)
    costs = costs_of(each, 3)
    event = GaussianEvent("attention", mu, "click", "replace")
    assert [found.mu for found in costs.history] == pytest.approx([mu] * 3)  # type: ignore[union-attr]
    true = dearest_click([costs], serving_guarantee(4.0, each.privacy.delta))
    assert true == pytest.approx(epsilon_of_events([event] * 3, each.privacy.delta))
    assert true > 7
    assert schedule_of(each, 300).passes == 1
    rival = scenario("news.variant=dp-fedrec", "news.accounting=per-round")
    assert not promise(rival).established


@given(seed=st.integers(0, 10_000), order=st.sampled_from([1, 2]))
def test_cut_vectors_move_a_release_by_no_more_than_its_price_says(seed: int, order: int) -> None:
    """The same key draws the same noise, so two releases differ by their cut vectors."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 40))
    pair = rng.standard_normal((2, 1, d)) * 10.0 ** rng.uniform(-6, 3, (2, 1, 1))
    radius = float(10.0 ** rng.uniform(-4, 1))
    (first, event), (second, _) = (
        release_vectors(one, radius=radius, epsilon=2.0, order=order, key=bytes(32))  # type: ignore[arg-type]
        for one in pair
    )
    parameter = 2 * radius / 2.0
    assert isinstance(event, PureEvent)
    assert np.abs(first - second).sum() / parameter <= event.epsilon * (1 + 1e-5)


def test_noise_of_vectors_is_laplace_s_at_two_radii_over_epsilon() -> None:
    """KS at level 1e-4, and two thirds and three halves of the parameter are found out."""
    values, event = release_vectors(
        np.zeros((4_000, 8)), radius=0.001, epsilon=5.0, order=1, key=bytes(32)
    )
    assert event == PureEvent("vector", 5.0)
    for factor, right in ((1.0, True), (2 / 3, False), (1.5, False)):
        law = stats.laplace(scale=factor * 2 * 0.001 / 5.0)
        assert (stats.kstest(values.ravel(), law.cdf).pvalue > 1e-4) == right


def test_what_an_answer_costs_is_said_and_counted_by_its_noise() -> None:
    pure = scenario("news.variant=local", "news.serving_noise=laplace")
    printed = scenario("news.variant=printed", "news.serving_noise=laplace-printed")
    vectors = scenario(
        "news.variant=fedrec", "privacy.epsilon=inf", "news.serving_noise=laplace-printed"
    )
    asked = serving_guarantee(10.0, 1e-5)
    assert answer_promise(10.0, pure).established
    assert answer_costs(pure, asked).history == (PureEvent("answer", 10.0),)
    told = answer_promise(10.0, printed)
    (event,) = answer_costs(printed, asked).history
    assert not told.established
    assert isinstance(event, PureEvent)
    assert f"epsilon {event.epsilon:.4g}" in told.note
    assert event.epsilon > 30  # 3.15 times the nominal one at B = 5
    assert not answer_promise(10.0, vectors).established
    assert answer_costs(vectors, asked).history == (PureEvent("answer", math.inf),)
    for gaussian in (scenario("news.variant=local"), scenario("news.variant=printed")):
        assert answer_promise(10.0, gaussian) == asked


def test_keys_of_the_paper_are_refused_where_nothing_reads_them() -> None:
    for key in ("news.sizes=published", "news.serving_noise=laplace", "news.accounting=per-round"):
        with pytest.raises(SettingsError, match=key.split("=")[0]):
            scenario("news.variant=additive", key)
    with pytest.raises(SettingsError, match=r"news\.accounting"):
        scenario("news.variant=printed", "news.accounting=per-round")


def test_the_shipped_scenario_has_all_departures_as_printed() -> None:
    path = Path(__file__).parents[2] / "simulations" / "privaterec_as_printed.toml"
    news = load(path).news
    assert (news.variant, news.sizes, news.padding) == ("printed", "published", 0.5)
    assert (news.attention_noise, news.serving_noise) == ("laplace", "laplace-printed")
    assert not promise(load(path)).established
