"""What a simulated party stands on: a clock that may jump, a disk that may be full, and a process
that may end at any step.

The code of the parties is the real one. Two things under it are replaced for as long as a
simulation runs: the calls by which `fedrec.storage` makes a file durable, and the commits of the
ledgers' databases.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrec import storage
from fedrec.randomness import Streams
from tests.simulation.script import Kind, Operation, Script


class Crash(BaseException):
    """The process of `party` ends here; no `except Exception` of a party may see it."""

    def __init__(self, party: str) -> None:
        super().__init__(party)
        self.party = party


class Fate:
    """Hands out a script's operations where and when they are due.

    `taken` counts messages by way and steps by party."""

    def __init__(self, script: Script) -> None:
        self.taken = Counter[str]()
        self.struck = list[Operation]()
        self._due = defaultdict[tuple[str, int], list[Operation]](list)
        for operation in script.operations:
            self._due[operation.where, operation.at].append(operation)

    def next(self, where: str) -> list[Operation]:
        """What strikes the next message or step there."""
        due = self._due.get((where, self.taken[where]), [])
        self.taken[where] += 1
        self.struck += due
        return due


@dataclass
class Clock:
    """Seconds since 1970 that pass only when somebody waits; `passed` is told.

    `offsets_s`: how wrong each party's clock is."""

    now_s: float = 1_700_000_000.0
    offsets_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    passed: Callable[[], None] = lambda: None

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        self.passed()

    def beat(self, seconds: float) -> None:
        """Let time pass by steps of some size, for whoever looks again and again."""
        self.wait(max(seconds, 0.5))

    def of(self, party: str) -> Callable[[], float]:
        """That party's clock."""
        return lambda: self.now_s + self.offsets_s[party]


@dataclass
class Machine:
    """One party's computer.

    `missed`: messages to come that find nobody. `full`, `doubtful`: writes to come that fail.
    `gone`: for good."""

    party: str
    fate: Fate
    clock: Clock
    missed: int = 0
    full: int = 0
    doubtful: int = 0
    gone: bool = False

    def step(self) -> None:
        """A moment at which something may happen to this party.

        Raises Crash where its process ends."""
        ends = False
        for operation in self.fate.next(self.party):
            match operation.kind:
                case Kind.JUMP:
                    self.clock.offsets_s[self.party] += operation.amount
                case Kind.FULL:
                    self.full += int(operation.amount)
                case Kind.DOUBT:
                    self.doubtful += 1
                case Kind.CRASH:
                    ends = True
                    self.missed = int(operation.amount)
                case Kind.LEAVE:
                    ends = self.gone = True
        if ends:
            raise Crash(self.party)

    @contextmanager
    def durable(self) -> Iterator[None]:
        """Around a write: a step before it, and one after it is on disk.

        Raises OSError where the disk fails."""
        self.step()
        if self.full:
            self.full -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield
        self.step()
        if self.doubtful:
            self.doubtful -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def repair(self) -> None:
        """What an operator does: room on the disk, the right time, the process running."""
        self.missed = self.full = self.doubtful = 0
        self.clock.offsets_s[self.party] = 0


class Database:
    """A connection whose commits are durable writes of a machine."""

    def __init__(self, real: sqlite3.Connection, machine: Machine) -> None:
        self._real = real
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, statement: str, *values: Any) -> Any:
        """As the connection's."""
        if statement == "COMMIT":
            return self._durably(lambda: self._real.execute(statement))
        return self._real.execute(statement, *values)

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: Any
    ) -> None:
        if kind is None:
            self._durably(self._real.commit)
        else:
            self._real.rollback()

    def _durably(self, commit: Callable[[], Any]) -> Any:
        try:
            with self._machine.durable():
                return commit()
        except OSError as failure:
            self._real.rollback()
            raise sqlite3.OperationalError(str(failure)) from None
        except BaseException:
            self._real.rollback()
            raise


class _System:
    """`os` as `fedrec.storage` sees it.

    Nothing is synced: processes end in a simulation, the machine below does not."""

    def __init__(self, machine_of: Callable[[Path], Machine]) -> None:
        self._machine_of = machine_of

    def __getattr__(self, name: str) -> Any:
        if name == "O_DIRECTORY":
            raise AttributeError(name)
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        pass

    def replace(self, source: Path, target: Path) -> None:
        with self._machine_of(target).durable():
            os.replace(source, target)


@contextmanager
def simulated_system(machine_of: Callable[[Path], Machine]) -> Iterator[None]:
    """Every file that `fedrec.storage` writes is written by the machine that its path belongs to,
    and random bytes that our code draws are the same in each simulation.

    Other packages draw some once a process (`uuid4`), so that the first simulation alone would
    lose those."""
    disks = vars(storage)["os"]
    real = os.urandom
    simulated = Streams(0).numpy("system").bytes

    def drawn(size: int) -> bytes:
        by = str(sys._getframe(1).f_globals["__name__"])
        return simulated(size) if by.startswith("fedrec") else real(size)

    vars(storage)["os"] = _System(machine_of)
    os.urandom = drawn
    try:
        yield
    finally:
        vars(storage)["os"] = disks
        os.urandom = real
