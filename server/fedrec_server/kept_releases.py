"""Every release as it came, on the server's disk: what `fedrec inspect` shows, and proof that a
round was released once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrec.errors import ProtocolError
from fedrec.federation.protocol import Opening, ReleaseDesk, RoundStatus
from fedrec.privacy.calibration import Plan
from fedrec.storage import write_bytes


@dataclass(frozen=True)
class KeptReleases:
    """A `ReleaseDesk` that keeps what the desk behind it releases in `folder`."""

    desk: ReleaseDesk
    folder: Path

    def enrolled(self) -> int:
        """Implements `ReleaseDesk.enrolled`."""
        return self.desk.enrolled()

    def open_run(self, run: str, plan: Plan) -> None:
        """Implements `ReleaseDesk.open_run`."""
        self.desk.open_run(run, plan)

    def open_round(self, opening: Opening) -> RoundStatus:
        """Implements `ReleaseDesk.open_round`."""
        return self.desk.open_round(opening)

    def status(self, run: str, round: int, *, wait_s: float = 0.0) -> RoundStatus:
        """Implements `ReleaseDesk.status`."""
        return self.desk.status(run, round, wait_s=wait_s)

    def close(self, run: str, round: int) -> RoundStatus:
        """Implements `ReleaseDesk.close`."""
        return self.desk.close(run, round)

    def release(self, run: str, round: int) -> bytes:
        """The desk's bytes, durable here first.

        Raises ProtocolError where the same round was released with other bytes before."""
        content, path = (
            self.desk.release(run, round),
            self.folder / f"round-{round:03d}.safetensors",
        )
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
        return content
