"""The page asks models with a user encoder: PrivateRec's Alg. 2 in the browser, at the B and p of
the paper's Figures 5 and 7, and a server that chooses such a model to learn of titles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from fedrec.data.features import PublicFeatures
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.news import attention
from fedrec.news.local_clients import LocalClients
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue, TrainedNews
from fedrec.news.variant import train_news
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.mixtures import PaddedEvent, inner_mu
from fedrec.serving import asking, bundle
from fedrec.serving.bundle import Bundle
from fedrec.serving.exporting import Origin
from fedrec.serving.news_bundles import news_bundle
from fedrec.settings import validated
from tests.page.conftest import attention_parts

DELTA = 1e-5
PADDINGS = (0.0, 0.1, 0.3, 0.7)
POINTS = (
    *((B, p) for B in (3, 5) for p in (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)),
    *((B, 0.0) for B in (1, 10, 32)),
)
"""B and p of the paper's Figures 5 and 7."""
FALSE_ALARM = 1e-4
"""Of every randomised test here, for honest draws; the seeds are fixed, so none is seen twice."""
DRAWS = 20_000
CLICK = Guarantee(5.0, DELTA, "click", "replace")


def written(path: Path, **choice: Any) -> tuple[str, Bundle]:
    bundle.write(path, *attention_parts(**choice))
    return str(path), bundle.read(path)


def asked_exactly(node: Any, path: str, of: Bundle, histories: Any) -> list[dict[str, Any]]:
    cases = [
        {
            "history": np.asarray(history).tolist(),
            "noised": [0.0] * of.coefficients,
            "noiseStd": 0,
            "mu": 1.0,
        }
        for history in histories
    ]
    found: list[dict[str, Any]] = node("answers", bundle=path, version=of.version, cases=cases)
    return found


def test_an_answer_behind_padding_has_the_mu_of_the_python_code_and_back(node: Any) -> None:
    asked = [(epsilon, DELTA, p) for epsilon in (0.1, 1.0, 5.0, 20.0) for p in PADDINGS]
    expected = [inner_mu(Guarantee(e, d, "click", "replace"), p) for e, d, p in asked]
    mus = node("calls", module="accounting", name="muBehind", arguments=[list(a) for a in asked])
    np.testing.assert_allclose(mus, expected, rtol=1e-9)
    arguments = [[mu, d, p] for mu, (_, d, p) in zip(mus, asked, strict=True)]
    back = node("calls", module="accounting", name="epsilonBehind", arguments=arguments)
    np.testing.assert_allclose(back, [epsilon for epsilon, _, _ in asked], rtol=1e-9)


def test_hiding_makes_guesses_worse_by_the_total_variation_of_the_padded_release(node: Any) -> None:
    cases = [[mu, p] for mu in (0.1, 1.0, 4.0) for p in PADDINGS]
    found = node("calls", module="accounting", name="rightGuesses", arguments=cases)
    expected = [0.5 + PaddedEvent("a", mu, p).delta(0.0) / 2 for mu, p in cases]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("heads", [0, 2, 4], ids=["NAML", "two heads", "four heads"])
def test_attention_before_noise_is_that_of_the_python_code(
    node: Any, tmp_path: Path, heads: int
) -> None:
    path, read = written(tmp_path / "b", heads=heads)
    rng = np.random.default_rng(1)
    H = read.about.history
    histories = rng.integers(-1, read.size, (12, H))
    histories[0] = -1
    histories[1, :-1] = -1
    found = asked_exactly(node, path, read, histories)
    expected = asking.exact(read, histories)
    np.testing.assert_allclose([case["exact"] for case in found], expected, rtol=1e-4, atol=1e-6)
    # the histories are told apart, or nothing was compared
    assert np.ptp(expected, axis=0).max() > 0.2
    queries = attention.renormalise_relu(expected)
    np.testing.assert_allclose(
        [case["exactQuery"] for case in found], queries, rtol=1e-4, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["nrms", "naml", "plm-nr"])
