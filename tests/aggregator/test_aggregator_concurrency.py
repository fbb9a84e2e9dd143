import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from fedrec.errors import RefusedError
from fedrec.federation.protocol import Phase
from fedrec.federation.releases import release
from fedrec.federation.reports import exact_sums
from fedrec.federation.wire import pack_release
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec_aggregator import opening_checks
from fedrec_aggregator.core import Limits
from fedrec_aggregator.ledger import ReleaseLedger
from tests.waiting import HANG_S

EVERYBODY = list(range(12))
RUN = "run-1"


@pytest.mark.parametrize("seed", range(6))
def test_reports_that_race_with_the_close_are_counted_in_the_release_or_told_that_they_are_late(
    make: Callable[..., Any], seed: int
) -> None:
    world = make(limits=Limits(min_cohort=1)).begun()
    world.send([0])
    batches = {user: world.packed([user]) for user in EVERYBODY[1:]}
    order = np.random.default_rng(seed).permutation(EVERYBODY[1:])
    start = threading.Barrier(5)

    def report(users: list[int]) -> list[int]:
        start.wait()
        owner = lambda user: f"client-{int(user >= 6)}"  # noqa: E731
        return [
            user
            for user in users
            if world.aggregator.report(owner(user), RUN, 0, batches[user]).accepted
        ]

    def close() -> Phase:
        start.wait()
        return world.aggregator.close(RUN, 0).phase  # type: ignore[no-any-return]

    with ThreadPoolExecutor(5) as pool:
        reporting = [pool.submit(report, [int(u) for u in order[k::4]]) for k in range(4)]
        closing = pool.submit(close)
        accepted = sorted([0, *(user for done in reporting for user in done.result())])
    assert closing.result() is Phase.RELEASED
    assert world.aggregator.status(RUN, 0).reported == len(accepted)
    question = world.question()
    sums = exact_sums(world.batch(accepted).reports, question.blocks)
    exact, _ = release(
        question, sums, world.plan, Ledger(world.plan.guarantee), noise=Streams(world.seed)
    )
    assert world.aggregator.release(RUN, 0) == pack_release(exact)


@pytest.mark.parametrize("seed", range(4))
def test_of_senders_that_race_for_the_same_users_one_gets_them_and_counts_stay_right(
    make: Callable[..., Any], seed: int
) -> None:
    world = make(limits=Limits(min_cohort=1))
    start = threading.Barrier(8)
    order = np.random.default_rng(seed).permutation(6)

    def enroll(sender: int) -> int:
        start.wait()
        won = 0
        for user in order:
            with suppress(RefusedError):  # it is another's
                won = world.aggregator.enroll(f"client-{sender}", world.tokens([int(user)]))
        return won

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(enroll, range(8)))
    assert sum(won) == world.aggregator.enrolled() == 6
    world.restart()
    assert [world.aggregator.enroll(f"client-{sender}", []) for sender in range(8)] == won


def test_one_of_many_senders_of_the_same_report_is_counted(world: Any) -> None:
    batch = world.packed([0, 1, 2])
    start = threading.Barrier(8)

    def send(_: int) -> int:
        start.wait()
        return world.aggregator.report("client-0", RUN, 0, batch).accepted  # type: ignore[no-any-return]

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(send, range(8))) == 3
    assert world.aggregator.status(RUN, 0).rejected == {"replayed": 21}


def test_while_one_round_is_released_another_takes_reports_and_all_who_wait_get_the_one_release(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    finish = threading.Event()
    stores = []
    honest = ReleaseLedger.store

    def slow(self: ReleaseLedger, run: str, round: int, content: bytes) -> str:
        stores.append(content)
        begun.set()
        assert finish.wait(HANG_S)
        return honest(self, run, round, content)

    monkeypatch.setattr(ReleaseLedger, "store", slow)
    world.open(1)
    world.send(EVERYBODY)
    with ThreadPoolExecutor(4) as pool:
        closing = pool.submit(world.aggregator.close, RUN, 0)
        assert begun.wait(HANG_S)
        assert world.aggregator.status(RUN, 0).phase is Phase.RELEASING
        assert world.aggregator.open_round(world.opening()).phase is Phase.RELEASING
        assert world.aggregator.close(RUN, 0).phase is Phase.RELEASING
        world.aggregator.tick()
        waiting = [pool.submit(world.aggregator.status, RUN, 0, wait_s=HANG_S) for _ in range(2)]
        world.send(EVERYBODY[:4], round=1)
        assert world.aggregator.status(RUN, 1).reported == 4
        finish.set()
        final = {done.result().release_sha256 for done in (closing, *waiting)}
    assert len(final) == len(stores) == 1
    assert len(world.aggregator.ledger.spends().charges) == 2


def test_who_waits_for_a_round_is_woken_when_the_last_user_has_reported(world: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(world.aggregator.status, RUN, 0, wait_s=HANG_S)
        world.send(EVERYBODY)
        assert waiting.result().phase is Phase.RELEASED


def test_waiting_is_over_when_its_time_is_and_the_round_still_open(world: Any) -> None:
    assert world.aggregator.status(RUN, 0, wait_s=0.01).phase is Phase.OPEN


def test_a_batch_checked_before_the_freeze_and_folded_after_it_is_late(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = opening_checks.check
    early = EVERYBODY[:6]

    def slow(*arguments: Any, **named: Any) -> opening_checks.CheckedBatch:
        checked = honest(*arguments, **named)
        world.clock.now_s += 60
        world.aggregator._close_if_due(world.aggregator._rounds[RUN, 0])
        return checked

    world.send(early)
    monkeypatch.setattr(opening_checks, "check", slow)
    late = world.aggregator.report("client-1", RUN, 0, world.packed([6, 7]))
    assert (late.accepted, late.rejected) == (0, {"round-closed": 2})
    world.aggregator.tick()
    sums = exact_sums(world.batch(early).reports, world.question().blocks)
    exact, _ = release(
        world.question(), sums, world.plan, Ledger(world.plan.guarantee), noise=Streams(world.seed)
    )
    assert world.aggregator.release(RUN, 0) == pack_release(exact)
