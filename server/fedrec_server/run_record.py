"""Record of a run, `run.json`, which makes it the same run after a crash: its id, what it trains,
its plan, the ledger it has seen, and every release."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from fedrec.errors import ProtocolError, RunError
from fedrec.privacy.calibration import Plan
from fedrec.storage import read_json, release_file, write_bytes, write_json

FORMAT = "fedrec-run/1"
_ELSEWHERE = (
    "Go on with the same settings, or begin another training: fedrec server --drop-unfinished "
    "--again, or another state folder."
)


@dataclass(frozen=True)
class RunNotes:
    """What `run.json` holds. `trains` decides the result and never changes; `plan` is None until it
    is known how many users there are.

    `ledger_head` is the last head of the aggregator's ledger that this server has seen, "" for
    none.
    """

    run: str
    trains: Mapping[str, Any]
    num_users: int = 0
    plan: Mapping[str, Any] | None = None
    plan_digest: str = ""
    ledger_head: str = ""

    def planned(self, plan: Plan, *, num_users: int) -> RunNotes:
        """These notes with a plan, or as they are where it is the plan they hold.

        Raises RunError where it is another."""
        if self.plan is None:
            return replace(
                self, num_users=num_users, plan=plan.content(), plan_digest=plan.digest()
            )
        if self.plan_digest != plan.digest():
            raise RunError(
                (
                    f"run {self.run} was begun with another privacy plan than this version of "
                    "fedrec makes of its scenario"
                ),
                (
                    "Finish it with the version it was begun with, or begin another: fedrec "
                    "server --drop-unfinished --again."
                ),
            )
        return self

    def keep(self, folder: Path) -> None:
        """Durable when this returns."""
        write_json(folder / "run.json", {"format": FORMAT, **asdict(self)})


def open_notes(folder: Path, wanted: Mapping[str, Any], run: str | None) -> RunNotes:
    """The notes of a run begun in `folder`, or new and durable ones. `run` None makes an id, once.

    Raises RunError where the folder holds a run that trains something else, or has another id.
    """
    if not (folder / "run.json").exists():
        notes = RunNotes(_valid(run or f"run-{secrets.token_hex(8)}"), wanted)
        notes.keep(folder)
        return notes
    notes = _read(folder / "run.json")
    if run and notes.run != run:
        raise RunError(f"{folder} holds run {notes.run}, not {run}", _ELSEWHERE)
    if changed := [
        key for key in sorted({*notes.trains, *wanted}) if notes.trains.get(key) != wanted.get(key)
    ]:
        raise RunError(
            (
                f"{folder} holds run {notes.run}, begun with another "
                f"{_words(notes.trains, wanted, changed[0])}"
            ),
            _ELSEWHERE,
        )
    return notes


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder for this process: two servers in it would ask two different questions in one
    round. Raises RunError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(folder / "lock", "w") as file:
        try:
            # at once: a second server is told, and does not wait for the first
            flock(file, LOCK_EX | LOCK_NB)
        except OSError:
            raise RunError(
                f"another server is at work in {folder}",
                "Stop it first, or give another state folder.",
            ) from None
        yield


def _read(path: Path) -> RunNotes:
    content = read_json(path)
    try:
        if content.pop("format") != FORMAT:
            raise KeyError("format")
        return RunNotes(**content)
    except (KeyError, TypeError, AttributeError):
        raise RunError(f"{path} is not the notes of a run in format {FORMAT}", _ELSEWHERE) from None


def _valid(run: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", run):  # it names folders
        raise ValueError(f"a run id has letters, digits, '_', '-' and '.', found {run!r}")
    return run


def _words(kept: Mapping[str, Any], wanted: Mapping[str, Any], key: str) -> str:
    """Which key of a scenario changed, from what to what; digests say nothing to a person."""
    old = kept.get(key)
    new = wanted.get(key)
    if isinstance(old, dict) and isinstance(new, dict):
        inner = next(name for name in sorted({*old, *new}) if old.get(name) != new.get(name))
        return f"{key}.{inner}: {old.get(inner)!r}, now {new.get(inner)!r}"
    return "public data" if key == "public" else f"{key}: {old!r}, now {new!r}"


def keep_release(folder: Path, run: str, round: int, content: bytes) -> None:
    """Make a release durable in the folder of its training.

    Raises ProtocolError where the same round was released with other bytes before.

    Releases lie on the server's disk as they came: what `fedrec inspect` shows, and proof that a
    round was released once.
    """
    path = release_file(folder, round)
    if not path.exists():
        write_bytes(path, content)
    elif path.read_bytes() != content:
        raise ProtocolError(
            (
                f"the aggregator released round {round} of {run} twice, with different "
                "noise: its guarantee no longer holds"
            ),
            (
                "Stop the run and ask the aggregator's operator: a release must be the same "
                "however often it is asked for."
            ),
        )
