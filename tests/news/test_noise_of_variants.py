"""Every registered variant draws the noise that it is charged for, and is charged for every answer
that it gives."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import dp_accounting
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import pld
from scipy import stats

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.encoders.news_model import NewsModel
from fedrec.errors import SettingsError
from fedrec.news import topics
from fedrec.news import variant as schedule_module
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.local_update import Behind, NoisedGradients, Through
from fedrec.news.models import news_model
from fedrec.news.reports_training import collect
from fedrec.news.trained import Catalogue, topics_of
from fedrec.news.variant import costs_of, promised, rounds_of
from fedrec.privacy import bounded_mean
from fedrec.privacy.click_accounting import plan_training
from fedrec.privacy.selection import PureEvent
from fedrec.randomness import SecretStreams, Streams
from fedrec.settings import Scenario, load
from tests.cases import slow_but

SHAPE = PlantedNewsShape(
    users=90, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)
Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def world() -> tuple[Catalogue, Impressions]:
    planted = planted_news(SHAPE, seed=2)
    vectors = topics.public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    return Catalogue(planted.news, vectors), planted.log.train


def scenario(variant: str, *more: str) -> Scenario:
    keys = [
        f"news.variant={variant}",
        "privacy.unit=click",
        "privacy.epsilon=5",
        "news.users_per_round=1000",
        "news.history=12",
    ]
    return load(
        None,
        ["recipe=privaterec", "news.variant=additive", "data.format=planted-news", *keys, *more],
    )


def numbered(train: Impressions, seed: int = 4) -> DeviceNoise:
    return DeviceNoise.numbered(Streams(seed), train.num_users)


def device(
    chosen: Scenario, world: tuple[Catalogue, Impressions], passes: int
) -> tuple[NewsModel, Behind | NoisedGradients]:
    form = rounds_of(chosen)
    model = news_model(chosen, world[0].news, world[0].vectors, basis=form.basis(chosen))
    update = form.device(chosen, world[1], passes, numbered(world[1]))
    assert isinstance(update, Behind | NoisedGradients)
    return model, update


def answers(
    update: Behind | NoisedGradients, model: NewsModel, users: npt.NDArray[np.int64], round: int
) -> Floats:
    """(users, numbers) what each of them releases."""
    if isinstance(update, Behind):
        return update.released(model, users, round)
    return np.stack(
        [update(model, users[k : k + 1], round)[0].astype(np.float64) for k in range(len(users))]
    )


def noise(variant: str, world: tuple[Catalogue, Impressions], passes: int) -> tuple[Floats, float]:
    """Noise as drawn, at sensitivity 1, and mu of one answer: by `dp_accounting`, for all answers
    to be 5 at 1e-5 together."""
    chosen = scenario(variant)
    train = world[1]
    mu = _mu_by_another_accountant(passes)
    if variant == "additive":
        table = topics_of(chosen, world[0])
        got = collect(
            train, table, plan_training(promised(chosen)), history=12, noise=numbered(train)
        )
        drawn = got.coefficients.values - bounded_mean.coefficients(train.last_clicks(12), table)
        return drawn.ravel() * 12 / table.diameter, mu
    model, update = device(chosen, world, passes)
    if isinstance(update, Behind):
        bare: Behind | NoisedGradients = replace(update, plan=replace(update.plan, noise_std=0.0))
        users = np.arange(train.num_users)
        rounds = 6
        radius = math.sqrt(2) * schedule_module.THETA
    else:
        bare = replace(update, noise_std=0.0)
        users = np.arange(2)
        rounds = 1
        radius = 2 * schedule_module.GRADIENT_CLIP
    parts = [
        answers(update, model, users, t) - answers(bare, model, users, t)
        for t in range(1, rounds + 1)
    ]
    return np.concatenate(parts).ravel()[:20_000] / radius, mu


@functools.cache
def _mu_by_another_accountant(answers: int) -> float:
    """By bisection over privacy loss distributions."""
    low = 0.05
    high = 5.0
    for _ in range(16):  # to 1e-4, which no 20,000 numbers tell
        middle = (low + high) / 2
        accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
        accountant.compose(dp_accounting.GaussianDpEvent(1 / middle), answers)
        low, high = (low, middle) if accountant.get_epsilon(1e-5) > 5.0 else (middle, high)
    return low


@pytest.mark.parametrize(
    ("variant", "passes"),
    [("additive", 1), ("local", 1), ("local", 3), ("dp-fedrec", 1), ("dp-fedrec", 3)],
)
def test_a_variant_draws_noise_of_the_std_that_its_promise_needs_and_no_other(
    variant: str, passes: int, world: tuple[Catalogue, Impressions]
) -> None:
    drawn, mu = noise(variant, world, passes)
    pvalues = [stats.kstest(drawn * mu / wrong, "norm").pvalue for wrong in (1, 2 / 3, 3 / 2)]
    assert len(drawn) >= 700
    assert pvalues[0] > 1e-3  # false alarms: one seed in a thousand, and the seed is fixed
    assert max(pvalues[1:]) < 1e-9


@pytest.mark.parametrize("variant", ["local", "dp-fedrec"])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_variant_charges_every_answer_that_its_users_give(
    variant: str, passes: int, world: tuple[Catalogue, Impressions]
) -> None:
    """As many as the schedule asks of each user, at the mu of the noise that the device draws; and
    every answer about a label."""
    chosen = scenario(variant, f"news.rounds={passes}")
    schedule = schedule_module.schedule_of(chosen, world[1].num_users)
    costs = costs_of(chosen, passes)
    assert schedule.passes == schedule.rounds(world[1].num_users) == passes
    _, update = device(chosen, world, passes)
    std, radius = (
        (update.plan.noise_std, math.sqrt(2) * update.plan.theta)
        if isinstance(update, Behind)
        else (update.noise_std, 2 * update.clip)
    )
    assert [event.mu for event in costs.history] == pytest.approx([radius / std] * passes, rel=1e-9)  # type: ignore[union-attr]
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.GaussianDpEvent(std / radius), passes)
    assert costs.charged(promised(chosen)) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert len(costs.labels) == (1 if variant == "local" else passes)


@pytest.mark.parametrize("passes", slow_but([3], [1, 3]))
def test_laplace_attention_has_the_noise_that_its_pure_price_needs_and_no_other(
    passes: int, world: tuple[Catalogue, Impressions]
) -> None:
    """Two clipped vectors are at most 2 theta apart in L1, so an answer of 5 / passes has Laplace
    noise of 2 theta passes / 5."""
    chosen = scenario("local", "news.attention_noise=laplace", f"news.rounds={passes}")
    costs = costs_of(chosen, passes)
    users = np.arange(world[1].num_users)
    assert costs.history == (PureEvent("attention", 5 / passes),) * passes
    assert costs.labels == (PureEvent("label", 5.0),)
    assert costs.charged(promised(chosen)) <= 5.0
    assert "delta = 0" in str(promised(chosen))
    model, update = device(chosen, world, passes)
    assert isinstance(update, Behind)
    bare = replace(update, plan=replace(update.plan, step=0.0))
    drawn = np.concatenate(
        [
            (update.released(model, users, t) - bare.released(model, users, t)).ravel()
            for t in range(1, 7)
        ]
    )
    noise = 2 * schedule_module.THETA * passes / 5
    pvalues = [
        stats.kstest(drawn, "laplace", args=(0, noise * wrong)).pvalue
        for wrong in (1, 2 / 3, 3 / 2)
    ]
    assert len(drawn) >= 700
    assert pvalues[0] > 1e-3  # false alarms: one seed in a thousand, and the seed is fixed
    assert max(pvalues[1:]) < 1e-9


def test_laplace_attention_without_a_budget_is_the_attention_itself(
    world: tuple[Catalogue, Impressions],
) -> None:
    chosen = scenario("local", "news.attention_noise=laplace", "privacy.epsilon=inf")
    users = np.arange(20)
    model, update = device(chosen, world, 3)
    assert isinstance(update, Behind)
    released = update.released(model, users, 1)
    np.testing.assert_allclose(released.sum(1), schedule_module.THETA, rtol=1e-6)
    np.testing.assert_array_equal(released, update.released(model, users, 2))


def test_one_click_moves_laplace_attention_by_at_most_its_bound_in_l1(
    world: tuple[Catalogue, Impressions],
) -> None:
    model, update = device(scenario("local", "news.attention_noise=laplace"), world, 1)
    assert isinstance(update, Behind)
    history = update.devices.history.copy()
    rng = np.random.default_rng(6)
    place = rng.integers(0, history.shape[1], len(history))
    known = history[np.arange(len(history)), place] >= 0
    history[np.flatnonzero(known), place[known]] = rng.integers(0, SHAPE.news, known.sum())
    assert known.sum() > 20
    bare = replace(update, plan=replace(update.plan, step=0.0))
    moved = replace(bare, devices=replace(bare.devices, history=history))
    users = np.arange(len(history))
    assert np.abs(bare.released(model, users, 1) - moved.released(model, users, 1)).sum(
        1
    ).max() <= 2 * update.plan.theta * (1 + 1e-12)


def test_printed_laplace_is_not_established_and_draws_what_the_paper_prints(
    world: tuple[Catalogue, Impressions],
) -> None:
    chosen = scenario("printed", "news.attention_noise=laplace")
    update = rounds_of(chosen).device(chosen, world[1], 1, numbered(world[1]))
    assert isinstance(update, Through)
    assert update.plan is not None
    assert not update.plan.guarantee.established
    assert update.plan.noise_std == pytest.approx(math.sqrt(2) * schedule_module.THETA / 5)
    model = news_model(
        chosen, world[0].news, world[0].vectors, basis=rounds_of(chosen).basis(chosen)
    )
    first, second = (update(model, np.arange(4), round)[0] for round in (1, 2))
    assert np.isfinite(first).all()
    assert first.tobytes() != second.tobytes()


def test_the_noise_of_attention_says_nothing_to_a_variant_without_any() -> None:
    with pytest.raises(
        SettingsError,
        match=r'news\.attention_noise is of attention: a choice of "local" and "printed", not of',
    ):
        scenario("additive", "news.attention_noise=laplace")
    with pytest.raises(SettingsError, match="padded Laplace answers"):
        scenario("local", "news.attention_noise=laplace", "news.padding=0.2")


def test_a_gradient_is_never_longer_than_its_clip(world: tuple[Catalogue, Impressions]) -> None:
    _, update = device(scenario("dp-fedrec"), world, 1)
    assert isinstance(update, NoisedGradients)
    for length in (0.5, 1.0, 1.05, 3.0, 1e9):
        long = update._clipped(np.full(4, length * update.clip / 2))
        assert np.linalg.norm(long) == pytest.approx(min(length, 1.0) * update.clip)


@pytest.mark.parametrize("variant", ["local", "dp-fedrec"])
def test_no_two_users_rounds_or_questions_share_their_noise(
    variant: str, world: tuple[Catalogue, Impressions]
) -> None:
    chosen = scenario(variant)
    model, update = device(chosen, world, 1)
    bare = (
        replace(update, plan=replace(update.plan, noise_std=0.0))
        if isinstance(update, Behind)
        else replace(update, noise_std=0.0)
    )
    nobody = DeviceNoise(SecretStreams(bytes(32)), numbered(world[1]).users)
    update = replace(update, noise=nobody)
    drawn = [
        (update.released if isinstance(update, Behind) else lambda *a: _upload(update, *a))(
            model, users, round, question
        )
        - (bare.released if isinstance(bare, Behind) else lambda *a: _upload(bare, *a))(
            model, users, round, question
        )
        for users, round, question in (
            (np.array([0]), 1, "a"),
            (np.array([1]), 1, "a"),
            (np.array([0]), 2, "a"),
            (np.array([0]), 1, "b"),
        )
    ]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert not np.allclose(one, other, rtol=1e-3)
            assert not np.allclose(one, -other, rtol=1e-3)


def _upload(
    update: NoisedGradients,
    model: NewsModel,
    users: npt.NDArray[np.int64],
    round: int,
    question: str,
) -> Floats:
    return update(model, users, round, question)[0].astype(np.float64)
