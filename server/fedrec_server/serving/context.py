"""Context of both APIs: models, batcher, limits, counts, and whether the process is about to
end.

Watcher of a bundle's path: another bundle there is loaded beside the ones that answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock, Thread

from fedrec.errors import FedRecError, RefusedError
from fedrec.operations import logs
from fedrec.serving.bundle import sha256_of
from fedrec_server.serving.batcher import Batcher, ServingCounts
from fedrec_server.serving.refusals import Peers, draining, failed
from fedrec_server.serving.settings import ServingSettings
from fedrec_server.serving.store import ModelStore, ServedModel, bundle_path, found, load

Verify = Callable[[Path], str]
"""Whether model and bundle at a path follow from a certificate: words that begin with `VERIFIED`
where they do; "" where it was told to stop."""
VERIFIED = "verified"
PIECE_BYTES = 2**19
"""Of a bundle, in one message or write."""


@dataclass
class ServingContext:
    """One server's parts. `stopping`: not ready any more; `closed`: new requests are refused;
    `verified`: by version whether model and bundle follow from a certificate, in words."""

    settings: ServingSettings
    store: ModelStore
    endpoint: Batcher
    peers: Peers
    counts: ServingCounts
    log: logging.Logger
    stopping: bool = field(default=False)
    closed: bool = field(default=False)
    verified: dict[str, str] = field(default_factory=dict)

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
        self,
        paths: Sequence[Path],
        serving: ServingContext,
        *,
        demo: bool = False,
        verify: Verify | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """changed: is told when one more model was verified."""
        self._verify = verify
        self._changed = changed
        self._verifying = Lock()  # one at a time: each takes a core
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
        if self._verify:  # beside what answers: it takes seconds
            loop = asyncio.get_running_loop()
            asked = (self._verify, path, model, loop)
            Thread(target=self._say_verified, args=asked, daemon=True).start()

    def _say_verified(
        self, verify: Verify, path: Path, model: ServedModel, loop: asyncio.AbstractEventLoop
    ) -> None:
        def there() -> bool:  # else another took its place
            return sha256_of(bundle_path(path)) == model.sha256

        # it was removed meanwhile; the process ends
        with self._verifying, suppress(OSError, RuntimeError):
            if there() and (said := verify(path)) and there():
                loop.call_soon_threadsafe(self._keep, model.version, said)

    def _keep(self, version: str, said: str) -> None:
        self._serving.verified[version] = said
        level = logging.INFO if said.startswith(VERIFIED) else logging.WARNING
        logs.say(self._serving.log, "verification", level=level, version=version, cause=said)
        self._changed()
