"""Every release as it came, on the server's disk: what `fedrec inspect` shows, and proof that a
round was released once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrec.errors import ProtocolError
from fedrec.federation.protocol import Opening, ReleaseEndpoint, RoundStatus
from fedrec.privacy.calibration import Plan
from fedrec.storage import release_file, write_bytes


@dataclass(frozen=True)
class KeptReleases:
    """A `ReleaseEndpoint` that keeps what the endpoint behind it releases.

    folder: of the training."""

    endpoint: ReleaseEndpoint
    folder: Path

    def enrolled(self) -> int:
        """Implements `ReleaseEndpoint.enrolled`."""
        return self.endpoint.enrolled()

    def open_run(self, run: str, plan: Plan) -> None:
        """Implements `ReleaseEndpoint.open_run`."""
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
        """The endpoint's bytes, durable here first.

        Raises ProtocolError where the same round was released with other bytes before."""
        content = self.endpoint.release(run, round)
        path = release_file(self.folder, round)
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
