"""Ledger of what one person has spent, in a file: a line for each round, written durably before a
report leaves, in a SHA-256 chain whose head is also kept beside it.

A changed or missing line is noticed, and a file that was put back alone; a whole folder that was
put back where a second head file lies elsewhere, as nothing else on the device knows better.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.errors import BudgetExceededError, RunError
from fedrec.ledgers.chain import EntryType, HeadFile, LineFile, genesis, head_after
from fedrec.storage import writing
from fedrec_client.device.questions import DevicePromise, delta_of

DEPARTED = "-departed"
"""In place of a run, which no run is called: from this entry on nothing is reported."""
_ROUNDING = 1e-9
"""Relative: shares of a plan are floats, and their squares sum to the whole but for rounding."""


@dataclass(frozen=True)
class DeviceCharge:
    """One round that was charged."""

    number: int
    run: str
    round: int
    question: str
    plan: str
    mu: float
    head: str
    terms: str = ""
    """Digest of the run's terms; "" in an entry of a version that did not pin them."""


def _head(before: str, line: list[Any]) -> str:
    return head_after(before, *line)


def _read(number: int, line: list[Any], head: str) -> DeviceCharge:
    run, round, question, plan, mu, *pinned = line
    terms = pinned[0] if pinned else ""
    return DeviceCharge(number, run, int(round), question, plan, float.fromhex(mu), head, terms)


ROUNDS = EntryType(
    genesis("fedrec device ledger 1"),
    _head,
    _read,
    "What was spent is not known: do not take part with this folder.",
)


class DeviceLedger:
    """A person's ledger and secret in a folder, for one process at a time.

    seen: as of `HeadFile`. Raises RunError where it is in use or damaged."""

    def __init__(
        self, folder: Path, *, epsilon: float, delta: float, seen: Path | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / "ledger.jsonl"
        self.epsilon = epsilon
        self.delta = delta
        # earlier versions kept no head of a device's ledger
        head_file = HeadFile(self._path, may_lack=True, seen=seen)
        self._lines = LineFile(self._path, ROUNDS, head_file=head_file)
        self.close = self._lines.close
        """Let another process open it."""
        self.secret = self._kept_secret(folder / "secret")

    @property
    def entries(self) -> tuple[DeviceCharge, ...]:
        """Every round that was charged, oldest first."""
        return tuple(self._lines.entries)

    def charge(
        self,
        run: str,
        round: int,
        question: str,
        promise: DevicePromise,
        releases: Sequence[str],
        *,
        terms: str,
    ) -> bool:
        """Durably charge these releases. False where this was charged before: a resend.

        There must be room for all that is left of the plan. Raises BudgetExceededError where there
        is not, RunError where the round was charged for another question, or the run under another
        plan or other terms: with another order of items or another scale the reports of two rounds
        could be compared.
        """
        of_run = [entry for entry in self.entries if entry.run == run]
        if any(entry.plan != promise.digest for entry in of_run):
            raise RunError(
                f"run {run!r} was charged under another plan",
                "Do not take part: its server changed what it promised.",
            )
        if any(entry.terms not in {"", terms} for entry in of_run):
            raise RunError(
                f"run {run!r} was charged under other terms",
                "Do not take part: its server changed the items or the scale.",
            )
        for entry in of_run:
            if entry.round == round:
                if entry.question == question:
                    return False
                raise RunError(
                    f"round {round} of run {run!r} was charged for another question",
                    "Do not take part.",
                )
        whole = math.hypot(*promise.mus.values())
        others = math.hypot(*(entry.mu for entry in self.entries if entry.run != run))
        if delta_of(math.hypot(others, whole) * (1 - _ROUNDING), self.epsilon) > self.delta:
            raise BudgetExceededError(
                f"run {run!r} would pass epsilon {self.epsilon:g} at delta {self.delta:g}",
                "Nothing was sent.",
            )
        mu = math.hypot(*(promise.mus[name] for name in releases))
        if math.hypot(mu, *(entry.mu for entry in of_run)) > whole * (1 + _ROUNDING):
            raise BudgetExceededError(
                f"run {run!r} asks for more than its plan holds", "Nothing was sent."
            )
        with writing(self._path, "Nothing was sent. Free space."):
            self._lines.append([run, round, question, promise.digest, mu.hex(), terms])
        return True

    @property
    def departed(self) -> bool:
        """Whether the person left."""
        return any(entry.run == DEPARTED for entry in self.entries)

    def depart(self) -> None:
        """Durably note that the person leaves; again is nothing. Raises RunError where it cannot be
        written."""
        if not self.departed:
            with writing(self._path, "Free space."):
                self._lines.append([DEPARTED, 0, "", "", (0.0).hex(), ""])

    def _kept_secret(self, path: Path) -> bytes:
        if not (path.exists() or self.entries):
            beside = path.with_suffix(".part")
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        secret = path.read_bytes() if path.exists() else b""
        if len(secret) != 32:  # without it reports would be counted twice; cut, it could be guessed
            raise RunError(f"{path} is missing or damaged", "Restore the folder.")
        return secret