def test_a_trained_models_bundle_is_read_and_asked_as_python_does(
    node: Any, tmp_path: Path, model: str
) -> None:
    shape = PlantedNewsShape(
        users=60, news=250, history_mean=6, impressions_mean=2, candidates=6, strength=5.0
    )
    planted = planted_news(shape, seed=3)
    found = public_vectors(planted.news, PublicFeatures({}), seed=3, dimension=16)
    catalogue = Catalogue(planted.news, found)
    news = {"variant": "local", "model": model, "padding": 0.2, "history": 8, "rounds": 1}
    content = {"recipe": "privaterec", "data": {"format": "planted-news"}, "news": news}
    privacy = {"privacy": {"epsilon": 8, "unit": "click"}}
    chosen = validated(content | privacy, source="test")
    *_, last = train_news(chosen, catalogue, LocalClients(chosen, catalogue, planted.log.train))
    assert isinstance(last, TrainedNews)
    origin = Origin("test", DELTA, last.guarantee, last.spent, "seeded")
    bundle.write(tmp_path / "b", *news_bundle(last.recommender, planted.news, origin))
    read = bundle.read(tmp_path / "b")
    histories = np.random.default_rng(1).integers(0, read.size, (6, 8))
    (*exact,) = asked_exactly(node, str(tmp_path / "b"), read, histories)
    expected = asking.exact(read, histories)
    np.testing.assert_allclose([case["exact"] for case in exact], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("B", "p"), POINTS)
def test_noised_attention_becomes_the_same_query_and_ranking_at_b_and_p_of_figures_5_and_7(
    node: Any, tmp_path: Path, B: int, p: float
) -> None:
    path, read = written(tmp_path / "b", basis=B, padding=p)
    plan = attention.gaussian_plan(CLICK, theta=0.6, padding=p)
    rng = np.random.default_rng(2)
    noised = rng.normal(0.2, plan.noise_std, (5, B))
    noised[-1] = np.linspace(-60, 60, B)
    cases = [
        {"history": [1, 2], "noised": a.tolist(), "noiseStd": plan.noise_std, "mu": plan.mu}
        for a in noised
    ]
    found = node("answers", bundle=path, version=read.version, cases=cases)
    sent = attention.renormalise_softplus(noised).astype(np.float32)
    np.testing.assert_allclose([case["sent"] for case in found], sent, rtol=1e-6, atol=1e-12)
    scores = read.users(sent) @ read.items.T + read.bias
    np.testing.assert_allclose([case["scored"] for case in found], scores, rtol=1e-4, atol=1e-4)
    step = 2.0 ** (math.floor(math.log2(math.sqrt(2) * 0.6 / plan.mu)) - 20)
    stds = [math.sqrt(case["variance"]) * step for case in found]
    np.testing.assert_allclose(stds, plan.noise_std, rtol=1e-9)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_answers_carry_noise_of_the_calibrated_std_and_independent_shares(
    node: Any, tmp_path: Path, p: float
) -> None:
    # the anonymous item alone is clicked, so that hiding changes nothing
    path, read = written(tmp_path / "b", padding=p)
    plan = attention.gaussian_plan(CLICK, theta=0.6, padding=p)
    B = read.coefficients
    mine = [-1] if p else [3]
    asked = node(
        "asks",
        bundle=path,
        version=read.version,
        mu=plan.mu,
        seed=f"attention {p}",
        histories=[mine] * (DRAWS // B),
    )
    (exact,) = asked_exactly(node, path, read, [mine])
    noise = np.array([answer["noised"] for answer in asked]) - exact["exact"]
    assert asked[0]["noiseStd"] == pytest.approx(plan.noise_std, rel=1e-6)
    assert stats.kstest(noise.ravel() / plan.noise_std, "norm").pvalue > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise.ravel() / (wrong * plan.noise_std), "norm").pvalue < FALSE_ALARM
    correlations = np.corrcoef(noise, rowvar=False)[np.triu_indices(B, 1)]
    allowed = stats.norm.isf(FALSE_ALARM / 2 / len(correlations)) / math.sqrt(len(noise))
    assert np.abs(correlations).max() < allowed
    steps = np.array([answer["noised"] for answer in asked[:20]]) / (
        2.0 ** (math.floor(math.log2(math.sqrt(2) * 0.6 / plan.mu)) - 20)
    )
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_each_click_is_hidden_with_the_stated_probability_and_by_a_coin_of_its_own(
    node: Any, p: float
) -> None:
    drawn = node("hides", padding=p, places=4, count=5_000, seed=f"hides {p}")
    hidden = np.array(drawn) == -7
    assert stats.binomtest(int(hidden.sum()), hidden.size, p).pvalue > FALSE_ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.binomtest(int(hidden.sum()), hidden.size, p * wrong).pvalue < FALSE_ALARM
    # how many of the four are hidden at once follows the binomial law
    counts = np.bincount(hidden.sum(1), minlength=5)
    law = stats.binom.pmf(np.arange(5), 4, p) * len(hidden)
    seen, due = ([*each[:2], each[2:].sum()] for each in (counts, law))
    assert stats.chisquare(seen, due).pvalue > FALSE_ALARM
    # what is not hidden stays what it was
    assert {row for rows in drawn for row in rows} == {-7, 0, 1, 2, 3}


