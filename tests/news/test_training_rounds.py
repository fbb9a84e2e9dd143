"""Training in rounds: FedAdam as Flower has it, what each variant lets out of a device, and what it
costs."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import stats

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.encoders.news_model import NewsModel
from fedrec.errors import SettingsError
from fedrec.evaluation.impressions import with_swapped_histories
from fedrec.news import labels, rounds, topics
from fedrec.news.attention import gaussian_plan, renormalise_relu
from fedrec.news.checkpoints import DeviceNoise
from fedrec.news.local_clients import LocalClients
from fedrec.news.local_update import (
    Behind,
    Devices,
    NoisedGradients,
    Through,
    released_gradient,
    released_weights,
)
from fedrec.news.models import news_model
from fedrec.news.trained import Catalogue, Progress, TrainedNews
from fedrec.news.variant import VARIANTS, per_answer, rounds_of, train_news
from fedrec.news.variant import require as variant_named
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.settings import Scenario, load

SHAPE = PlantedNewsShape(
    users=60, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)
NOISE = DeviceNoise.numbered(Streams(3), 60)


@pytest.fixture(scope="module")
def world() -> tuple[Catalogue, Impressions, Impressions]:
    planted = planted_news(SHAPE, seed=2)
    vectors = topics.public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    return Catalogue(planted.news, vectors), planted.log.train, planted.log.test


def scenario(variant: str, *more: str) -> Scenario:
    epsilon = "inf" if variant in {"fedrec", "centralized"} else "5"
    unit = variant_named(variant).unit
    keys = [
        f"news.variant={variant}",
        f"privacy.unit={unit}",
        f"privacy.epsilon={epsilon}",
        "news.users_per_round=16",
        "news.history=12",
    ]
    return load(
        None,
        [
            "recipe=privaterec",
            "news.variant=additive",
            "data.format=planted-news",
            "privacy.noise=seeded",
            *keys,
            *more,
        ],
    )


def fresh(world: tuple[Catalogue, Impressions, Impressions], basis: int = 5) -> NewsModel:
    return news_model(scenario("local"), world[0].news, world[0].vectors, basis=basis)


def devices(train: Impressions, epsilon: float = 5.0) -> Devices:
    return Devices.of(
        train, history=12, labels=labels.report_clicks(train, epsilon=epsilon, key=bytes(32))
    )


def test_every_user_answers_once_a_pass() -> None:
    schedule = rounds.Schedule(3, 16, rounds.FedAdam())
    groups = list(rounds.cohorts(60, schedule, streams=Streams(1)))
    assert len(groups) == schedule.rounds(60) == 12
    for turn in range(3):
        np.testing.assert_array_equal(
            np.sort(np.concatenate(groups[4 * turn : 4 * turn + 4])), np.arange(60)
        )


def test_the_local_upload_is_a_function_of_what_was_released(
    world: tuple[Catalogue, Impressions, Impressions],
) -> None:
    train = world[1]
    model = fresh(world)
    users = np.arange(8)
    mine = devices(train)
    others = replace(
        mine, history=with_swapped_histories(train, rng=np.random.default_rng(1)).last_clicks(12)
    )
    assert not np.array_equal(mine.history, others.history)
    released = np.random.default_rng(2).dirichlet(np.ones(5), 8).astype(np.float32)
    one = released_gradient(model, mine, users, released)[0]
    two = released_gradient(model, others, users, released)[0]
    assert one.tobytes() == two.tobytes()
    assert np.abs(one).max() > 0


def test_the_printed_upload_is_not(world: tuple[Catalogue, Impressions, Impressions]) -> None:
    train = world[1]
    model = fresh(world)
    users = np.arange(8)
    mine = devices(train)
    others = replace(
        mine, history=with_swapped_histories(train, rng=np.random.default_rng(1)).last_clicks(12)
    )
    plan = gaussian_plan(Guarantee(5.0, 1e-5, "click", "replace"), theta=0.5)
    one, two = (Through(d, plan, NOISE)(model, users, 1)[0] for d in (mine, others))
    assert one.tobytes() != two.tobytes()


def test_the_user_encoder_learns_nothing_behind_the_attention(
    world: tuple[Catalogue, Impressions, Impressions],
) -> None:
    model = fresh(world)
    plan = gaussian_plan(Guarantee(5.0, 1e-5, "click", "replace"), theta=0.5, padding=0.2)
    gradient, loss = Behind(devices(world[1]), plan, NOISE)(model, np.arange(8), 1)
    sizes = [(name, p.numel()) for name, p in model.named_parameters()]
    parts = dict(
        zip(
            (name for name, _ in sizes),
            np.split(gradient, np.cumsum([size for _, size in sizes])[:-1]),
            strict=True,
        )
    )
    assert math.isfinite(loss)
    assert all(not part.any() for name, part in parts.items() if name.startswith("users."))
    assert any(part.any() for name, part in parts.items() if name.startswith("news."))


def test_at_infinite_epsilon_local_trains_on_the_attention_itself(
    world: tuple[Catalogue, Impressions, Impressions],
) -> None:
    model = fresh(world)
    history = world[1].last_clicks(12)[:6]
    plan = gaussian_plan(Guarantee(math.inf, 1e-5, "click", "replace"), theta=1.0)
    keys = [bytes(32)] * len(history)
    weights = renormalise_relu(released_weights(model, history, plan, (keys, keys)))
    from fedrec.news.local_update import user_vectors

    assert model.basis is not None
    exact = model.basis.attention(user_vectors(model, history)).detach().numpy()
    np.testing.assert_allclose(weights, exact, rtol=1e-5)


def uploads_as_printed(
    world: tuple[Catalogue, Impressions, Impressions], *choices: str, seed: int = 3
) -> np.ndarray:
    """What eight users send in the first round, under these choices and noise of this seed."""
    chosen = scenario("printed", f"news.printed={list(choices)}".replace("'", '"'))
    model = news_model(chosen, world[0].news, world[0].vectors, basis=5)
    noise = DeviceNoise.numbered(Streams(seed), 60)
    return rounds_of(chosen).device(chosen, world[1], 3, noise)(model, np.arange(8), 1)[0]


@pytest.mark.parametrize("choice", ["raw-score", "softplus", "own-labels", "public-start"])
def test_every_choice_of_the_printed_variant_changes_what_is_sent(
    choice: str, world: tuple[Catalogue, Impressions, Impressions]
) -> None:
    assert not np.allclose(uploads_as_printed(world, choice), uploads_as_printed(world), atol=1e-7)


def test_with_line_20_to_the_letter_the_basis_is_never_trained(
    world: tuple[Catalogue, Impressions, Impressions],
) -> None:
    basis = 5 * 64  # the last numbers
    assert np.abs(uploads_as_printed(world)[-basis:]).max() > 0
    assert not uploads_as_printed(world, "raw-score")[-basis:].any()


def test_choices_of_the_printed_variant_are_its_own() -> None:
    with pytest.raises(SettingsError, match="printed"):
        scenario("local", 'news.printed=["softplus"]')


def test_whole_gradients_carry_noise_of_their_std_and_no_other(
    world: tuple[Catalogue, Impressions, Impressions],
) -> None:
    model = fresh(world, basis=0)
    std = 0.7
    users = np.arange(4)
    few = Devices.of(world[1], history=12, labels=None)
    quiet = NoisedGradients(few, 1e-4, 0.0, NOISE)(model, users, 1)[0].astype(np.float64)
    noise = (NoisedGradients(few, 1e-4, std, NOISE)(model, users, 1)[0] - quiet) * 2 / std
    pvalues = [stats.kstest(noise[:20_000] / wrong, "norm").pvalue for wrong in (1, 2 / 3, 3 / 2)]
    assert pvalues[0] > 1e-3  # false alarms: one seed in a thousand, and the seed is fixed
    assert max(pvalues[1:]) < 1e-9
    assert np.linalg.norm(quiet) <= 1e-4 * (1 + 1e-6)


def test_without_clip_and_noise_the_whole_gradient_is_the_bare_one(
    world: tuple[Catalogue, Impressions, Impressions],
) -> None:
    model = fresh(world, basis=0)
    few = Devices.of(world[1], history=12, labels=None)
    single = np.array([int(np.flatnonzero(np.diff(few.ptr) > 0)[0])])
    bare = Through(few, None, NOISE)(model, single, 1)[0]
    whole = NoisedGradients(few, 1e9, 0.0, NOISE)(model, single, 1)[0]
    clicks = np.add.reduceat(world[1].clicked, world[1].candidate_ptr[:-1])[few.rows_of(single)]
    assert (clicks == 1).all()
    np.testing.assert_allclose(whole, bare, atol=1e-6)


@pytest.mark.parametrize("answers", [1, 4])
def test_the_answers_of_all_passes_cost_what_was_promised_by_another_accountant(
    answers: int,
) -> None:
    each = per_answer(Guarantee(5.0, 1e-5, "click", "replace"), answers)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(1 / mu_for(each.epsilon, each.delta)), answers)
    assert accountant.get_epsilon(1e-5) == pytest.approx(5.0, rel=2e-3)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_variant_trains_serves_and_states_its_unit(
    variant: str, world: tuple[Catalogue, Impressions, Impressions]
) -> None:
    catalogue, train, test = world
    *progress, last = train_news(
        scenario(variant), catalogue, LocalClients(scenario(variant), catalogue, train)
    )
    assert progress
    assert all(isinstance(done, Progress) for done in progress)
    assert isinstance(last, TrainedNews)
    assert last.guarantee.unit == variant_named(variant).unit
    assert last.guarantee.established == (variant != "printed")
    assert last.guarantee.private == (variant not in {"fedrec", "centralized"})
    if last.guarantee.private and last.guarantee.established:
        assert last.spent == pytest.approx(5.0, rel=1e-6)
    served = last.recommender.serve(
        test, guarantee=Guarantee(2.0, 1e-5, "click", "replace"), key=bytes(range(32))
    )
    assert served.shape == test.candidates.shape
    assert np.isfinite(served).all()


@pytest.mark.slow
def test_the_other_models_and_padding_run_too(
    world: tuple[Catalogue, Impressions, Impressions],
) -> None:
    for model in ("naml", "plm-nr"):
        chosen = scenario("local", f"news.model={model}", "news.padding=0.3")
        *_, last = train_news(chosen, world[0], LocalClients(chosen, world[0], world[1]))
        assert isinstance(last, TrainedNews)
        assert last.spent == pytest.approx(5.0, rel=1e-6)
