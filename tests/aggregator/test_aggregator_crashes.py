"""A crash before and after each durable step, and a disk that fails at each: one release, one
charge, the same bytes."""

import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from fedrec.errors import RefusedError, RunError
from fedrec.federation.protocol import Phase
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams
from fedrec_aggregator import ledger as ledger_module
from fedrec_aggregator.ledger import ReleaseLedger

EVERYBODY = list(range(12))
RUN = "run-1"
STEPS = ("charge", "store", "publish")


class Crash(BaseException):
    """The process ends here; no `except Exception` may see it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool) -> None:
    honest = getattr(ReleaseLedger, step)

    def crashing(*arguments: Any, **named: Any) -> Any:
        if after:
            honest(*arguments, **named)
        raise Crash

    monkeypatch.setattr(ReleaseLedger, step, crashing)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_around_a_durable_step_ends_in_the_same_release_and_one_charge(
    world: Any, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    world.send(EVERYBODY)
    with monkeypatch.context() as patched:
        crash_at(patched, step, after=after)
        with pytest.raises(Crash):
            world.aggregator.close(RUN, 0)
    world.restart()
    published = (step, after) == ("publish", True)
    charged = (step, after) != ("charge", False)
    assert len(world.aggregator.ledger.spends().charges) == (2 if charged else 0)
    assert (world.aggregator.ledger.released(RUN, 0) is not None) == published
    status = world.aggregator.open_round(world.opening())
    assert (status.phase, status.attempt) == ((Phase.RELEASED, 1) if published else (Phase.OPEN, 2))
    if not published:
        with pytest.raises(RefusedError):
            world.aggregator.release(RUN, 0)
        world.send(EVERYBODY)
    world.check_release()
    assert [charge.release for charge in world.aggregator.ledger.spends().charges] == ["s/0", "m/0"]


@pytest.mark.parametrize("step", ["enroll", "keep_plan", "begin"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_around_an_enrolment_or_an_opening_is_mended_by_asking_again(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    world = make()

    def begin() -> None:
        world.enroll()
        world.open()

    with monkeypatch.context() as patched:
        crash_at(patched, step, after=after)
        with pytest.raises(Crash):
            begin()
    world.restart()
    begin()
    world.send(EVERYBODY)
    world.check_release()


def test_a_release_is_written_over_by_a_later_attempt_only_while_nobody_could_have_seen_it(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt's cohort differs from the second's, so its bytes do too; only the second
    ever leaves."""
    world.send(EVERYBODY[:6])
    with monkeypatch.context() as patched:
        crash_at(patched, "store", after=True)
        with pytest.raises(Crash):
            world.aggregator.close(RUN, 0)
    unseen = next(world.folder.rglob("round-000.safetensors")).read_bytes()
    world.restart()
    world.aggregator.open_round(world.opening())
    world.send(EVERYBODY)
    world.aggregator.close(RUN, 0)
    assert world.aggregator.release(RUN, 0) == world.expected() != unseen


