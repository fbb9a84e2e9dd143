"""A bundle of a news model ranks as the model that was evaluated does: same key, same noise, same
scores."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import PlantedNews, PlantedNewsShape, planted_news
from fedrec.errors import RunError, SettingsError, UnitMismatchError
from fedrec.evaluation.impressions import evaluate_impressions
from fedrec.news.local_clients import LocalClients
from fedrec.news.prior import log_exposure, products
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue, TrainedNews
from fedrec.news.variant import train_news
from fedrec.news.variants.additive import AdditiveRecommender
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.serving import asking
from fedrec.serving import bundle as files
from fedrec.serving.asking import HIDDEN, ask, exact, told
from fedrec.serving.exporting import Origin
from fedrec.serving.news_bundles import news_bundle
from fedrec.settings import Scenario, validated

H = 12
CLICK = Guarantee(3.0, 1e-5, "click", "replace")
FREE = non_private(1e-5, "click", "replace")
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def world() -> tuple[PlantedNews, Catalogue]:
    torch.set_num_threads(1)
    shape = PlantedNewsShape(
        users=120, news=300, history_mean=8, impressions_mean=2, candidates=6, strength=5.0
    )
    planted = planted_news(shape, seed=3)
    return planted, Catalogue(
        planted.news, public_vectors(planted.news, PublicFeatures({}), seed=3, dimension=16)
    )


def scenario(variant: str, **news: object) -> Scenario:
    unit = "user" if variant == "central" else "click"
    epsilon = "inf" if variant in {"fedrec", "centralized"} else 8
    content = {
        "recipe": "privaterec",
        "data": {"format": "planted-news"},
        "privacy": {"epsilon": epsilon, "unit": unit},
        "news": {"variant": variant, "history": H, "rounds": 2, "epochs": 1, **news},
    }
    return validated(content, source="test")


def trained(world: tuple[PlantedNews, Catalogue], chosen: Scenario) -> TrainedNews:
    *_, last = train_news(chosen, world[1], LocalClients(chosen, world[1], world[0].log.train))
    assert isinstance(last, TrainedNews)
    return last


def written(folder: Path, model: TrainedNews, planted: PlantedNews) -> files.Bundle:
    origin = Origin("test", 1e-5, model.guarantee, model.spent, "seeded")
    version = files.write(
        folder / files.FILE, *news_bundle(model.recommender, planted.news, origin)
    )
    read = files.read(folder / files.FILE)
    assert read.version == version
    return read


def scores(bundle: files.Bundle, asked: Impressions, guarantee: Guarantee) -> np.ndarray:
    sent = ask(bundle, asked.last_clicks(H), guarantee=guarantee, key=KEY).sent
    owner = np.repeat(asked.users, np.diff(asked.candidate_ptr))
    return (
        products(bundle.users(sent), owner, bundle.items, asked.candidates)
        + bundle.bias[asked.candidates]
    )


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [FREE, CLICK], ids=["exact", "noised"])
@pytest.mark.parametrize(
    ("variant", "more"),
    [
        ("additive", {}),
        ("central", {}),
        ("local", {"padding": 0.3}),
        ("fedrec", {"basis": 4, "model": "naml"}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_bundle_scores_as_the_recommender_that_was_evaluated(
    world: tuple[PlantedNews, Catalogue],
    tmp_path: Path,
    variant: str,
    more: dict[str, object],
    guarantee: Guarantee,
) -> None:
    planted = world[0]
    test = world[0].log.test
    model = trained(world, scenario(variant, **more))
    theirs = model.recommender.serve(test, guarantee=guarantee, key=KEY)
    ours = scores(written(tmp_path, model, planted), test, guarantee)
    if isinstance(model.recommender, AdditiveRecommender):  # whose lists know what was shown
        ours = ours - log_exposure(model.recommender.trained.shown)[test.candidates]
    if variant == "central":  # but for one positive factor a user
        owner = np.repeat(test.users, np.diff(test.candidate_ptr))
        factor = np.array(
            [
                ours[owner == k] @ theirs[owner == k] / (ours[owner == k] @ ours[owner == k])
                for k in range(test.num_users)
            ]
        )
        assert (factor[np.unique(owner)] > 0).all()
        ours = ours * factor[owner]
    np.testing.assert_allclose(
        ours, theirs, rtol=0, atol=1e-5 * max(1.0, float(np.abs(theirs).max()))
    )
    assert evaluate_impressions(ours.astype(np.float32), test).auc == pytest.approx(
        evaluate_impressions(theirs, test).auc, abs=1e-4
    )


def test_what_would_send_a_whole_user_vector_cannot_be_served(
    world: tuple[PlantedNews, Catalogue], tmp_path: Path
) -> None:
    model = trained(world, scenario("centralized"))
    with pytest.raises(SettingsError, match="whole user vector") as refusal:
        written(tmp_path, model, world[0])
    assert "news.basis" in refusal.value.remedy


def test_a_bundle_that_states_too_small_a_sensitivity_is_refused(
    world: tuple[PlantedNews, Catalogue], tmp_path: Path
) -> None:
    model = trained(world, scenario("additive"))
    about, arrays = news_bundle(
        model.recommender,
        world[0].news,
        Origin("test", 1e-5, model.guarantee, model.spent, "seeded"),
    )
    files.write(tmp_path / "honest", about, arrays)
    files.read(tmp_path / "honest")
    files.write(
        tmp_path / "loud",
        about.model_copy(update={"sensitivity": about.sensitivity * 0.999}),
        arrays,
    )
    with pytest.raises(RunError, match="more than it states"):
        files.read(tmp_path / "loud")


def test_what_is_asked_is_charged_in_clicks_and_only_a_history_of_the_right_shape_is_taken(
    world: tuple[PlantedNews, Catalogue], tmp_path: Path
) -> None:
    bundle = written(tmp_path, trained(world, scenario("additive")), world[0])
    history = np.full((2, H), -1, np.int32)
    asked = ask(bundle, history, guarantee=CLICK, key=KEY)
    assert (asked.event.unit, asked.event.neighbours) == ("click", "replace")
    assert asked.noise_std > 0
    assert asked.raw.shape == asked.sent.shape == (2, bundle.coefficients)
    np.testing.assert_array_equal(
        exact(bundle, history), ask(bundle, history, guarantee=FREE, key=KEY).raw
    )
    assert math.isinf(ask(bundle, history, guarantee=FREE, key=KEY).event.mu)  # type: ignore[union-attr]
    with pytest.raises(UnitMismatchError):
        ask(bundle, history, guarantee=replace(CLICK, unit="user"), key=KEY)
    for wrong in (history[:, :-1], np.full((1, H), bundle.size, np.int32)):
        with pytest.raises(ValueError, match="a history is"):
            ask(bundle, wrong, guarantee=CLICK, key=KEY)


def test_the_same_released_model_gives_the_same_bytes(
    world: tuple[PlantedNews, Catalogue], tmp_path: Path
) -> None:
    model = trained(world, scenario("additive"))
    first, second = (written(tmp_path / name, model, world[0]).sha256 for name in "ab")
    assert first == second


def test_a_list_knows_how_often_items_were_shown_and_nothing_of_those_that_never_were(
    world: tuple[PlantedNews, Catalogue], tmp_path: Path
) -> None:
    model = trained(world, scenario("additive"))
    train = world[0].log.train
    assert isinstance(model.recommender, AdditiveRecommender)
    shown = np.bincount(train.candidates, minlength=train.num_news)
    assert model.recommender.trained.shown.tolist() == shown.tolist()
    bias = model.recommender.trained.model.item_bias.detach().numpy()
    found = written(tmp_path, model, world[0]).bias - bias
    np.testing.assert_allclose(found, log_exposure(shown), atol=1e-5)
    some = log_exposure(np.array([1, 0, 100]))
    np.testing.assert_allclose(some, [0, math.log(100) / 2, math.log(100)])
    assert log_exposure(np.zeros(2, np.int64)).tolist() == [0, 0]


def test_lists_of_news_are_known_to_be_everybodys_by_invented_readers_alone(
    world: tuple[PlantedNews, Catalogue], tmp_path: Path
) -> None:
    model = trained(world, scenario("additive"))
    bundle = written(tmp_path, model, world[0])
    shares = [
        told(bundle, 8, guarantee=Guarantee(epsilon, 1e-5, "click", "replace"))
        for epsilon in (0.1, 5.0, 1e6)
    ]
    assert shares[0] is not None
    assert shares[0] < HIDDEN < shares[2]
    assert shares == sorted(shares)
    assert told(bundle, 8, guarantee=FREE) == pytest.approx(1.0)
    assert told(bundle, 0, guarantee=CLICK) == 0.0
    same = replace(bundle, items=np.zeros_like(bundle.items))  # every list is the prior's
    assert told(same, 8, guarantee=FREE) == 0.0


def test_a_bundle_that_fails_at_some_numbers_of_clicks_says_nothing_and_raises_nothing(
    world: tuple[PlantedNews, Catalogue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = written(tmp_path, trained(world, scenario("additive")), world[0])

    def fails(*_: object, **__: object) -> None:
        raise FloatingPointError

    monkeypatch.setattr(asking, "ask", fails)
    assert told(bundle, 8, guarantee=CLICK) is None
