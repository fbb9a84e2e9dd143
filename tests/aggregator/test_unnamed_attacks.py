"""Reports that an enrolled client sends where they do not belong, or of another form than was asked
for: each is counted in the round that it was made for, once, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RefusedError
from fedrec.federation.messages import ReleaseSpec
from fedrec.federation.report_batches import pack_reports
from fedrec.federation.reports import block
from fedrec.federation.wire import unpack_release
from tests.aggregator.conftest import ITEMS, USERS, WIDTH, World

EVERYBODY = list(range(USERS))
MINE = [0, 1, 2]


def sent(world: World, batch: bytes, *, run: str, round: int) -> dict[str, int]:
    receipt = world.aggregator.report("client-0", run, round, batch)
    return {"accepted": receipt.accepted, **receipt.rejected}


def test_a_report_replayed_in_another_round_or_training_counts_nobody(
    make: Callable[..., Any],
) -> None:
    """Also with the digest of the other question written over its own: then it is another report,
    of which each user has one, and its numbers are checked as any others'."""
    world = make()
    world.enroll()
    places = [(run, round) for run in ("run-1", "run-2") for round in (0, 1)]
    batches, digests = dict[Any, bytes](), dict[Any, bytes]()
    for run, round in places:
        world.run = run
        world.open(round)
        batches[run, round] = world.packed(MINE, world.question(round))
        digests[run, round] = bytes.fromhex(world.opening(world.question(round)).digest)
    assert len({*digests.values()}) == len(places)
    for source in places:
        for run, round in places:
            if source != (run, round):
                told = sent(world, batches[source], run=run, round=round)
                assert told == {"accepted": 0, "wrong-question": len(MINE)}
    for run, round in places:
        assert sent(world, batches[run, round], run=run, round=round) == {"accepted": len(MINE)}
        forged = [
            one.replace(digests[source], digests[run, round]) for source, one in batches.items()
        ]
        for one in forged:
            told = sent(world, one, run=run, round=round)
            assert told == {"accepted": 0, "replayed": len(MINE)}
    assert [world.aggregator.status(run, round).reported for run, round in places] == [3] * 4


def with_blocks(world: World, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> bytes:
    batch = world.batch(MINE)
    reports = replace(batch.reports, blocks=change(batch.reports.blocks))
    return pack_reports(replace(batch, reports=reports), world.opening().digest)


FORMS: dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    "none": lambda blocks: (),
    "fewer": lambda blocks: blocks[:-1],
    "more": lambda blocks: (*blocks, blocks[-1]),
    "twice": lambda blocks: blocks * 2,
    "in another order": lambda blocks: blocks[::-1],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_report_of_fewer_or_more_blocks_counts_nobody(form: str, world: World) -> None:
    try:
        batch = with_blocks(world, FORMS[form])
    except (ValueError, AssertionError, IndexError):
        return  # nothing that a report is packed from
    told = sent(world, batch, run=world.run, round=0)
    if form != "in another order":
        assert told == {"accepted": 0, "malformed": len(MINE)}
    world.send([3, 4, *EVERYBODY[6:]])
    assert world.aggregator.close(world.run, 0).reported >= USERS - len(MINE) - 1


@pytest.mark.parametrize("value", [2**15 - 1, -(2**15 - 1), 1, 0])
@pytest.mark.parametrize("vector", [2**15 - 1, -(2**15 - 1), 0])
def test_integers_at_the_ends_of_their_field_move_a_sum_by_no_more_than_the_radius(
    value: int, vector: int, tmp_path: Path
) -> None:
    """In every number of a report at once, which is far longer than any true one."""
    released = []
    for hostile in (False, True):
        world = World(tmp_path / str(hostile), seed=3).begun()
        batch = world.batch(MINE[:1])
        extreme = tuple(
            replace(
                one,
                coefficients=np.full_like(one.coefficients, value),
                vectors=np.full_like(one.vectors, vector),
            )
            for one in batch.reports.blocks
        )
        if hostile:
            forged = replace(batch, reports=replace(batch.reports, blocks=extreme))
            packed = pack_reports(forged, world.opening().digest)
            assert sent(world, packed, run=world.run, round=0)["accepted"] in {0, 1}
        world.send(EVERYBODY[1:])
        world.aggregator.close(world.run, 0)
        content = world.aggregator.release(world.run, 0)
        released.append(unpack_release(content, world.question().releases))
        world.stop()
    for release in world.question().releases:
        moved = [
            (released[1].values[spec.name] - released[0].values[spec.name]).ravel()
            for spec in release.blocks
        ]
        assert np.linalg.norm(np.concatenate(moved)) <= release.radius * (1 + 1e-9)


def test_a_question_whose_blocks_grow_is_another_question(make: Callable[..., Any]) -> None:
    """A server that asks for one block more in a round that is open is refused, and the reports of
    the first question still count."""
    world = make().begun()
    more = replace(
        world.question(),
        releases=(
            *world.question().releases,
            ReleaseSpec("m/1", (block("mean/1", "linear", rows=ITEMS, width=WIDTH),)),
        ),
    )
    with pytest.raises(RefusedError):
        world.aggregator.open_round(world.opening(more))
    assert sent(world, world.packed(MINE), run=world.run, round=0) == {"accepted": len(MINE)}