@pytest.mark.parametrize("by_tick", [False, True])
def test_a_full_disk_is_said_clearly_and_the_round_is_released_when_there_is_room(
    world: Any, monkeypatch: pytest.MonkeyPatch, by_tick: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: object, content: bytes, **_how: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.send(EVERYBODY)
    with monkeypatch.context() as patched:
        patched.setattr(ledger_module, "write_bytes", full)
        if by_tick:
            world.aggregator.tick()
            world.aggregator.tick()
            assert [
                "No space left" in vars(record)["fields"]["cause"] for record in caplog.records
            ] == [True]
        with pytest.raises(RunError, match="No space left") as caught:
            world.aggregator.close(RUN, 0)
        assert "disk space" in caught.value.remedy
        assert world.aggregator.ledger.released(RUN, 0) is None
    assert world.aggregator.status(RUN, 0).phase is Phase.RELEASED
    assert world.aggregator.release(RUN, 0) == world.expected()
    assert len(world.aggregator.ledger.spends().charges) == 2


def test_a_ledger_that_cannot_be_written_charges_nothing_and_goes_on_when_it_can(
    world: Any,
) -> None:
    world.send(EVERYBODY)
    database = world.aggregator.ledger._db
    database.execute("PRAGMA query_only = ON")
    with pytest.raises(RunError, match=r"ledger\.sqlite cannot be written"):
        world.aggregator.close(RUN, 0)
    with pytest.raises(RunError):
        world.aggregator.enroll("client-0", world.tokens([99]))
    assert world.aggregator.ledger.spends().charges == ()
    assert world.aggregator.enrolled() == 12
    database.execute("PRAGMA query_only = OFF")
    world.check_release()


@pytest.mark.parametrize("commit", [1, 2], ids=["charge", "publish"])
def test_a_commit_that_fails_after_it_reached_the_disk_is_not_done_twice(
    world: Any, commit: int
) -> None:
    ledger = world.aggregator.ledger
    world.aggregator._noise = SystemStreams()  # a second draw would differ

    class Doubtful:
        """A database whose n-th COMMIT is durable but reported as failed."""

        def __init__(self, real: Any) -> None:
            self.real = real
            self.commits = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def execute(self, statement: str, *values: Any) -> Any:
            result = self.real.execute(statement, *values)
            self.commits += statement == "COMMIT"
            if statement == "COMMIT" and self.commits == commit:
                raise sqlite3.OperationalError("disk I/O error")
            return result

    world.send(EVERYBODY)
    ledger._db = Doubtful(ledger._db)
    with pytest.raises(RunError, match="I/O error"):
        world.aggregator.close(RUN, 0)
    published = ledger.released(RUN, 0)
    assert (published is not None) == (commit == 2)
    status = world.aggregator.close(RUN, 0)
    assert status.phase is Phase.RELEASED
    assert published is None or published == status
    assert len(ledger.spends().charges) == 2
    assert world.aggregator.release(RUN, 0)
    world.restart()
    assert world.aggregator.status(RUN, 0) == status


def test_a_round_charged_before_a_crash_is_collected_again_where_the_limit_has_nothing_left(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(limit=Guarantee(5.0, 1e-5))
    world.enroll()
    for round in range(2):
        world.open(round)
        world.send(EVERYBODY, round)
        world.aggregator.tick()
    world.open(2)
    world.send(EVERYBODY, 2)
    with monkeypatch.context() as patched:
        crash_at(patched, "charge", after=True)
        with pytest.raises(Crash):
            world.aggregator.tick()
    world.restart()
    assert world.aggregator.ledger.spends().left == pytest.approx(0, abs=1e-6)
    world.open(2)
    world.send(EVERYBODY, 2)
    assert world.aggregator.close(RUN, 2).phase is Phase.RELEASED
    assert len(world.aggregator.ledger.spends().charges) == 6


def test_no_memory_for_the_noise_is_said_clearly_and_the_round_waits(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*arguments: Any, **named: Any) -> Any:
        raise MemoryError

    world.send(EVERYBODY)
    with monkeypatch.context() as patched:
        patched.setattr("fedrec_aggregator.core.release", exhausted)
        with pytest.raises(RunError, match="no memory"):
            world.aggregator.close(RUN, 0)
    world.check_release()


def test_sums_that_broke_half_way_are_never_released(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(*arguments: Any, **named: Any) -> None:
        raise MemoryError

    world.send(EVERYBODY[:6])
    with monkeypatch.context() as patched:
        patched.setattr("fedrec.federation.reports._add_block", breaking)
        assert world.aggregator.report("client-1", RUN, 0, world.packed([6, 7])).rejected == {
            "busy": 2
        }
    assert world.aggregator.close(RUN, 0).phase is Phase.SHORT
    assert world.aggregator.open_round(world.opening()).attempt == 2
    world.send(EVERYBODY)
    world.check_release()


def test_noise_is_drawn_only_after_the_charge_is_durable(world: Any) -> None:
    charged = list[int]()

    class Watching(Streams):
        def key(self, name: str, *, round: int = 0) -> bytes:
            with closing(
                sqlite3.connect(f"file:{world.folder / 'ledger.sqlite'}?mode=ro", uri=True)
            ) as database:
                charged.append(
                    database.execute(
                        "SELECT count(*) FROM entries WHERE content LIKE '%\"charge\"%'"
                    ).fetchone()[0]
                )
            return super().key(name, round=round)

    world.aggregator._noise = Watching(world.seed)
    world.send(EVERYBODY)
    world.aggregator.tick()
    assert charged == [2, 2, 2]
