"""PostgreSQL goes away and comes back: whoever needs it waits, with the cause, and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import FedRecError, ProtocolError, RunError
from fedrec.federation.protocol import Phase
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, RemoteReportEndpoint, Retry
from fedrec.transport.channel import Access
from fedrec_aggregator import postgres_ledger
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.main import run
from fedrec_aggregator.postgres_ledger import LedgerAwayError, PostgresLedger, held_in
from fedrec_aggregator.settings import validated
from tests.aggregator import postgres
from tests.aggregator.postgres import Postgres
from tests.aggregator_service.conftest import Task
from tests.waiting import HANG_S, until

USERS = list(range(6))


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    monkeypatch.setattr(postgres_ledger, "_PAUSE_S", 0.05)
    with postgres.started() as primary:
        yield primary


@contextmanager
def in_thread(work: Any) -> Iterator[list[Any]]:
    """What `work` returned or raised, once it has; it has ended after the block."""
    done = list[Any]()

    def carry_out() -> None:
        try:
            done.append(work())
        except FedRecError as failure:
            done.append(failure)

    thread = threading.Thread(target=carry_out)
    thread.start()
    try:
        yield done
    finally:
        thread.join(HANG_S)


def test_a_start_and_a_standby_wait_for_a_database_that_is_away(
    database: Postgres, tmp_path: Path
) -> None:
    log = logs.configure("aggregator", file=tmp_path / "log")
    stop = threading.Event()

    def opened(name: str, **choices: Any) -> PostgresLedger:
        chosen = {"limit": None, "lease_s": 600.0, "stop": stop} | choices
        return PostgresLedger(tmp_path / name, database.conninfo, **chosen)

    database.kill()
    with pytest.raises(LedgerAwayError, match="cannot be used") as caught:
        opened("impatient", stop=None)
    assert "Repair the database" in caught.value.remedy
    with in_thread(lambda: opened("active")) as started:
        until(lambda: "database-away" in (tmp_path / "log").read_text(), "it says so")
        database.start()
    [active] = started
    with ExitStack() as stack:
        stack.callback(stop.set)
        taken_over = stack.enter_context(in_thread(lambda: opened("standby", standby=True)))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(query, 'UPDATE holder SET epoch')"
        until(lambda: active._db.execute(waiting).fetchone()[0], "the standby asks")
        database.kill()
        until(lambda: (tmp_path / "log").read_text().count("database-away") == 2, "it waits")
        assert not taken_over
        database.start()
        for _ in range(3):  # lost, read again, held
            with suppress(LedgerAwayError):
                active.renew()
        active.close()
        until(lambda: taken_over, "the standby takes over")
    [standby] = taken_over
    assert (standby.epoch, standby.head()) == (active.epoch + 1, active.head())
    standby.close()
    logs.close(log)
    said = (tmp_path / "log").read_text()
    assert "damaged" not in said
    assert "is out of reach" in said


@pytest.mark.parametrize("moment", ["opened", "reported"])
def test_server_and_clients_wait_in_mid_round_and_the_round_is_charged_once(
    database: Postgres, tmp_path: Path, moment: str
) -> None:
    task = Task()
    content = {
        "listen": "127.0.0.1:0",
        "state": str(tmp_path / "state"),
        "log": str(tmp_path / "log"),
        "insecure": True,
        "any_client": True,
        "privacy": {"max_epsilon": 50.0},
        "limits": {"min_cohort": 2},
        "postgres": {"conninfo": database.conninfo, "lease_s": 1.0},
    }
    stop = threading.Event()
    ready = list[Address]()
    told = list[ProtocolError]()
    with ExitStack() as stack:
        stack.enter_context(
            in_thread(lambda: run(validated(content), ready=ready.append, stop=stop))
        )
        stack.callback(stop.set)
        until(lambda: ready, "the aggregator listens")
        retry = Retry(patience_s=HANG_S, longest_pause_s=0.2, tell=told.append)
        access = lambda name: Access(str(ready[0]), name=name, insecure=True)  # noqa: E731
        server = stack.enter_context(RemoteReleaseEndpoint(access("server"), retry=retry))
        client = stack.enter_context(RemoteReportEndpoint(access("hospital"), retry=retry))
        client.enroll(task.tokens(USERS))
        server.open_run(task.run, task.plan)
        server.open_round(task.opening())
        if moment == "opened":
            database.kill()
            with in_thread(lambda: client.enroll(task.tokens([*USERS, 9]))) as enrolled:
                until(lambda: told, "the client waits")
                database.start()
            assert enrolled == [7]
        assert client.report(task.run, 0, task.batch(USERS[:5])).accepted == 5
        if moment == "reported":
            database.kill()
        with in_thread(lambda: server.close(task.run, 0)) as closed:
            if moment == "reported":
                until(lambda: told, "the server waits")
                database.start()
        assert [status.phase for status in closed] == [Phase.RELEASED]
        assert server.release(task.run, 0)
    assert all("ledger in PostgreSQL" in failure.cause for failure in told)
    assert "damaged" not in (tmp_path / "log").read_text()
    charged = [link.entry for link in held_in(database.conninfo).links]
    assert [type(entry).__name__ for entry in charged] == ["Birth", "Charge", "RoundReleased"]


def test_damage_is_said_of_damage_alone(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(opened: Any) -> str:
        with pytest.raises(RunError) as caught:
            opened()
        return f"{caught.value.cause} {caught.value.remedy}"

    folder = tmp_path / "files"
    ReleaseLedger(folder, limit=None).close()
    for conninfo in (f"{database.conninfo} options=-cx=y", "host=/nowhere"):
        assert "cannot be used" in said(
            lambda where=conninfo: PostgresLedger(folder, where, limit=None)
        )
    database.kill()
    with pytest.raises(RunError) as caught:
        held_in(database.conninfo)
    assert "backup" not in caught.value.remedy
    with monkeypatch.context() as patched:
        patched.setattr(ReleaseLedger, "_prepare", lambda ledger: ledger._db.execute("NONSENSE"))
        assert "backup" not in said(lambda: ReleaseLedger(folder, limit=None))
    (folder / "ledger.sqlite").write_bytes(b"no database, and long enough to be looked at" * 100)
    assert "is damaged" in said(lambda: ReleaseLedger(folder, limit=None))
