"""The rules of one of three aggregators over its ledger on disk: crashes around and within every
durable step, and damaged files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec import storage
from fedrec.errors import BudgetExceededError, ProtocolError, RefusedError, RunError
from fedrec.privacy.calibration import Plan
from fedrec.privacy.guarantee import Guarantee
from fedrec.sharing.protocol import KeptOutput
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.outputs import OutputStore
from tests.sharing.test_one_of_three import finish, opened, script, send
from tests.sharing.three_worlds import DIGEST, PLAN, QUESTION, RUN, USERS, CrashError, World

OUTPUT = KeptOutput(1, b"t" * 32, b"a" * 32, 3, b"the output")


class CrashingLedger(ReleaseLedger):
    """`at` counts durable steps down to a crash, before or after the step."""

    at, after = -1, False

    def _step(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.at -= 1
        if self.at == 0 and not self.after:
            raise CrashError
        done = getattr(super(), name)(*arguments, **named)
        if self.at == 0:
            raise CrashError
        return done

    def begin(self, *arguments: Any, **named: Any) -> int:
        return int(self._step("begin", *arguments, **named))

    def charge(self, *arguments: Any, **named: Any) -> None:
        self._step("charge", *arguments, **named)

    def store(self, *arguments: Any, **named: Any) -> str:
        return str(self._step("store", *arguments, **named))

    def discard(self, *arguments: Any, **named: Any) -> None:
        self._step("discard", *arguments, **named)

    def publish(self, *arguments: Any, **named: Any) -> None:
        self._step("publish", *arguments, **named)


class OnDisk:
    """What `World` asks of a disk, of a ledger in a folder."""

    def __init__(self, folder: Path, limit: Guarantee | None = None) -> None:
        self.folder, self.limit = folder, limit
        self.open()

    def open(self) -> None:
        self.ledger = CrashingLedger(self.folder, limit=self.limit)
        self.store = OutputStore(self.ledger)

    def restart(self) -> None:
        self.ledger.close()
        self.open()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    @property
    def at(self) -> int:
        return self.ledger.at

    @at.setter
    def at(self, steps: int) -> None:
        self.ledger.at = steps

    @property
    def after(self) -> bool:
        return self.ledger.after

    @after.setter
    def after(self, after: bool) -> None:
        self.ledger.after = after

    @property
    def begun(self) -> int:
        return self.store.attempt(RUN, 1)

    @property
    def charged(self) -> int:
        return len(self.ledger.spends().charges)

    @property
    def output(self) -> KeptOutput | None:
        return self.store.kept(RUN, 1)

    @property
    def is_published(self) -> bool:
        return self.store.published(RUN, 1)


Worlds = Callable[..., World]


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    """Makes worlds whose aggregators keep what they must in folders."""
    made = list[World]()

    class DiskWorld(World):
        def __init__(
            self, rng: np.random.Generator, *, loss: float = 0.0, plan: Plan = PLAN
        ) -> None:
            super().__init__(rng, loss=loss, plan=plan)
            self.disks = [OnDisk(tmp_path / str(len(made)) / str(i)) for i in range(3)]  # type: ignore[misc]
            self.parties = [self.party(i) for i in range(3)]
            made.append(self)

        def restart(self, i: int) -> None:
            self.disks[i].restart()  # type: ignore[attr-defined]
            super().restart(i)

    yield DiskWorld
    for world in made:
        for disk in world.disks:
            disk.ledger.close()  # type: ignore[attr-defined]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[OnDisk]:
    found = OnDisk(tmp_path)
    yield found
    found.ledger.close()


@pytest.mark.parametrize("seed", range(8))
def test_however_messages_and_crashes_fall_no_output_on_disk_is_of_other_users_or_a_second_one(
    worlds: Worlds, seed: int
) -> None:
    world = script(seed, worlds)  # type: ignore[arg-type]
    assert all(disk.charged <= 1 for disk in world.disks)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 5), ids=["begin", "charge", "store", "publish"])
def test_a_crash_around_a_durable_step_ends_in_one_output_and_one_charge(
    worlds: Worlds, step: int, after: bool
) -> None:
    world = worlds(np.random.default_rng(1))
    world.disks[1].at, world.disks[1].after = step, after
    attempt = 0
    while not all(world.left):
        attempt += 1
        assert attempt < 4
        if all(world.open(i, attempt) for i in range(3)):
            for i in range(3):
                world.advance(i)
            (found,) = set(world.tickets())
            for user in range(USERS):
                send(world, user, found)
            finish(world)
    for i in range(3):
        world.restart(i)
    world.fetch()
    world.check()
    assert [disk.charged for disk in world.disks] == [1, 1, 1]


def test_a_charge_is_on_disk_before_an_output_is(worlds: Worlds) -> None:
    world = worlds(np.random.default_rng(1))
    found = opened(world)
    send(world, 0, found)
    world.disks[0].at, world.disks[0].after = 1, True
    finish(world)
    assert world.disks[0].charged == 1
    assert world.disks[0].output is None
    assert not world.left[0]


def test_a_round_over_the_operators_limit_leaves_nothing(tmp_path: Path) -> None:
    disk = OnDisk(tmp_path, limit=Guarantee(1.0, 1e-5))
    with pytest.raises(BudgetExceededError):
        disk.charge(RUN, QUESTION, PLAN)
    assert disk.charged == 0
    disk.ledger.close()


@pytest.mark.parametrize(
    "moment", ["before it is written", "before it is moved", "after it is moved"]
)
def test_a_crash_while_a_file_is_replaced_leaves_the_old_output_or_the_new_one(
    disk: OnDisk, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    disk.begin(RUN, 1, 1, DIGEST)
    disk.keep(RUN, 1, OUTPUT)
    new = KeptOutput(2, b"u" * 32, b"b" * 32, 4, b"another output")
    disk.begin(RUN, 1, 2, DIGEST)
    with monkeypatch.context() as patched:
        honest = storage.os.replace

        def crash(*arguments: Any) -> None:
            if moment == "after it is moved":
                honest(*arguments)
            raise CrashError

        patched.setattr(
            storage.os, "fsync" if moment == "before it is written" else "replace", crash
        )
        with pytest.raises(CrashError):
            disk.keep(RUN, 1, new)
    expected = new if moment == "after it is moved" else OUTPUT
    assert disk.kept(RUN, 1) == expected
    disk.restart()
    assert disk.kept(RUN, 1) == expected
    assert not disk.published(RUN, 1)


def test_what_is_published_stays_as_it_is(disk: OnDisk) -> None:
    disk.begin(RUN, 1, 1, DIGEST)
    with pytest.raises(RunError, match="no output"):
        disk.publish(RUN, 1)
    disk.keep(RUN, 1, OUTPUT)
    disk.publish(RUN, 1)
    disk.publish(RUN, 1)
    disk.restart()
    head = disk.ledger.head()
    disk.publish(RUN, 1)
    assert disk.ledger.head() == head
    for change in (lambda: disk.keep(RUN, 1, OUTPUT), lambda: disk.abandon(RUN, 1)):
        with pytest.raises(RunError, match="published"):
            change()
    with pytest.raises(RefusedError, match="is over"):
        disk.begin(RUN, 1, 2, DIGEST)
    status = disk.ledger.released(RUN, 1)
    assert status is not None
    assert (status.attempt, status.reported, status.digest) == (1, 3, DIGEST.hex())
    assert disk.kept(RUN, 1) == OUTPUT


def test_an_attempt_is_begun_once_for_one_question_over_restarts(disk: OnDisk) -> None:
    disk.begin(RUN, 1, 2, DIGEST)
    disk.restart()
    for attempt in (1, 2):
        with pytest.raises(RefusedError, match="is over"):
            disk.begin(RUN, 1, attempt, DIGEST)
    with pytest.raises(RefusedError, match="another question"):
        disk.begin(RUN, 1, 3, bytes(32))
    assert disk.attempt(RUN, 1) == 2


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "other"])
def test_a_damaged_output_is_an_error_and_no_reason_to_begin_anew(
    disk: OnDisk, published: bool, damage: str
) -> None:
    disk.begin(RUN, 1, 1, DIGEST)
    disk.keep(RUN, 1, OUTPUT)
    if published:
        disk.publish(RUN, 1)
    (path,) = (disk.folder / "releases").rglob("*.safetensors")
    content = path.read_bytes()
    path.write_bytes(
        {
            "a bit": content[:-1] + b"!",
            "cut": content[:-3],
            "empty": b"",
            "other": b"x" * len(content),
        }[damage]
    )
    disk.restart()
    with pytest.raises(RunError):
        disk.kept(RUN, 1)


def test_a_published_output_that_is_lost_is_an_error_and_one_that_was_not_is_none(
    disk: OnDisk,
) -> None:
    disk.begin(RUN, 1, 1, DIGEST)
    disk.keep(RUN, 1, OUTPUT)
    disk.abandon(RUN, 1)
    disk.abandon(RUN, 1)
    disk.restart()
    assert disk.kept(RUN, 1) is None
    disk.keep(RUN, 1, OUTPUT)
    disk.publish(RUN, 1)
    (path,) = (disk.folder / "releases").rglob("*.safetensors")
    path.unlink()
    disk.restart()
    with pytest.raises(RunError, match="cannot be read"):
        disk.kept(RUN, 1)
    assert disk.published(RUN, 1)


def test_a_round_begun_with_another_question_gives_up_nothing_that_was_published(
    worlds: Worlds,
) -> None:
    world = worlds(np.random.default_rng(1))
    found = opened(world)
    send(world, 0, found)
    finish(world)
    with pytest.raises(ProtocolError, match="published"):
        world.parties[0].open(RUN, QUESTION, PLAN, bytes(32), attempt=2, needed=1)
    world.fetch()
    world.check()