def test_the_answer_is_of_the_hidden_history(node: Any, tmp_path: Path) -> None:
    """Where noise is small, an answer of one title is that of the title or of the anonymous one."""
    p = 0.5
    count = 400
    path, read = written(tmp_path / "b", padding=p, theta=1.0)
    asked = node(
        "asks", bundle=path, version=read.version, mu=1e4, seed="one", histories=[[3]] * count
    )
    noised = np.array([answer["noised"] for answer in asked])
    title, anonymous = (case["exact"] for case in asked_exactly(node, path, read, [[3], [-1]]))
    near = [np.abs(noised - of).max(1) < 0.01 for of in (title, anonymous)]
    assert (near[0] ^ near[1]).all()
    assert stats.binomtest(int(near[1].sum()), count, p).pvalue > FALSE_ALARM


def test_a_title_that_the_model_lacks_is_an_anonymous_one_where_clicks_are_hidden_else_none(
    node: Any, tmp_path: Path
) -> None:
    for p in (0.0, 0.3):
        path, read = written(tmp_path / f"b{p:g}", padding=p)
        rows = [[-1], []]
        lacking, without = (case["exact"] for case in asked_exactly(node, path, read, rows))
        anonymous = asking.exact(read, np.array([[-1] * 9 + [read.size]]))[0]
        if p:
            np.testing.assert_allclose(lacking, anonymous, rtol=1e-4, atol=1e-6)
            assert np.abs(np.subtract(lacking, without)).max() > 0.1
        else:
            assert lacking == without


def test_only_the_latest_titles_count(node: Any, tmp_path: Path) -> None:
    path, read = written(tmp_path / "b")
    latest = list(range(20, 20 + read.about.history))
    one, other = asked_exactly(node, path, read, [latest, [1, 2, *latest]])
    assert one["exact"] == other["exact"]


@pytest.mark.parametrize("theta", [0.3, 0.8, 5.0])
def test_two_histories_move_attention_by_no_more_than_the_noise_is_made_for(
    node: Any, tmp_path: Path, theta: float
) -> None:
    path, read = written(tmp_path / "b", theta=theta)
    histories = [[row] for row in range(read.size)]
    exact = np.array([case["exact"] for case in asked_exactly(node, path, read, histories)])
    assert exact.min() >= 0
    apart = np.sqrt(((exact[:, None] - exact) ** 2).sum(-1)).max()
    bound = math.sqrt(2) * min(theta, 1.0)
    assert apart <= bound
    assert apart > 0.9 * bound  # the bound is not idle
    (noise,) = node("asks", bundle=path, version=read.version, mu=1.0, seed="s", histories=[[1]])
    assert noise["noiseStd"] == pytest.approx(bound, rel=1e-6)


