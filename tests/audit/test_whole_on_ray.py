"""The attack on the whole command where workers of a cluster add the reports up, and die meanwhile:
under its claim as things are, above it where a pass that was lost counts with the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedrec.arrays import Int64s
from fedrec.auditing import whole
from fedrec.auditing.whole import Trainable, World, whole_finding
from fedrec.federation.messages import Question
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams, SystemStreams
from fedrec.recipes import client_recipe
from fedrec.run.partitions import on_ray
from fedrec.run.partitions.methods import EngineLink, RoundTask
from fedrec.run.partitions.on_ray import OnRay, RayWorker
from fedrec.run.partitions.parts import merged
from fedrec.settings import load
from tests.partitions.test_engines import FakeRay

pytestmark = pytest.mark.slow

PARTS = 4
CHOSEN = ["recipe=default", "privacy.noise=seeded", "privacy.epsilon=5"]


class Source:
    """A world's users in parts, the first in the last one: whom the attack is on."""

    def __init__(self, world: World) -> None:
        users: Any = world.train
        self.data = SimpleNamespace(parts=range(PARTS))
        self._parts = [
            users.users_subset(part)
            for part in np.array_split(np.arange(users.num_users)[::-1], PARTS)
        ]

    def read(self, index: int) -> Any:
        return SimpleNamespace(split=SimpleNamespace(train=self._parts[index]))


def dying(world: World) -> Any:
    """An engine, whose workers die: once with a part, once with the total of a pass."""
    taken = list[int]()

    def dies(name: str, call: int) -> bool:
        if name == "take":
            taken.append(call)
        return call == 2 or (name == "take" and len(taken) == 1)

    fake = FakeRay(2, dies)
    on_ray._ray = lambda: fake
    return OnRay(Source(world))  # type: ignore[arg-type]


def quiet(done: int, of: int) -> None: ...


@pytest.fixture
def over_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack sees what leaves a cluster."""
    monkeypatch.setattr(on_ray, "_ray", on_ray._ray)  # put back at the end
    monkeypatch.setattr(on_ray, "use_at_most", lambda number: None)
    monkeypatch.setattr(whole, "_TRAININGS", 4)
    # large blocks and crowds are no matter of where reports are added up: test_whole.py
    monkeypatch.setattr(whole, "_LARGE", 100_000)
    monkeypatch.setattr(whole, "_CROWD", 4_096)

    def link(prepared: Trainable, world: World, noise: Streams | SystemStreams) -> EngineLink:
        plan = prepared.plan
        users = world.train.num_users  # type: ignore[union-attr]
        steps = client_recipe(world.scenario), world.train.kind  # type: ignore[union-attr]
        ledger = Ledger(plan.guarantee)
        return EngineLink(dying(world), *steps, plan, noise, ledger, None, quiet, {}, users)

    def sums(prepared: Trainable, world: World, question: Question) -> tuple[Int64s, ...]:
        own = link(prepared, world, Streams(0))
        task = RoundTask(own.recipe, own.kind, question, own.plan)
        blocks: tuple[Int64s, ...] = own.engine.reduce(task, quiet).sums.blocks
        return blocks

    monkeypatch.setattr(whole, "_link", link)
    monkeypatch.setattr(whole, "_sums", sums)


@pytest.mark.usefixtures("over_ray")
def test_the_bound_lies_under_the_claim_whoever_dies() -> None:
    found = whole_finding(load(None, CHOSEN), runs=1_000)
    assert found.verdict == "holds"
    assert found.measured > 2.5


@pytest.mark.usefixtures("over_ray")
def test_where_a_lost_pass_counts_with_the_next_the_bound_is_above_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgets_nothing(worker: Any, key: str, task: Any, index: int) -> int:
        worker._pass = key
        worker._total = merged(
            worker._total, on_ray._ray().get(task[0]).map(worker._source.read(index))
        )
        return index

    monkeypatch.setattr(RayWorker, "map", forgets_nothing)
    assert whole_finding(load(None, CHOSEN), runs=1_000).verdict != "holds"
