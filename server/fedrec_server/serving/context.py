"""Context of both APIs: models, batcher, limits, counts, and whether the process is about to
end.

Watcher of a bundle's path: another bundle there is loaded beside the ones that answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedrec.errors import FedRecError, RefusedError
from fedrec.operations import logs
from fedrec_server.serving.batcher import Batcher, ServingCounts
from fedrec_server.serving.refusals import Peers, draining, failed
from fedrec_server.serving.settings import ServingSettings
from fedrec_server.serving.store import ModelStore, ServedModel, found, load

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


class Watch:
    """The paths of one server.

    A bundle that cannot be used is logged and left alone: what answers goes on answering."""

    def __init__(
        self, paths: Sequence[Path], serving: ServingContext, *, demo: bool = False
    ) -> None:
        self._paths = tuple(paths)
        self._serving = serving
        self._demo = demo
        self._seen = {path: found(path) for path in self._paths}

    async def start(self) -> None:
        """Load every path. Raises RunError where one has no bundle that can be used."""
        for path in self._paths:
            self._put(path, await self._loaded(path))

    async def look(self) -> None:
        """Load what is new."""
        for path in self._paths:
            now = found(path)
            if now is None or now == self._seen[path]:
                continue
            self._seen[path] = now
            try:
                self._put(path, await self._loaded(path))
            except FedRecError as failure:
                self._serving.counts.swapped("failed", len(self._serving.store.all()))
                logs.say_failure(self._serving.log, "bundle-unusable", failure)

    async def _loaded(self, path: Path) -> ServedModel:
        read = partial(load, path, demo=self._demo)
        return await asyncio.get_running_loop().run_in_executor(None, read)

    def _put(self, path: Path, model: ServedModel) -> None:
        self._serving.store.put(path, model)
        self._serving.counts.swapped("loaded", len(self._serving.store.all()))
        logs.say(self._serving.log, "model", version=model.version, sha256=model.sha256)
        if model.ranked.about.experiment:
            logs.say(self._serving.log, "experiment", level=logging.WARNING, version=model.version)
