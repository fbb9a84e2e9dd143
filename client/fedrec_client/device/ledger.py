"""Ledger of what one person has spent, in a file: a line for each round, written durably before a
report leaves, in a SHA-256 chain.

A line that was cut off by a crash is dropped: nothing left for it. A changed or missing line is
noticed; a whole file that was put back is not, as nothing else on the device knows better.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrec.errors import BudgetExceededError, RunError
from fedrec_client.device.questions import Promise, delta_of

_GENESIS = hashlib.sha256(b"fedrec device ledger 1").hexdigest()
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Spent:
    """One round that was charged."""

    run: str
    round: int
    question: str
    plan: str
    mu: float
    head: str
    terms: str = ""
    """Digest of the run's terms; "" in an entry of a version that did not pin them."""


class DeviceLedger:
    """A person's ledger and secret in a folder, for one process at a time.

    Raises RunError where it is in use or damaged."""

    def __init__(self, folder: Path, *, epsilon: float, delta: float) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path, self.epsilon, self.delta = folder / "ledger.jsonl", epsilon, delta
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.close = weakref.finalize(self, os.close, self._file)
        """Let another process open it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise RunError(
                f"{self._path} is in use by another process", "End that one first."
            ) from None
        self.entries = self._read()
        self.secret = self._kept_secret(folder / "secret")

    def charge(
        self,
        run: str,
        round: int,
        question: str,
        promise: Promise,
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
        self._write(run, round, question, promise.digest, mu, terms)
        return True

    def _write(self, run: str, round: int, question: str, plan: str, mu: float, terms: str) -> None:
        content = [run, round, question, plan, mu.hex(), terms]
        head = _next(self.entries[-1].head if self.entries else _GENESIS, content)
        try:
            # what a full disk left of a line for which nothing was sent
            os.ftruncate(self._file, self._end)
            line = f"{json.dumps([*content, head])}\n".encode()
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, "no space is left")
            os.fsync(self._file)
        except OSError as failure:
            raise RunError(
                f"{self._path} cannot be written: {failure.strerror or failure}",
                "Nothing was sent. Free space.",
            ) from None
        self._end += len(line)
        self.entries.append(Spent(run, round, question, plan, mu, head, terms))

    def _read(self) -> list[Spent]:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        self._end = len(whole)
        found, head = list[Spent](), _GENESIS
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                *entry, claimed = json.loads(line)
                run, round, question, plan, mu, *pinned = entry
                head = _next(head, entry)
                terms = pinned[0] if pinned else ""
                spent = Spent(run, int(round), question, plan, float.fromhex(mu), head, terms)
            except (ValueError, TypeError):
                raise self._broken(number) from None
            if claimed != head:
                raise self._broken(number)
            found.append(spent)
        return found

    def _broken(self, line: int) -> RunError:
        return RunError(
            f"{self._path} is damaged at line {line}",
            "What was spent is not known: do not take part with this folder.",
        )

    def _kept_secret(self, path: Path) -> bytes:
        if path.exists():
            return path.read_bytes()
        if self.entries:
            raise RunError(
                f"{path} is missing",
                "Without it reports would be counted twice: restore the folder.",
            )
        beside = path.with_suffix(".part")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        return path.read_bytes()


def _next(head: str, content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([head, *content]).encode()).hexdigest()
