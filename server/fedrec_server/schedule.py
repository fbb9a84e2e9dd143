"""Schedule of a server's trainings: once because it was told to, whenever the last model is old
enough, or when somebody asks a standing one.

`fedrec server ... --again` trains once more. With `--every 7d` the process stays up. A standing
server is asked by the same flag: the command finds the state folder in use, leaves a request in it,
and ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.errors import RunError, SettingsError
from fedrec.operations.clock import steady
from fedrec.storage import UnreadableError, read_json, write_json
from fedrec_server.run_record import only_one
from fedrec_server.runs import Runs, TrainingRun, charged, evaluation_in

REQUEST = "train-again.json"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_LOOK_S = 1.0  # how late a stop, a request or the next time may be noticed
_PAUSES_S = (5.0, 300.0)
"""Between two attempts at one training: the first pause, and the longest."""


def duration_s(text: str) -> float:
    """Seconds of `90s`, `15m`, `12h`, `7d` or `2w`. Raises SettingsError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if not match or float(match[1]) <= 0:
        raise SettingsError(
            f"{text!r} is no duration", "Write a number and s, m, h, d or w, for example 7d."
        )
    return float(match[1]) * _UNITS_S[match[2]]


@dataclass
class TrainingSchedule:
    """every_s: how old the last model may become, 0 for a process that ends. again: train once more
    now, however old it is.

    The clock is read once for each training: what passes afterwards is counted by how long this
    process has waited. A clock that is set postpones nothing, and begins no training, which would
    be paid for, before its time.
    """

    state: Path
    every_s: float = 0.0
    again: bool = False
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = steady
    _since_s: float = field(init=False)
    _refused: bool = field(default=False, init=False)
    _pause_s: float = field(default=_PAUSES_S[0], init=False)
    _finished: dict[str, float] = field(default_factory=dict, init=False)
    """By run: when its training was finished, on the steady clock."""

    def __post_init__(self) -> None:
        self._since_s = self.monotonic()

    @property
    def stands(self) -> bool:
        """Whether the process stays up between trainings."""
        return self.every_s > 0

    def due(self, last: TrainingRun | None, *, begun: int) -> bool:
        """Whether a new training begins now, after so many that were begun.

        The first one always does."""
        if last is None or self.asked(begun):
            return True
        return self.stands and self.left_s(last) <= 0

    def left_s(self, last: TrainingRun) -> float:
        """Until the model of a finished training is old enough."""
        now_s = self.monotonic()
        if last.run not in self._finished:
            self._finished = {last.run: now_s - (self.clock() - last.finished_s)}
        waited = now_s - self._since_s
        age = now_s - self._finished[last.run]
        return self.every_s - (waited if self._refused else max(age, waited))

    def asked(self, begun: int) -> bool:
        """Whether somebody asked for a training after so many, however old the last one is."""
        return self.again or self._requested(begun)

    def _requested(self, begun: int) -> bool:
        """A request says after how many trainings it asks for one: a crash before it is removed
        makes no further one of it."""
        try:
            return not int(read_json(self.state / REQUEST)["after"]) < begun
        except UnreadableError:
            return False  # it is looked at again
        except (RunError, KeyError, TypeError, ValueError):
            return (self.state / REQUEST).exists()  # left by another version, or by hand

    def taken(self, *, refused: bool = False) -> None:
        """A training has begun, durably, or was refused: the next is asked for anew, or due as long
        after a refusal as after a training."""
        self.again = False
        self._refused = refused
        self._pause_s = _PAUSES_S[0]
        (self.state / REQUEST).unlink(missing_ok=True)
        self._since_s = self.monotonic()

    def wait(self, sleep: Callable[[float], None]) -> None:
        """A moment."""
        sleep(_LOOK_S)  # a request is a file, which tells nobody that it is there

    def pause(self, sleep: Callable[[float], None]) -> None:
        """Between two attempts at a training that stopped, each twice as long as the one before; a
        request ends it."""
        until_s = self.monotonic() + min(self._pause_s, self.every_s)
        self._pause_s = min(2 * self._pause_s, _PAUSES_S[-1])
        while self.monotonic() < until_s and not (self.state / REQUEST).exists():
            self.wait(sleep)
        (self.state / REQUEST).unlink(missing_ok=True)


def ask_standing(state: Path) -> int:
    """Leave a request for the standing server of this folder; its process id, or 0 where none
    stands there.

    Raises RunError where a server is at work that ends after its training.
    """
    try:
        with only_one(state):
            return 0
    except RunError as busy:
        try:
            told = read_json(state / "server.json")
        except RunError:
            raise busy from None  # it is about to start, or to end
        if not told.get("stands"):
            raise
    write_json(state / REQUEST, {"asked_s": time.time(), "after": len(Runs(state).entries)})
    return int(told["pid"])


def words_of(runs: Runs) -> str:
    """What a finished state folder says to whoever starts its server: when, which version, what was
    promised, how to train again."""
    last = runs.serving
    if last is None:
        return ""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last.finished_s))
    version = f"version {last.version}" if last.version else f"no bundle to serve: {last.refused}"
    said = evaluation_in(runs.folder(last.run))
    count = len(charged(runs.entries))
    together = "1 training" if count == 1 else f"{count} trainings together"
    lines = [
        f"trained  {last.run}, finished {when}",
        f"model    {runs.state / 'model'}, {version}",
        f"promise  {last.total}, of {together}",
        *([f"week     {last.week} of {last.asks}, paid with its first"] if last.week else []),
        *([f"quality  {said['words']}"] if said else []),
        *(f"kept     {one.run} {one.unpublished}" for one in runs.entries if one.unpublished),
        (
            "again    --again trains once more now; --every 7d stays up and trains whenever the "
            "model is that old"
        ),
    ]
    return "\n".join(lines)
