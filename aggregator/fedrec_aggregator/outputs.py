"""Store of one of three aggregators (`fedrec.sharing.protocol.Store`) in its release ledger:
attempts, charges, and its outputs.

What is kept lies where a trusted aggregator keeps its releases, so backups, the chain of hashes and
the limit over all runs are the same:

    "FRK1" | u32 attempt | u32 users | 32 bytes ticket | 32 bytes digest of the users | 32 bytes
        SHA-256 of the output | the output

Little endian. The file is replaced whole or not at all. It may leave from the moment at which the
chain has its SHA-256, once for a round and for ever: then no other is kept, none is given up, and a
file that is missing or damaged is an error, never a reason to begin anew.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from threading import RLock

from fedrec.errors import RunError
from fedrec.federation.messages import Question
from fedrec.federation.protocol import Phase, Refusal, RoundStatus, refused
from fedrec.privacy.calibration import Plan
from fedrec.sharing.protocol import KeptOutput
from fedrec.sharing.shares import HASH_BYTES
from fedrec_aggregator.ledger import ReleaseLedger

MAGIC = b"FRK1"
"""First bytes of a file that holds one of three outputs."""
_HEAD = struct.Struct(f"<4sII{HASH_BYTES}s{HASH_BYTES}s{HASH_BYTES}s")
_RESTORE = "Restore the newest backup of this folder; the round cannot be done again."


class OutputStore:
    """A `Store` over a ledger, which stays its owner's.

    Any thread may call; a call that returns is durable."""

    def __init__(self, ledger: ReleaseLedger, *, enrolled: Callable[[], int] | None = None) -> None:
        """enrolled: users, for the entry of a release; without it the ledger's own."""
        self._ledger = ledger
        self._lock = RLock()  # handlers run on threads, and calls here call each other
        self._enrolled = enrolled or (lambda: len(ledger.owners()))
        self._read = dict[tuple[str, int], KeptOutput]()
        self.quorums = dict[tuple[str, int], int]()
        """Of rounds that are open, for the entry of their release; a crash forgets them."""

    def attempt(self, run: str, round: int) -> int:
        """Implements `Store.attempt`."""
        known = self._ledger.attempt(run, round)
        return 0 if known is None else known.attempt

    def begin(self, run: str, round: int, attempt: int, digest: bytes) -> None:
        """Implements `Store.begin`. Raises RefusedError (`WRONG_QUESTION`, `ROUND_CLOSED`),
        RunError."""
        with self._lock:
            known = self._ledger.attempt(run, round)
            if known is not None and known.digest != digest.hex():
                raise refused(
                    Refusal.WRONG_QUESTION,
                    f"round {round} of run {run!r} was opened with another question",
                )
            if self.published(run, round) or attempt <= self.attempt(run, round):
                raise refused(
                    Refusal.ROUND_CLOSED,
                    f"attempt {attempt} at round {round} of run {run!r} is over",
                    "Open a later one.",
                )
            self._ledger.begin(run, round, digest.hex(), number=attempt)
            # outputs of rounds before, which are read from the disk again where somebody asks
            self._read.clear()

    def charge(self, run: str, question: Question, plan: Plan) -> None:
        """Implements `Store.charge`.

        Raises BudgetExceededError, UnitMismatchError, RefusedError (`BUDGET`), RunError."""
        self._ledger.charge(run, question.round, plan, [spec.name for spec in question.releases])

    def keep(self, run: str, round: int, output: KeptOutput) -> None:
        """Implements `Store.keep`. Raises RunError."""
        with self._lock:
            if self.published(run, round):
                raise RunError(
                    f"the output of round {round} is published: no other is kept", "Fetch it."
                )
            # until the disk has it, nobody knows which of the two it holds
            self._read.pop((run, round), None)
            self._ledger.store(run, round, _packed(output))
            self._read[run, round] = output

    def kept(self, run: str, round: int) -> KeptOutput | None:
        """Implements `Store.kept`.

        Raises RunError where the file is missing after it was published, or damaged."""
        with self._lock:
            if (known := self._read.get((run, round))) is not None:
                return known
            content = self._ledger.stored(run, round)
            if content is None:
                return None
            self._read[run, round] = found = _unpacked(content)
            return found

    def abandon(self, run: str, round: int) -> None:
        """Implements `Store.abandon`. Raises RunError where it was published."""
        with self._lock:
            self._read.pop((run, round), None)
            self._ledger.discard(run, round)

    def publish(self, run: str, round: int) -> None:
        """Implements `Store.publish`; again is nothing. Raises RunError."""
        with self._lock:
            if self.published(run, round):
                return
            output = self.kept(run, round)
            known = self._ledger.attempt(run, round)
            if output is None or known is None:
                raise RunError(f"round {round} of run {run!r} has no output to publish", _RESTORE)
            sha256 = hashlib.sha256(_packed(output)).hexdigest()
            enrolled = self._enrolled()
            quorum = self.quorums.pop((run, round), 0)
            status = RoundStatus(
                run,
                round,
                known.digest,
                Phase.RELEASED,
                output.attempt,
                enrolled,
                output.users,
                quorum=quorum,
            )
            self._ledger.publish(status, sha256, bytes_in=0)

    def published(self, run: str, round: int) -> bool:
        """Implements `Store.published`."""
        return self._ledger.released(run, round) is not None


def output_head(content: bytes) -> bytes:
    """What stands before the output in the file."""
    return content[: _HEAD.size]


def _packed(output: KeptOutput) -> bytes:
    sha256 = hashlib.sha256(output.content).digest()
    return (
        _HEAD.pack(MAGIC, output.attempt, output.users, output.ticket, output.agreed, sha256)
        + output.content
    )


def _unpacked(content: bytes) -> KeptOutput:
    """Raises RunError where it is not what `_packed` wrote."""
    if len(content) >= _HEAD.size:
        magic, attempt, users, ticket, agreed, sha256 = _HEAD.unpack_from(content)
        output = content[_HEAD.size :]
        if magic == MAGIC and hashlib.sha256(output).digest() == sha256:
            return KeptOutput(attempt, ticket, agreed, users, output)
    raise RunError("an output that was kept is damaged", _RESTORE)
