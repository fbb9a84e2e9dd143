"""The engine of one process: one part after another, so that memory is bounded by a part, the cache
and the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedrec.run.partitions.parts import Parts
from fedrec.run.partitions.protocol import PartTask, Told, merged


@dataclass
class InThisProcess:
    """See `protocol.Engine`."""

    source: Parts

    @property
    def parts(self) -> int:
        """See `protocol.Engine`."""
        return len(self.source.data.parts)

    def reduce(self, task: PartTask, told: Told, *, only: int | None = None) -> Any:
        """See `protocol.Engine`."""
        asked = range(self.parts) if only is None else [only]
        total = None
        for done, index in enumerate(asked, start=1):
            total = merged(total, task.map(self.source.read(index)))
            told(done, len(asked))
        return total

    def close(self) -> None:
        """See `protocol.Engine`."""
