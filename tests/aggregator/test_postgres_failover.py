"""The database of an aggregator's ledger fails over to its standby in the middle of a round.

With a synchronous standby the round is released once, and charged once. A standby that was behind
has lost charges: whoever saw them refuses the ledger.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import Phase, follow
from fedrec_aggregator.postgres_ledger import PostgresLedger
from tests.aggregator import postgres
from tests.aggregator.conftest import World
from tests.aggregator.postgres import Postgres
from tests.aggregator.test_aggregator_ledger import Memory
from tests.waiting import until

EVERYBODY = list(range(12))


@pytest.fixture
def databases() -> Iterator[tuple[Postgres, Postgres]]:
    with postgres.replicated() as both:
        yield both


@pytest.fixture
def world(databases: tuple[Postgres, Postgres], tmp_path: Path) -> Iterator[World]:
    places = ",".join(str(each.folder) for each in databases)
    conninfo = f"host={places} user=fedrec dbname=postgres target_session_attrs=read-write"

    def kept_in(folder: Path, **choices: Any) -> PostgresLedger:
        return PostgresLedger(folder, conninfo, lease_s=600.0, **choices)

    world = World(tmp_path / "aside", kept_in=kept_in)
    yield world
    world.stop()


def said(database: Postgres, *statements: str) -> Any:
    """The rows of the last one."""
    psycopg = importlib.import_module("psycopg")
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        for statement in statements:
            answer = connection.execute(statement)
        return answer.fetchall()


def again(ask: Callable[[], Any], *, most: int = 3) -> Any:
    """As a caller asks again whom a failure was told; what goes on failing is raised."""
    for _ in range(most - 1):
        try:
            return ask()
        except (RunError, RefusedError):
            continue
    return ask()


@pytest.mark.parametrize("moment", ["open", "half", "reported"])
def test_a_failover_in_a_round_changes_no_byte_and_charges_once(
    databases: tuple[Postgres, Postgres], world: World, moment: str
) -> None:
    primary, standby = databases
    said(
        primary,
        "ALTER SYSTEM SET synchronous_standby_names = 'standby'",
        "SELECT pg_reload_conf()",
    )
    state = "SELECT sync_state FROM pg_stat_replication"
    until(lambda: said(primary, state) == [("sync",)], "the standby is synchronous")
    aggregator = world.aggregator
    memory = Memory()

    def fail_over(now: str) -> None:
        if now == moment:
            primary.kill()
            standby.promote()

    again(world.enroll)
    for round in range(2):
        again(lambda round=round: world.open(round))  # type: ignore[misc]
        if round:
            fail_over("open")
        world.send(EVERYBODY[:6], round)
        if round:
            fail_over("half")
        world.send(EVERYBODY[6:], round)
        if round:
            fail_over("reported")
        closed = again(lambda round=round: aggregator.close(world.run, round))  # type: ignore[misc]
        assert closed.phase is Phase.RELEASED
        assert aggregator.release(world.run, round) == world.expected(world.question(round))
        follow(aggregator.growth, memory)
    assert [charge.release for charge in aggregator.ledger.spends().charges] == [
        "s/0",
        "m/0",
        "s/1",
        "m/1",
    ]
    assert said(standby, "SELECT pg_is_in_recovery()") == [(False,)]
    world.restart()
    assert world.aggregator.release(world.run, 1) == world.expected(world.question(1))
    follow(world.aggregator.growth, memory)


def test_a_standby_that_was_behind_is_refused_by_whoever_saw_what_it_lost(
    databases: tuple[Postgres, Postgres], world: World
) -> None:
    primary, standby = databases
    behind = "SELECT pg_current_wal_lsn() <> replay_lsn FROM pg_stat_replication"
    world.enroll()
    world.open()
    until(lambda: said(primary, behind) == [(False,)], "the standby has all of it")
    standby.kill()
    world.send(EVERYBODY)
    assert world.aggregator.close(world.run, 0).phase is Phase.RELEASED
    memory = Memory()
    follow(world.aggregator.growth, memory)
    seen = memory.head
    primary.kill()
    standby.start()
    standby.promote()
    with pytest.raises(RunError, match="cannot be written"):
        world.aggregator.ledger.renew()
    with pytest.raises(RunError, match="read again"):
        world.aggregator.ledger.renew()
    world.aggregator.ledger.renew()
    assert not world.aggregator.ledger.spends().charges
    with pytest.raises(RefusedError) as refused:
        follow(world.aggregator.growth, memory)
    assert refused.value.code == "stale-ledger"
    assert memory.head == seen