def with_(name: str, place: Any, number: float) -> dict[str, Any]:
    array = attention_parts()[1][name].copy()
    array[place] = number
    return {name: array}


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "a padding of 1": lambda: {"padding": np.array(1.0)},
    "a negative padding": lambda: {"padding": np.array(-0.1)},
    "a padding that is no number": lambda: {"padding": np.array(np.nan)},
    "no padding at all": lambda: {"padding": None},
    "a theta of 0": lambda: {"theta": np.array(0.0), "about": {"sensitivity": 1e-9}},
    "five heads for twelve numbers": lambda: {"heads": np.array(5)},
    "heads that are no whole number": lambda: {"heads": np.array(2.0)},
    "less sensitivity than its clipping allows": lambda: {"about": {"sensitivity": 0.4}},
    "more sensitivity than its clipping allows": lambda: {"about": {"sensitivity": 2.0}},
    "an item of 1e30": lambda: with_("items", 17, 1e30),
    "an item that is not finite": lambda: with_("items", 17, np.nan),
    "an anonymous item that is not finite": lambda: with_("anonymous", 0, np.inf),
    "a basis that is not finite": lambda: with_("users.linear", 0, np.nan),
    "an encoder that is not finite": lambda: with_("encoder.attention.project", 0, np.nan),
    "no encoder": lambda: {"encoder.pool.dense": None},
    "an encoder of other sizes": lambda: {"encoder.pool.query": np.zeros((9, 1), np.float32)},
    "rows besides": lambda: {"rows": np.zeros((120, 8), np.int32)},
    "a thousand places of long vectors": lambda: {
        **attention_parts(D=600)[1],
        "about": {"history": 1000},
    },
}


def hostile(path: Path, change: dict[str, Any]) -> str:
    about, arrays = attention_parts()
    told = about.model_dump(mode="json") | change.get("about", {})
    changed = arrays | {name: array for name, array in change.items() if name != "about"}
    kept = {n: np.array(a, order="C") for n, a in changed.items() if a is not None}
    save_file(kept, path, metadata={"about": json.dumps(told)})
    return str(path)


def test_a_model_that_could_fail_for_some_titles_alone_is_refused_for_all(
    node: Any, tmp_path: Path
) -> None:
    honest = hostile(tmp_path / "honest", {})
    bundles = [hostile(tmp_path / f"{n}", make()) for n, make in enumerate(REFUSED.values())]
    said = dict(
        zip(["honest", *REFUSED], node("refusals", bundles=[honest, *bundles]), strict=True)
    )
    assert said.pop("honest") is None
    assert [name for name, why in said.items() if why is None] == []


def test_sent_shares_are_those_of_the_noised_ones(node: Any, tmp_path: Path) -> None:
    path, read = written(tmp_path / "b", padding=0.3)
    asked = node(
        "asks", bundle=path, version=read.version, mu=0.8, seed="sent", histories=[[1, 2], []]
    )
    for answer in asked:
        sent = attention.renormalise_softplus(np.array([answer["noised"]]))[0]
        np.testing.assert_allclose(answer["sent"], sent, rtol=1e-6)


def test_the_largest_numbers_that_are_taken_fail_for_no_history(node: Any, tmp_path: Path) -> None:
    about, arrays = attention_parts(padding=0.3)
    rng = np.random.default_rng(4)
    names = ("items", "anonymous", "users.linear")
    big = {
        name: (1e6 * np.sign(rng.normal(size=array.shape))).astype(np.float32)
        for name, array in arrays.items()
        if name in names or name.startswith("encoder.")
    }
    version = bundle.write(tmp_path / "b", about, arrays | big)
    histories: list[list[int]] = [[], [-1], [3], list(range(10)), [119] * 10]
    asked = node(
        "asks",
        bundle=str(tmp_path / "b"),
        version=version,
        mu=1.0,
        seed="large",
        histories=histories,
    )
    for answer in asked:
        assert np.isfinite(answer["sent"]).all()
        assert sum(answer["sent"]) == pytest.approx(1, rel=1e-5)
