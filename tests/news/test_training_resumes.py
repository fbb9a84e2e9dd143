"""Every variant goes on after its last step to the bytes of a training that nobody stopped, and
draws nothing twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedrec.data.features import PublicFeatures
from fedrec.data.impressions import Impressions
from fedrec.data.planted_news import PlantedNewsShape, planted_news
from fedrec.news import topics
from fedrec.news.checkpoints import DeviceNoise, Kept
from fedrec.news.local_clients import LocalClients
from fedrec.news.local_update import Behind
from fedrec.news.reports_training import Collected, collect, collected_arrays, joined
from fedrec.news.trained import Catalogue, Progress, TrainedNews, topics_of
from fedrec.news.variant import VARIANTS, promised, train_news
from fedrec.news.variant import require as variant_named
from fedrec.privacy.bounded_mean import TopicTable
from fedrec.privacy.click_accounting import TrainingPlan, plan_training
from fedrec.randomness import Streams
from fedrec.settings import Scenario, load

SHAPE = PlantedNewsShape(
    users=50, news=500, history_mean=10, impressions_mean=3, candidates=6, strength=3.0
)


@pytest.fixture(scope="module")
def world() -> tuple[Catalogue, Impressions]:
    planted = planted_news(SHAPE, seed=2)
    return Catalogue(
        planted.news, topics.public_vectors(planted.news, PublicFeatures({}), seed=2, dimension=16)
    ), planted.log.train


def scenario(variant: str) -> Scenario:
    epsilon = "inf" if variant in {"fedrec", "centralized"} else "5"
    keys = [
        f"news.variant={variant}",
        f"privacy.unit={variant_named(variant).unit}",
        f"privacy.epsilon={epsilon}",
    ]
    sizes = ["news.users_per_round=16", "news.history=12", "news.epochs=3"]
    return load(
        None,
        [
            "recipe=privaterec",
            "news.variant=additive",
            "data.format=planted-news",
            "privacy.noise=seeded",
            *sizes,
            *keys,
        ],
    )


def finished(chosen: Scenario, world: tuple[Catalogue, Impressions], kept: Kept) -> TrainedNews:
    *_, last = train_news(chosen, world[0], LocalClients(chosen, *world), kept=kept)
    assert isinstance(last, TrainedNews)
    return last


def model(trained: TrainedNews) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trained.parameters.items()}


@pytest.mark.slow
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_stopped_training_goes_on_to_the_same_bytes(
    variant: str, world: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    chosen = scenario(variant)
    kept = Kept(tmp_path)
    begun = train_news(chosen, world[0], LocalClients(chosen, *world), kept=kept)
    for _ in range(3):
        assert isinstance(next(begun), Progress)
    begun.close()
    resumed = finished(chosen, world, kept)
    alone = finished(chosen, world, Kept(tmp_path / "alone"))
    assert model(resumed) == model(alone)
    assert (resumed.spent, resumed.bytes_up, resumed.bytes_down) == (
        alone.spent,
        alone.bytes_up,
        alone.bytes_down,
    )
    assert len(list((tmp_path / "checkpoints").iterdir())) <= 2


def test_labels_are_randomised_once_whatever_stops_the_training(
    world: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    """Two answers to one question would cost twice what is charged for the label."""
    chosen = scenario("local").model_copy(
        update={"privacy": scenario("local").privacy.model_copy(update={"noise": "system"})}
    )
    kept = Kept(tmp_path)
    answers = []
    for _ in range(2):  # as two processes, one after the other
        clients = LocalClients(chosen, *world, kept)
        begun = train_news(chosen, world[0], clients, kept=kept)
        next(begun)
        begun.close()
        update = clients._device[1]
        assert isinstance(update, Behind)
        answers.append(update.devices.labels)
    assert answers[0].sum() > 0
    np.testing.assert_array_equal(*answers)


@dataclass(frozen=True)
class Counted(LocalClients):
    """Clients that remember how often they were asked to report."""

    asked: list[TopicTable] = field(default_factory=list)

    def reports(self, topics: TopicTable, plan: TrainingPlan) -> Collected:
        self.asked.append(topics)
        return super().reports(topics, plan)


def test_reports_are_drawn_once_whatever_stops_the_training(
    world: tuple[Catalogue, Impressions], tmp_path: Path
) -> None:
    chosen = scenario("additive").model_copy(
        update={"privacy": scenario("additive").privacy.model_copy(update={"noise": "system"})}
    )
    clients = Counted(chosen, *world)
    begun = train_news(chosen, world[0], clients, kept=Kept(tmp_path))
    next(begun)
    begun.close()
    reports = (tmp_path / "reports.safetensors").read_bytes()
    list(train_news(chosen, world[0], clients, kept=Kept(tmp_path)))
    assert len(clients.asked) == 1
    assert (tmp_path / "reports.safetensors").read_bytes() == reports


def test_sites_that_share_the_users_in_any_way_report_what_one_process_reports(
    world: tuple[Catalogue, Impressions],
) -> None:
    chosen = scenario("additive")
    train = world[1]
    table = topics_of(chosen, world[0])
    plan = plan_training(promised(chosen))
    noise = DeviceNoise.numbered(Streams(7), train.num_users)
    alone = collect(train, table, plan, history=12, noise=noise)
    parts = [np.arange(13), np.arange(13, train.num_users)]
    apart = [
        collect(
            train.users_subset(p),
            table,
            plan,
            history=12,
            noise=DeviceNoise(Streams(7), tuple(map(str, p.tolist()))),
        )
        for p in parts
    ]
    both = [collected_arrays(got) for got in (alone, joined(apart))]
    assert {name: a.tobytes() for name, a in both[0].items()} == {
        name: a.tobytes() for name, a in both[1].items()
    }


def test_what_one_user_draws_depends_on_nobody_else(world: tuple[Catalogue, Impressions]) -> None:
    """The same users without the first one: their reports and answers are the same bytes."""
    chosen = scenario("additive")
    train = world[1]
    table = topics_of(chosen, world[0])
    plan = plan_training(promised(chosen))
    names = tuple(f"user {k}" for k in range(train.num_users))
    everybody = collect(train, table, plan, history=12, noise=DeviceNoise(Streams(7), names))
    rest = train.users_subset(np.arange(1, train.num_users))
    others = collect(rest, table, plan, history=12, noise=DeviceNoise(Streams(7), names[1:]))
    np.testing.assert_array_equal(others.coefficients.values, everybody.coefficients.values[1:])
    theirs = np.repeat(train.users > 0, np.diff(train.candidate_ptr))
    np.testing.assert_array_equal(others.labels.reported, everybody.labels.reported[theirs])


def test_large_states_that_anybody_can_repeat_lie_a_pause_apart_and_the_last_is_kept(
    tmp_path: Path,
) -> None:
    large = {"x": np.zeros(2**20 + 1)}
    kept = Kept(tmp_path, pause_s=600)
    for step in (1, 2):
        kept.save({**large, "step": np.array(step)}, step=step, last=False)
    assert kept.latest()["step"] == 1
    kept.save({"step": np.array(3)}, step=3, last=False)
    assert kept.latest()["step"] == 3, "small states are kept every time"
    kept.save({**large, "step": np.array(4)}, step=4)
    assert kept.latest()["step"] == 4
    Kept(tmp_path).save({**large, "step": np.array(5)}, step=5, last=False)
    assert Kept(tmp_path).latest()["step"] == 5, "without a pause every state is kept"
