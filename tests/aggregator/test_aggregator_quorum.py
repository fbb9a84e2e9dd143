"""The quorum at the aggregator: nothing leaves below it, reports name it, and no server can lower
the minimum cohort by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Phase, Receipt, Refusal
from fedrec.federation.report_batches import pack_reports
from fedrec.federation.wire import report_digest

RUN = "run-1"
EVERYBODY = list(range(12))


def opened(world: Any, quorum: int) -> Any:
    world.aggregator.open_run(RUN, world.plan)
    return world.aggregator.open_round(replace(world.opening(), quorum=quorum))


def send(world: Any, users: list[int], quorum: int) -> list[Receipt]:
    named = report_digest(world.opening().digest, quorum)
    sent = list[Receipt]()
    for client in (0, 1):
        if mine := [user for user in users if user in world.users_of(client)]:
            sent.append(
                world.aggregator.report(
                    f"client-{client}", RUN, 0, pack_reports(world.batch(mine), named)
                )
            )
    return sent


def test_below_the_quorum_nothing_is_released_and_nothing_is_spent(make: Any) -> None:
    world = make()
    world.enroll()
    opened(world, 9)
    send(world, EVERYBODY[:8], 9)
    world.clock.now_s += 60
    world.aggregator.tick()
    status = world.aggregator.status(RUN, 0)
    assert (status.phase, status.reported, status.quorum) == (Phase.SHORT, 8, 9)
    assert world.aggregator.ledger.spends().charges == ()


def test_at_the_quorum_the_round_is_released_and_its_entry_says_which_it_was(make: Any) -> None:
    world = make()
    world.enroll()
    opened(world, 9)
    send(world, EVERYBODY[:9], 9)
    assert world.aggregator.close(RUN, 0).phase is Phase.RELEASED
    status = world.restart().status(RUN, 0)
    assert (status.reported, status.quorum) == (9, 9)


@pytest.mark.parametrize("quorum", [0, 1, 4])
def test_a_server_that_asks_for_few_gets_no_less_than_the_minimum_cohort(
    make: Any, quorum: int
) -> None:
    world = make()
    world.enroll()
    opened(world, quorum)
    send(world, EVERYBODY[:4], quorum)
    assert world.aggregator.close(RUN, 0).phase is Phase.SHORT


def test_reports_under_another_quorum_are_not_counted(make: Any) -> None:
    """Whoever changes it between server and client, or between server and aggregator, gets no
    sum."""
    world = make()
    world.enroll()
    opened(world, 6)
    for quorum in (0, 5, 7):
        assert send(world, EVERYBODY[:3], quorum) == [Receipt(0, {"wrong-question": 3})]
    assert send(world, EVERYBODY[:3], 6) == [Receipt(3, {})]


def test_a_round_that_is_open_with_another_quorum_starts_anew(make: Any) -> None:
    """It is the same question, so it is charged once; what was reported for another quorum is
    forgotten."""
    world = make()
    world.enroll()
    opened(world, 11)
    send(world, EVERYBODY[:7], 11)
    again = opened(world, 6)
    assert (again.phase, again.attempt, again.reported, again.quorum) == (Phase.OPEN, 2, 0, 6)
    assert send(world, EVERYBODY[:7], 11) == [
        Receipt(0, {"wrong-question": 6}),
        Receipt(0, {"wrong-question": 1}),
    ]
    send(world, EVERYBODY[:7], 6)
    assert world.aggregator.close(RUN, 0).phase is Phase.RELEASED
    charged = [charge.release for charge in world.aggregator.ledger.spends().charges]
    assert sorted(charged) == ["m/0", "s/0"]


def test_a_round_that_is_being_released_keeps_the_quorum_that_it_had(make: Any) -> None:
    world = make()
    world.enroll()
    opened(world, 6)
    send(world, EVERYBODY[:7], 6)
    world.aggregator.close(RUN, 0)
    status = opened(world, 12)
    assert (status.phase, status.reported, status.quorum) == (Phase.RELEASED, 7, 6)


@pytest.mark.parametrize("quorum", [-1, 2**53, True, 1.5])
def test_a_quorum_that_is_no_number_of_users_is_refused(make: Any, quorum: Any) -> None:
    world = make()
    with pytest.raises(RefusedError) as caught:
        opened(world, quorum)
    assert caught.value.code == Refusal.MALFORMED
