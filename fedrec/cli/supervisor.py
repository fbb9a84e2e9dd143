"""Processes that one person runs together: started, watched, started again when they die, stopped
at the end.

Every party of a run may be killed at any moment and goes on from its folder, so a death is answered
with a new start, a few times. A party that gives up with an explanation (exit codes 2 to 6) is not:
it would say the same again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedrec.errors import RunError
from fedrec.operations import parent_death

Found = TypeVar("Found")

_EXPLAINED = range(2, 7)
_LAST_BYTES = 16_384  # of a log, in which a party that ended says why
_MOST_BYTES = 64 * 2**30
"""Of each party. One that wants more is broken; the machine is shared."""


@dataclass
class _Child:
    """One party: its verb, its log, whether it ends by itself when all is done, and the process
    that plays it now."""

    verb: Sequence[str]
    log: Path
    ends: bool
    process: subprocess.Popen[bytes]
    starts: int = 1


class Supervisor:
    """The parties of one run, by name.

    Stop them with `stop`, whatever happened. Times in seconds."""

    def __init__(
        self, *, most_starts: int = 4, grace_s: float = 25.0, pause_s: float = 0.05
    ) -> None:
        self._most_starts = most_starts
        self._grace_s = grace_s
        self._pause_s = pause_s
        self._children = dict[str, _Child]()

    def start(self, name: str, verb: Sequence[str], *, log: Path, ends: bool = False) -> None:
        """Start `fedrec <verb>`; what it says on both outputs is appended to `log`.

        `ends`: it may end well by itself."""
        self._children[name] = _Child(verb, log, ends, _started(verb, log))

    def pid(self, name: str) -> int:
        """Id of the process that plays a party now."""
        return self._children[name].process.pid

    def has_finished(self, name: str) -> bool:
        """Whether a party ended well: with exit code 0."""
        return self._children[name].process.poll() == 0

    def logs(self) -> list[tuple[str, Path]]:
        """Each party and its log, in the order of their starts."""
        return [(name, child.log) for name, child in self._children.items()]

    def look(self) -> None:
        """Start again who died.

        Raises RunError where one gave up, or died too often; its last words are the cause."""
        for name, child in self._children.items():
            status = child.process.poll()
            if status is None or (status == 0 and child.ends):
                continue
            if self.gives_up(name, status) or child.starts >= self._most_starts:
                raise RunError(
                    f"the {name} {_ending(status)}: {_last_words(child.log)}",
                    f"Read {child.log}; --resume goes on from here.",
                )
            child.process = _started(child.verb, child.log)
            child.starts = child.starts + 1

    def gives_up(self, name: str, status: int) -> bool:
        """Whether this exit code says that another start would end in the same way."""
        return status in _EXPLAINED

    @property
    def restarts(self) -> int:
        """Restarts of all parties together."""
        return sum(child.starts - 1 for child in self._children.values())

    def wait_for(self, found: Callable[[], Found | None], *, what: str, timeout_s: float) -> Found:
        """What `found` returns once it is something.

        Raises RunError when it takes too long, and what `look` raises."""
        deadline = time.monotonic() + timeout_s
        while (there := found()) is None:
            self.look()
            if time.monotonic() > deadline:
                logs = sorted({str(child.log.parent) for child in self._children.values()})
                raise RunError(
                    f"after {timeout_s:g} s there is still no {what}",
                    f"Read the logs in {', '.join(logs)}.",
                )
            self.rest()
        return there

    def rest(self) -> None:
        """Let the others work for a moment."""
        # what children write tells nobody that it changed, so it is looked at again
        time.sleep(self._pause_s)

    def stop(self) -> None:
        """Ask all to end, newest first, then kill whoever is left, with its own children."""
        ending = list(reversed(self._children.values()))
        for child in ending:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + self._grace_s
        for child in ending:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()


def _started(verb: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C reaches the parent alone, which then stops all in order;
    after kill -9 the kernel does."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = parent_death.command(
        [sys.executable, "-m", "fedrec.cli", *verb], max_bytes=_MOST_BYTES
    )
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def _ending(status: int) -> str:
    return (
        f"was ended by {signal.Signals(-status).name}"
        if status < 0
        else f"ended with exit code {status}"
    )


def _last_words(log: Path) -> str:
    """The last line that explains something, as every command of fedrec ends; else the last line of
    any kind."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["without a word"])[-1]
