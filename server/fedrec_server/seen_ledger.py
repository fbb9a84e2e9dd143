"""Record of what was seen of the aggregator's ledger, kept over runs: one that was put back to an
earlier state is refused in any run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedrec.errors import RunError
from fedrec.federation.ledger_heads import follow
from fedrec.federation.protocol import (
    LedgerGrowth,
    LedgerHead,
    Opening,
    ReleaseEndpoint,
    RoundStatus,
)
from fedrec.privacy.calibration import Plan
from fedrec.storage import read_json, write_json


@dataclass(frozen=True)
class SeenLedger:
    """A `HeadMemory` in a file."""

    path: Path

    def ledger_head(self) -> LedgerHead:
        """Implements `HeadMemory.ledger_head`. Raises RunError where the file is there and cannot
        be read."""
        if not self.path.exists():
            return LedgerHead()
        content = read_json(self.path)
        try:
            return LedgerHead(int(content["number"]), str(content["head"]))
        except (KeyError, TypeError, ValueError):
            raise RunError(
                f"{self.path} does not say what was seen of the aggregator's ledger",
                "Put back the file as it was.",
            ) from None

    def keep_ledger_head(self, head: LedgerHead) -> None:
        """Implements `HeadMemory.keep_ledger_head`."""
        write_json(self.path, {"number": head.number, "head": head.head})

    def forget(self) -> None:
        """Take the aggregator's next ledger for a new one."""
        self.path.unlink(missing_ok=True)


class GrowingEndpoint(ReleaseEndpoint, Protocol):
    """An aggregator that shows how its ledger grew."""

    def growth(self, since: LedgerHead) -> LedgerGrowth:
        """Since that head.

        Raises RefusedError (`STALE_LEDGER`) where the ledger does not hold it."""


@dataclass(frozen=True)
class FollowedEndpoint:
    """A `ReleaseEndpoint` whose ledger is looked at before a round is opened, and after its release
    was fetched."""

    endpoint: GrowingEndpoint
    memory: SeenLedger

    def enrolled(self) -> int:
        """Implements `ReleaseEndpoint.enrolled`; the ledger first. Raises RefusedError
        (`STALE_LEDGER`)."""
        follow(self.endpoint.growth, self.memory)
        return self.endpoint.enrolled()

    def open_run(self, run: str, plan: Plan) -> None:
        """Implements `ReleaseEndpoint.open_run`; the ledger first. Raises RefusedError
        (`STALE_LEDGER`)."""
        follow(self.endpoint.growth, self.memory)
        self.endpoint.open_run(run, plan)

    def open_round(self, opening: Opening) -> RoundStatus:
        """Implements `ReleaseEndpoint.open_round`."""
        return self.endpoint.open_round(opening)

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Implements `ReleaseEndpoint.status`."""
        return self.endpoint.status(run, round, wait_s=wait_s)

    def close(self, run: str, round: int) -> RoundStatus:
        """Implements `ReleaseEndpoint.close`."""
        return self.endpoint.close(run, round)

    def release(self, run: str, round: int) -> bytes:
        """Implements `ReleaseEndpoint.release`; what was charged for it is seen then."""
        content = self.endpoint.release(run, round)
        follow(self.endpoint.growth, self.memory)
        return content
