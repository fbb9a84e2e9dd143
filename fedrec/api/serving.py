"""Serving of a model from Python: its bundle, and the server process's functions in this
process."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedrec.api.promises import PrivacyGuarantee
from fedrec.errors import RunError, SettingsError, require
from fedrec.serving.bundle import FILE, write
from fedrec.serving.exporting import Export
from fedrec.serving.model_bundles import bundle_of

_START_S = 60.0
"""For the server to listen: far more than loading a bundle takes, so what is late never comes."""


class Servable(Protocol):
    """A trained model, as serving needs it: a `Recommender`."""

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What is promised of it."""

    def save(self, folder: str | Path) -> Path:
        """Write it."""


@dataclass(frozen=True)
class Served:
    """A server in a thread of this process. url: where HTTP listens."""

    url: str
    version: str
    training: str
    _stop: threading.Event
    _thread: threading.Thread

    def stop(self) -> None:
        """Finish what is running, and return when the server has ended."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def write_export(export: Export, file: Path) -> str:
    """Write the bundle and return its version."""
    about, arrays = export
    return write(file, about, arrays)


def serve(
    model: Servable, *, port: int, host: str, page: bool, demo: bool, background: bool
) -> Served | None:
    """Serve a model, as `fedrec serve` does; see `Recommender.serve`.

    Raises SettingsError where the address cannot be used, or the model must not be."""
    require("serve", "model.serve")
    from fedrec_server.serving.main import Serving, run
    from fedrec_server.serving.settings import overridden

    if model.guarantee.noise == "seeded" and not demo:
        raise SettingsError(
            "this model was trained with seeded noise, which whoever knows the seed can remove",
            "Train with noise='system', or say demo=True.",
        )
    settings = overridden(None, grpc="", http=f"{host}:{port}")
    stop = threading.Event()
    listening = threading.Event()
    told = list[Serving]()
    failed = list[BaseException]()

    def ready(serving: Serving) -> None:
        told.append(serving)
        listening.set()

    def work() -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="fedrec-serve-") as folder:
                model.save(Path(folder) / "model")
                write_export(bundle_of(Path(folder) / "model"), Path(folder) / FILE)
                run([Path(folder)], settings, page=page, demo=demo, ready=ready, stop=stop)
        except BaseException as failure:
            failed.append(failure)
            listening.set()

    if not background:
        work()
        if failed:
            raise failed[0]
        return None
    thread = threading.Thread(target=work, name="fedrec-serve", daemon=True)
    thread.start()
    if not listening.wait(_START_S):
        raise RunError(
            f"the server did not listen within {_START_S:g} seconds",
            "Try again on a less busy machine.",
        )
    if failed:
        raise failed[0]
    return Served(told[0].http, told[0].newest, told[0].training, stop, thread)
