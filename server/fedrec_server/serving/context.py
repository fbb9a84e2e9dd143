"""Context of both APIs: models, batcher, limits, counts, and whether the process is about to
end."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fedrec.errors import RefusedError
from fedrec.operations import logs
from fedrec_server.serving.batcher import Batcher
from fedrec_server.serving.counts import ServingCounts
from fedrec_server.serving.rate_limit import Peers
from fedrec_server.serving.refusals import draining, failed
from fedrec_server.serving.settings import ServingSettings
from fedrec_server.serving.store import ModelStore

PIECE_BYTES = 2**19
"""Of a bundle, in one message or write."""


@dataclass
class ServingContext:
    """One server's parts. `stopping`: not ready any more; `closed`: new requests are refused."""

    settings: ServingSettings
    store: ModelStore
    endpoint: Batcher
    peers: Peers
    counts: ServingCounts
    log: logging.Logger
    stopping: bool = field(default=False)
    closed: bool = field(default=False)

    @property
    def ready(self) -> bool:
        """Whether to send requests here."""
        return not self.stopping and bool(self.store)

    def require_open(self) -> None:
        """Raises RefusedError (`DRAINING`)."""
        if self.closed:
            raise draining()

    def refusal(self, failure: Exception, place: str) -> RefusedError:
        """What a caller is told of an error; counted, and logged where it is our own fault."""
        if not isinstance(failure, RefusedError):
            logs.say_failure(self.log, place, failure)
        refusal = failure if isinstance(failure, RefusedError) else failed(failure)
        self.counts.refused(refusal.code)
        return refusal
