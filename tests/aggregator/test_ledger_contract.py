"""What a ledger keeps, in files and in PostgreSQL: the same claims of both. Then what PostgreSQL is
for: a holder that is lost, and one that only believes that it holds."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import OwnLedger, Phase, follow
from fedrec.privacy.calibration import Plan, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import SystemStreams
from fedrec_aggregator import postgres_ledger
from fedrec_aggregator.chain import ClockSet, link
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.main import run
from fedrec_aggregator.postgres_ledger import PostgresLedger, held_in
from fedrec_aggregator.settings import validated
from tests.aggregator import postgres
from tests.aggregator.conftest import World
from tests.aggregator.test_aggregator_ledger import Memory
from tests.waiting import until

RUN = "run-1"
EVERYBODY = list(range(12))
LONG_S = 600.0
SHORT_S = 0.5
_NAMES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.running() as conninfo:
        yield conninfo


@pytest.fixture
def plan() -> Plan:
    return calibrate(Guarantee(5.0, 1e-5), {"a": 1.0, "b": 1.0})


class LedgerContract:
    """`opened(name, **choices)` opens the ledger of that name: again is the same one."""

    opened: Callable[..., ReleaseLedger]

    def test_what_was_written_is_there_after_a_restart(self, plan: Plan) -> None:
        ledger = self.opened("a")
        ledger.enroll("client-0", [bytes([i]) * 16 for i in range(3)])
        ledger.keep_plan(RUN, plan)
        assert (ledger.begin(RUN, 0, "ab"), ledger.begin(RUN, 0, "cd")) == (1, 2)
        ledger.charge(RUN, 0, plan, ["a"])
        ledger.heed("client-0", OwnLedger(5, ("fourth", "fifth")))
        head = ledger.end()
        links = ledger._rows.chain.links
        ledger.close()
        ledger = self.opened("a")
        assert (ledger.end(), ledger._rows.chain.links) == (head, links)
        assert ledger.enrolled_by("client-0") == 3
        assert ledger.plan(RUN) == plan
        assert ledger.attempt(RUN, 0).attempt == 2  # type: ignore[union-attr]
        for put_back in (OwnLedger(4, ("fourth",)), OwnLedger(6, ("other", "sixth"))):
            with pytest.raises(RefusedError, match=r"it had 5|that it had"):
                ledger.heed("client-0", put_back)
        ledger.heed("client-0", OwnLedger(6, ("fifth", "sixth")))

    def test_a_release_is_charged_once_and_for_one_round(self, plan: Plan) -> None:
        ledger = self.opened("a")
        for _ in range(2):
            ledger.charge(RUN, 0, plan, ["a"])
        ledger.close()
        ledger = self.opened("a")
        ledger.charge(RUN, 0, plan, ["a", "b"])
        assert [charge.release for charge in ledger.spends().charges] == ["a", "b"]
        with pytest.raises(RefusedError, match="round 0"):
            ledger.charge(RUN, 1, plan, ["a"])

    def test_no_two_ledgers_share_a_head_and_growth_is_followed(self, plan: Plan) -> None:
        ledger = self.opened("a")
        other = self.opened("b")
        memory = Memory()
        assert ledger.head() != other.head()
        follow(ledger.growth, memory)
        ledger.charge(RUN, 0, plan, ["a", "b"])
        follow(ledger.growth, memory)
        assert memory.head == ledger.end()
        with pytest.raises(RefusedError, match="does not hold"):
            other.growth(memory.head)

    def test_an_entry_that_was_changed_is_damage(self, plan: Plan) -> None:
        ledger = self.opened("a")
        ledger.charge(RUN, 0, plan, ["a"])
        ledger._db.execute("UPDATE entries SET content = replace(content, '\"a\"', '\"b\"')")
        ledger.close()
        with pytest.raises(RunError, match="damaged"):
            self.opened("a")

    def test_an_entry_follows_the_one_that_is_there_or_is_not_written(self, plan: Plan) -> None:
        """Compare and append: another writer's entry is not written over."""
        ledger = self.opened("a")
        other = link(ClockSet(1.0, 2.0), time_s=3.0, after=ledger.end())
        row = (1, other.content, other.head)
        ledger._db.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
        with pytest.raises(RunError):
            ledger.charge(RUN, 0, plan, ["a"])
        assert ledger.head() == other.head  # it was read again
        ledger.charge(RUN, 0, plan, ["a"])
        assert [new.entry for new in ledger._rows.chain.links[1:2]] == [other.entry]

    def test_what_is_stored_leaves_when_it_is_published_and_stays(self, plan: Plan) -> None:
        world = self.world()
        world.enroll()
        world.open()
        ledger = world.aggregator.ledger
        ledger.store(RUN, 0, b"of an attempt that came to nothing")
        assert ledger.stored(RUN, 0) is not None
        assert ledger.content(RUN, 0) is None
        ledger.discard(RUN, 0)
        assert ledger.stored(RUN, 0) is None
        world.send(EVERYBODY)
        assert world.aggregator.close(RUN, 0).phase is Phase.RELEASED
        world.restart()
        assert world.aggregator.release(RUN, 0) == world.expected()
        with pytest.raises(RunError, match="published"):
            world.aggregator.ledger.discard(RUN, 0)

    def test_of_old_runs_the_newest_release_alone_is_kept(self) -> None:
        world = self.world()
        world.enroll()
        world.aggregator.ledger._runs_kept = 1
        for name in ("run-1", "run-2"):
            world.run = name
            for round in (0, 1):
                world.open(round)
                world.send(EVERYBODY, round)
                world.aggregator.close(name, round)
        world.restart()
        assert world.aggregator.release("run-1", 1)
        with pytest.raises(RefusedError, match="was removed"):
            world.aggregator.release("run-1", 0)

    def world(self) -> World:
        return World(Path("world"), kept_in=lambda folder, **kept: self.opened(folder.name, **kept))


