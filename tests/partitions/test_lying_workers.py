"""Workers of a cluster that lie: what the process that begins the training refuses, and what it
cannot see. A worker reads rows of its parts, so that a cluster is one party."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RunError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import Question
from fedrec.federation.reports import ExactSums
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import client_recipe, prepare
from fedrec.run.data.describing import partition
from fedrec.run.partitions.methods import EngineLink, RoundSums
from fedrec.run.partitions.parts import InThisProcess, Parts, PartTask, Told
from fedrec.settings import load

USERS = 400
Lie = Callable[[list[Any]], list[Any]]


@dataclass
class Lying:
    """An engine of which one worker changes what it adds up."""

    source: Parts
    lie: Callable[[ExactSums], None]
    twice: int | None = None
    parts: int = 3

    def reduce(self, task: PartTask, told: Told, *, only: int | None = None) -> Any:
        """As `protocol.Engine`, the part `twice` again."""
        honest = InThisProcess(self.source)
        sums: RoundSums = honest.reduce(task, told)
        if self.twice is not None:
            sums.merge(honest.reduce(task, told, only=self.twice))
        self.lie(sums.sums)
        return sums

    def close(self) -> None:
        """Nothing to end."""


def of_blocks(change: Lie) -> Callable[[ExactSums], None]:
    """A change of the arrays."""

    def lie(sums: ExactSums) -> None:
        sums.blocks = tuple(change(list(sums.blocks)))

    return lie


def _with_one(blocks: list[Any], number: int) -> list[Any]:
    blocks[0] = blocks[0].copy()
    blocks[0].flat[-1] = number
    return blocks


LIES: dict[str, Callable[[ExactSums], None]] = {
    "fewer rows": of_blocks(lambda blocks: [block[:-1] for block in blocks]),
    "one row for all": of_blocks(lambda blocks: [blocks[0][:1], *blocks[1:]]),
    "more columns": of_blocks(lambda blocks: [np.hstack([b, b]) for b in blocks]),
    "a block less": of_blocks(lambda blocks: blocks[:-1]),
    "a block more": of_blocks(lambda blocks: [*blocks, blocks[0]]),
    "blocks reordered": of_blocks(lambda blocks: blocks[::-1]),
    "floats": of_blocks(lambda blocks: [block.astype(np.float64) for block in blocks]),
    "not a number": of_blocks(lambda blocks: [np.full(b.shape, np.nan) for b in blocks]),
    "objects": of_blocks(lambda blocks: [block.astype(object) for block in blocks]),
    "other integers": of_blocks(lambda blocks: [block.astype(np.int32) for block in blocks]),
    "no array": of_blocks(lambda blocks: [block.tolist() for block in blocks]),
    "the largest": of_blocks(lambda blocks: _with_one(blocks, 2**63 - 1)),
    "the least": of_blocks(lambda blocks: _with_one(blocks, -(2**63))),
    "a thousand people more": of_blocks(lambda blocks: [1_000 * block for block in blocks]),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("data") / "parts"
    chosen = ["data.preset=", f"data.planted={{users={USERS}, items=40, events=6000}}"]
    partition(load(None, chosen), str(folder), parts=3, resume=False)
    return Parts(load(None, [f'data.path="{folder}"']))


def asked(parts: Parts, engine: Any) -> tuple[EngineLink, Question]:
    scenario = load(None, ["recipe=dp-bias"])
    events = parts.public().interactions
    facts = PublicFacts(USERS, events.num_items, "ratings", events.value_range, None, Streams(1))
    made = prepare(scenario, facts)
    link = EngineLink(
        engine,
        client_recipe(scenario),
        "ratings",
        made.plan,
        Streams(1),
        Ledger(made.plan.guarantee),
        None,
        lambda done, of: None,
        {},
        USERS,
    )
    question = made.recipe.ask(made.recipe.begin())
    assert question is not None
    return link, question


@pytest.mark.parametrize("lie", LIES)
def test_sums_that_no_such_people_have_are_refused_before_anything_is_charged(
    lie: str, parts: Parts
) -> None:
    link, question = asked(parts, Lying(parts, LIES[lie]))
    assert len(question.blocks) > 1
    with pytest.raises(RunError, match=f"cannot be those of {USERS} users"):
        link.answer(question)
    assert not link.ledger.events


def test_a_part_that_is_counted_twice_is_not_seen(parts: Parts) -> None:
    """Each part's people are then protected by half: the workers are trusted with it, as with the
    rows themselves."""
    honest, question = asked(parts, InThisProcess(parts))
    lied, _ = asked(parts, Lying(parts, lambda sums: None, twice=0))
    (one, other) = (link.answer(question).values for link in (honest, lied))
    assert any((one[name] != other[name]).any() for name in one)
    assert honest.ledger.events == lied.ledger.events
