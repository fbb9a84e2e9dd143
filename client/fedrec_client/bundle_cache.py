"""Public bundles on this device, by version: fetched once, checked against their version each time
they are opened."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from fedrec.errors import ProtocolError, RunError
from fedrec.serving.bundle import Bundle, read, sha256_of
from fedrec.storage import read_json, write_json
from fedrec_client.bundle_bounds import require_bounded

MAX_BUNDLE_BYTES = 4 * 2**30
_CURRENT = "current.json"


class BundleCache:
    """A folder with the bundle in use and the one before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current(self, server: str) -> Bundle | None:
        """What this server was asked with last, if it is here and whole."""
        version = self._versions().get(server)
        return self.get(version) if isinstance(version, str) else None

    def use(self, server: str, bundle: Bundle) -> None:
        """This server is asked with this bundle from now on.

        Bundles that no server is asked with leave the disk."""
        versions = self._versions() | {server: bundle.version}
        if versions != self._versions():
            write_json(self.folder / _CURRENT, versions)
            for path in self.folder.glob("*.safetensors"):
                if path.stem not in versions.values():
                    path.unlink(missing_ok=True)

    def get(self, version: str) -> Bundle | None:
        """None where it is not here, or is damaged or out of bounds: then it leaves the disk, to be
        fetched again."""
        path = self._path(version)
        if not path.exists():
            return None
        if sha256_of(path)[:16] != version:
            path.unlink(missing_ok=True)
            return None
        try:
            return _opened(path)
        except ProtocolError:
            path.unlink(missing_ok=True)
            return None

    def fetch(self, version: str, pieces: Iterable[bytes]) -> Bundle:
        """Keep what a server sends.

        Raises ProtocolError where that is not the bundle of this version, RunError where it cannot
        be kept."""
        path = self._path(version)
        beside = path.with_name(f".{version}.{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            found = _written(beside, pieces)
            if found[:16] != version:
                cause = (
                    f"the server offers model {version}, but its bytes are those of {found[:16]}"
                )
                raise ProtocolError(
                    cause,
                    "Nothing was asked with it. Try again; if it stays so, do not use this server.",
                )
            bundle = _opened(beside)
            os.replace(beside, path)
        except OSError as failure:
            raise RunError(
                f"{path} cannot be written: {failure.strerror or failure}",
                "Free space or correct permissions.",
            ) from None
        finally:
            beside.unlink(missing_ok=True)
        return bundle

    def _path(self, version: str) -> Path:
        return self.folder / f"{version}.safetensors"

    def _versions(self) -> dict[str, str]:
        try:
            found = read_json(self.folder / _CURRENT)
        except RunError:
            return {}
        return found if isinstance(found, dict) else {}


def _written(path: Path, pieces: Iterable[bytes]) -> str:
    """SHA-256 of what was written."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "wb") as file:
        for piece in pieces:
            size += len(piece)
            if size > MAX_BUNDLE_BYTES:
                raise ProtocolError(
                    f"the server's bundle is larger than {MAX_BUNDLE_BYTES} bytes",
                    "Do not use this server.",
                )
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _opened(path: Path) -> Bundle:
    """The bundle; a server's word is not taken for what it needs."""
    try:
        bundle = read(path)
    except RunError as failure:
        raise ProtocolError(
            f"the server's bundle cannot be used: {failure.cause}", "Do not use this server."
        ) from None
    require_bounded(bundle)
    return bundle