class TestInFiles(LedgerContract):
    @pytest.fixture(autouse=True)
    def _open(self, tmp_path: Path) -> Iterator[None]:
        with ExitStack() as stack:

            def opened(name: str, **choices: Any) -> ReleaseLedger:
                ledger = ReleaseLedger(tmp_path / name, **({"limit": None} | choices))
                stack.callback(ledger.close)
                return ledger

            self.opened = opened
            yield


class PostgresOnly:
    """A schema of its own for each name; `number` is the process: each has a folder."""

    @pytest.fixture(autouse=True)
    def _open(self, server: str, tmp_path: Path) -> Iterator[None]:
        places: dict[str, str] = {}
        with ExitStack() as stack:

            def opened(name: str, *, number: int = 0, **choices: Any) -> PostgresLedger:
                if name not in places:
                    places[name] = postgres.schema_of_its_own(server, f"ledger_{next(_NAMES)}")
                chosen = {"limit": None, "lease_s": LONG_S} | choices
                ledger = PostgresLedger(tmp_path / f"{name}-{number}", places[name], **chosen)
                stack.callback(ledger.close)
                return ledger

            self.opened = opened
            self.places = places
            yield


class TestInPostgres(PostgresOnly, LedgerContract):
    pass


class TestStandby(PostgresOnly):
    def test_one_process_holds_it_and_the_next_takes_it_when_it_is_given_back(self) -> None:
        first = self.opened("a")
        with pytest.raises(RunError, match="another aggregator holds") as caught:
            self.opened("a", number=1)
        assert "standby" in caught.value.remedy
        first.close()
        assert self.opened("a", number=2).epoch == first.epoch + 1

    def test_a_standby_waits_for_the_lease_and_the_old_holders_writes_are_refused(
        self, plan: Plan
    ) -> None:
        old = self.opened("a", lease_s=SHORT_S)
        old.charge(RUN, 0, plan, ["a"])
        new = self.opened("a", number=1, standby=True)  # returns: the old one does not renew
        assert (new.epoch, new.head()) == (old.epoch + 1, old.head())
        for write in (
            lambda: old.charge(RUN, 0, plan, ["b"]),
            lambda: old.begin(RUN, 1, "ab"),
            lambda: old.store(RUN, 0, b"release"),
            lambda: old.enroll("client-0", [bytes(16)]),
            old.renew,
        ):
            with pytest.raises(RunError, match="took"):
                write()
        assert old.deposed
        assert not new.deposed
        old.close()  # gives nothing back that is another's
        new.charge(RUN, 0, plan, ["a", "b"])
        assert [charge.release for charge in new.spends().charges] == ["a", "b"]
        assert new.stored(RUN, 0) is None
        held = held_in(self.places["a"])
        assert (held.links, held.users, held.releases) == (new._rows.chain.links, {}, {})
        assert f"epoch {new.epoch}" in held.holder

    def test_who_renews_is_not_taken_over(self) -> None:
        first = self.opened("a", lease_s=SHORT_S)
        stop = threading.Event()
        ended = []
        first.lease_s = LONG_S
        first.renew()

        def wait() -> None:
            with pytest.raises(RunError, match="holds"):
                self.opened("a", number=1, standby=True, lease_s=SHORT_S, stop=stop)
            ended.append(True)

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: waiting_process(first), "the standby's connection")
        stop.set()
        waiting.join()
        assert ended
        first.renew()

    def test_a_holder_that_stopped_within_a_transaction_does_not_keep_its_successor_out(
        self, plan: Plan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_ledger, "PATIENCE_S", 1.0)
        old = self.opened("a", lease_s=SHORT_S)
        with pytest.raises(RunError), old._durably() as db:  # noqa: PT012 - what is within it
            db.execute("INSERT INTO runs VALUES ('half', '{}')")
            new = self.opened("a", number=1, standby=True, lease_s=SHORT_S)
        assert new.plan("half") is None
        new.charge(RUN, 0, plan, ["a"])

    @pytest.mark.parametrize("committed", [False, True])
    def test_a_connection_lost_around_a_commit_charges_once(
        self, plan: Plan, committed: bool
    ) -> None:
        ledger = self.opened("a")
        honest = ledger._db
        cut = []

        class Cut:
            """Loses the connection at the first COMMIT, before or after it is done."""

            def __getattr__(self, name: str) -> Any:
                return getattr(honest, name)

            def execute(self, statement: str, *values: Any) -> Any:
                if statement == "COMMIT" and not cut:
                    cut.append(True)
                    if committed:
                        honest.execute(statement)
                    honest.close()
                return honest.execute(statement, *values)

        ledger._db = Cut()
        with pytest.raises(RunError, match="cannot be written"):
            ledger.charge(RUN, 0, plan, ["a"])
        with pytest.raises(RunError, match="read again"):
            ledger.charge(RUN, 0, plan, ["a"])
        ledger.charge(RUN, 0, plan, ["a"])
        assert len(ledger.spends().charges) == 1
        assert len(held_in(self.places["a"]).links) == 2

    @pytest.mark.parametrize("step", ["charge", "store", "publish"])
    def test_an_aggregator_that_stops_at_a_step_is_followed_by_its_standby_with_one_release(
        self, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And when it wakes up, what it drew comes to nothing."""
        opened = iter(range(9))

        def kept_in(folder: Path, **kept: Any) -> ReleaseLedger:
            return self.opened("root", number=next(opened), standby=True, lease_s=SHORT_S, **kept)

        world = World(tmp_path / "aside", kept_in=kept_in).begun()
        old = world.aggregator
        old._noise = SystemStreams()  # a second drawing would differ
        honest = getattr(PostgresLedger, step)
        successors: list[Any] = []

        def stopped(ledger: Any, *arguments: Any, **named: Any) -> Any:
            if ledger is old.ledger and not successors:
                successors.append(world.start())  # the old one sleeps until its lease has run out
            return honest(ledger, *arguments, **named)

        monkeypatch.setattr(PostgresLedger, step, stopped)
        with pytest.raises(RunError, match="took"):
            world.send(EVERYBODY), old.close(RUN, 0)
        old.ledger.close()
        with pytest.raises(RefusedError):
            old.release(RUN, 0)
        assert successors == [world.aggregator]
        world.begun().send(EVERYBODY)
        world.check_release()
        assert [charge.release for charge in world.aggregator.ledger.spends().charges] == [
            "s/0",
            "m/0",
        ]
        world.stop()

    def test_a_process_that_was_taken_over_stops_and_its_standby_serves(
        self, tmp_path: Path
    ) -> None:
        """The two processes of a deployment, as threads."""
        self.opened("a").close()
        ready = list[str]()
        ended = list[str]()
        stop = threading.Event()

        def serve(name: str) -> None:
            table = {"conninfo": self.places["a"], "standby": name != "first", "lease_s": SHORT_S}
            content = {
                "listen": "127.0.0.1:0",
                "state": str(tmp_path / name),
                "insecure": True,
                "any_client": True,
                "privacy": {"max_epsilon": 5.0},
                "postgres": table,
            }
            try:
                run(validated(content), ready=lambda _: ready.append(name), stop=stop)
            except RunError as failure:
                ended.append(failure.cause)

        threads = [threading.Thread(target=serve, args=(name,)) for name in ("first", "second")]
        threads[0].start()
        until(lambda: ready == ["first"], "the first listens")
        threads[1].start()
        with importlib.import_module("psycopg").connect(self.places["a"], autocommit=True) as db:

            def taken() -> bool:
                db.execute("UPDATE holder SET until = '-infinity' WHERE epoch = 2")
                return ready == ["first", "second"]

            until(taken, "the second takes over")
        threads[0].join()
        assert ended == ["another aggregator took the ledger over"]
        stop.set()
        threads[1].join()
        assert len(ended) == 1


def waiting_process(ledger: PostgresLedger) -> bool:
    rows = ledger._db.execute(
        "SELECT 1 FROM pg_stat_activity WHERE starts_with(query, 'UPDATE holder SET epoch') "
        "AND pid <> pg_backend_pid()"
    )
    return bool(rows.fetchall())


def test_a_ledger_that_was_never_reached_is_said_clearly(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(RunError, match="PostgreSQL") as caught:
        PostgresLedger(tmp_path / "x", "host=/nowhere", limit=None)
    assert "Repair the database" in caught.value.remedy
