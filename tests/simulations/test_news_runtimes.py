"""The same news scenario carried by one process, by Flower in one process, and by real
processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.errors import RefusedError, SettingsError
from fedrec.news.topics import public_vectors
from fedrec.news.trained import Catalogue, TrainedNews
from fedrec.news.variant import require as variant_named
from fedrec.run.job import Name, RuntimeChoice
from fedrec.run.news import News
from fedrec.run.news_run import NewsJob, loopback
from fedrec.run.shards import shards
from fedrec.settings import Scenario, load
from tests.cases import slow_but

SHAPE = PlantedNewsShape(
    users=90, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)


@pytest.fixture(scope="module")
def world() -> tuple[Catalogue, Impressions]:
    planted = planted_news(SHAPE, seed=2)
    return Catalogue(
        planted.news, public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    ), planted.log.train


@pytest.fixture(scope="module")
def small(world: tuple[Catalogue, Impressions]) -> tuple[Catalogue, Impressions]:
    """Few of them, where each answers with the gradient of a whole encoder."""
    return world[0], world[1].users_subset(np.arange(12))


def scenario(variant: str, *more: str) -> Scenario:
    epsilon = "inf" if variant in {"fedrec", "centralized"} else "5"
    keys = [
        f"news.variant={variant}",
        f"privacy.unit={variant_named(variant).unit}",
        f"privacy.epsilon={epsilon}",
        "news.users_per_round=24",
    ]
    return load(
        None,
        [
            "recipe=privaterec",
            "news.variant=additive",
            "data.format=planted-news",
            "data.preset=small",
            "news.history=12",
            "privacy.noise=seeded",
            *keys,
            *more,
        ],
    )


def trained(
    chosen: Scenario, world: tuple[Catalogue, Impressions], folder: Path, runtime: Name
) -> TrainedNews:
    *_, last = RuntimeChoice(runtime, 3).carrier(None, loopback)(NewsJob(chosen, *world, folder))
    assert isinstance(last, TrainedNews)
    return last


@pytest.mark.parametrize(
    "more",
    [
        ["additive"],
        ["additive", 'news.open_categories=["arts"]'],
        ["additive", "news.no_click=report"],
        ["additive", "news.topics=categories"],
        ["additive", "privacy.epsilon=inf"],
        ["central", "news.rounds=3"],
        ["central-encoder", "news.rounds=2", "news.bands=2"],
        ["central", "news.rounds=2", "privacy.aggregation=three-party"],
    ],
    ids=" ".join,
)
def test_flower_s_messages_and_real_parties_give_the_loopback_s_bytes(
    more: list[str], world: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    chosen = scenario(*more, "news.epochs=1")
    alone, over_flower = (
        trained(chosen, world, tmp_path / name, name) for name in ("loopback", "parties")
    )
    assert {n: a.tobytes() for n, a in over_flower.parameters.items()} == {
        n: a.tobytes() for n, a in alone.parameters.items()
    }
    assert (over_flower.spent, over_flower.bytes_up) == (alone.spent, alone.bytes_up)


@pytest.mark.parametrize(
    "more",
    slow_but(
        [["dp-fedrec"]], [["local", "news.padding=0.2"], ["printed"], ["dp-fedrec"], ["fedrec"]]
    ),
    ids=" ".join,
)
def test_flower_s_strategy_steps_as_the_loopback_does(
    more: list[str], small: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    chosen = scenario(*more, "news.users_per_round=6", "news.rounds=4")
    alone, over_flower = (
        trained(chosen, small, tmp_path / name, name).parameters["parameters"]
        for name in ("loopback", "parties")
    )
    assert np.linalg.norm(over_flower - alone) <= 1e-5 * np.linalg.norm(alone)


@pytest.mark.slow
def test_over_flower_a_stopped_training_goes_on_to_the_same_bytes(
    small: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    for more in (
        ["additive"],
        ["local", "news.users_per_round=6", "news.rounds=4"],
        ["central", "news.rounds=3"],
    ):
        chosen = scenario(*more)
        folder = tmp_path / more[0]
        begun = RuntimeChoice("parties", 3).carrier(None)(NewsJob(chosen, *small, folder))
        next(begun), next(begun)
        begun.close()
        resumed = trained(chosen, small, folder, "parties")
        alone = trained(chosen, small, tmp_path / f"{more[0]}-alone", "parties")
        assert {n: a.tobytes() for n, a in resumed.parameters.items()} == {
            n: a.tobytes() for n, a in alone.parameters.items()
        }
        assert resumed.spent == alone.spent


def test_an_aggregator_put_back_in_time_is_refused(
    world: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    chosen = scenario("central", "news.rounds=3")
    begun = RuntimeChoice("parties", 3).carrier(None)(NewsJob(chosen, *world, tmp_path))
    next(begun), next(begun)
    begun.close()
    shutil.rmtree(tmp_path / "aggregator")
    with pytest.raises(RefusedError) as caught:
        trained(chosen, world, tmp_path, "parties")
    assert caught.value.code == "stale-ledger"


@pytest.mark.processes
def test_real_processes_give_the_loopback_s_bytes(
    world: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    chosen = scenario("additive")
    alone = trained(chosen, world, tmp_path / "loopback", "loopback")
    *_, apart = RuntimeChoice("processes", 2).carrier(None)(
        NewsJob(chosen, *world, tmp_path / "processes")
    )
    assert isinstance(apart, TrainedNews)
    assert {n: a.tobytes() for n, a in apart.parameters.items()} == {
        n: a.tobytes() for n, a in alone.parameters.items()
    }
    assert (tmp_path / "processes" / "server" / "model" / "model.safetensors").exists()


def test_what_has_no_devices_and_what_is_not_sent_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    for more, words in (
        (["centralized"], "no devices"),
        (["local", "news.word_vectors=glove.txt"], "word_vectors"),
    ):
        for runtime in ("parties", "processes"):
            with pytest.raises(SettingsError, match=words):
                News.require_carried(scenario(*more), RuntimeChoice(runtime, 2))  # type: ignore[arg-type]


def test_clients_share_all_users_and_each_has_some(world: tuple[Catalogue, Impressions]) -> None:
    held = shards(world[1], 4)
    assert sum(shard.events.num_users for shard in held) == world[1].num_users
    assert [shard.first_user for shard in held[1:]] == [
        shard.first_user + shard.events.num_users for shard in held[:-1]
    ]
    with pytest.raises(SettingsError, match="cannot share"):
        shards(world[1], 100)
