"""Public bundles on this device, by version: fetched once, checked against their version each time
they are opened, and bounded and rehearsed before a history is looked at.

The server is not trusted with the bundle. It learns whether a query follows the download of one, so
that may depend on the bundle alone. A bundle is refused on public grounds, and then by a rehearsal:
histories without anything, with one item, and with all places taken are asked for, and their
answers thrown away. What fails after that fails for one history, and is not shown (`recommending`).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrec.errors import ProtocolError, RunError
from fedrec.privacy.guarantee import Guarantee
from fedrec.serving.asking import ask
from fedrec.serving.bundle import Bundle, read, sha256_of
from fedrec.storage import read_json, write_json

_REMEDY = "Nothing was asked and nothing was charged. Do not use this server."
MAX_BUNDLE_BYTES = 4 * 2**30
"""A server must not fill a device's disk; 10 million items of 100 numbers in float32 have 4 GB."""
_CURRENT = "current.json"


@dataclass(frozen=True)
class BundleBounds:
    """What a bundle may ask of this device.

    places: H, of a history; coefficients: B; width: of a vector of the encoder; largest: of a
    number that a query is made from, small enough for every product of the encoder to be finite in
    single precision; scale: least and largest; padding: the largest probability of hiding a click;
    theta: shortest clipping of the attention, whose noise is drawn on a grid of its size.
    """

    places: int = 1_000
    coefficients: int = 1_024
    width: int = 4_096
    largest: float = 1e6
    scale: tuple[float, float] = (1e-9, 1e9)
    padding: float = 0.99
    theta: float = 1e-6


def require_bounded(bundle: Bundle, bounds: BundleBounds = BundleBounds()) -> None:
    """Raises ProtocolError on a bundle that is too large, or has numbers that could fail for some
    histories alone."""
    about, low, high = bundle.about, *bounds.scale
    if about.history > bounds.places:
        raise _refused(
            f"its histories have {about.history} places, expected at most {bounds.places}"
        )
    if bundle.coefficients > bounds.coefficients:
        raise _refused(
            f"a query has {bundle.coefficients} numbers, expected at most {bounds.coefficients}"
        )
    if not low <= about.scale <= high:
        raise _refused(f"its scale is {about.scale:g}, expected {low:g} to {high:g}")
    public: dict[str, npt.NDArray[Any]] = {"mean": bundle.mean, "covariance": bundle.covariance}
    public |= {name: array for name, array in bundle.more.items() if name.startswith("sizes.")}
    if about.form == "attention":
        public |= {"items": bundle.items, "users.linear": bundle.users.linear, **_encoder(bundle)}
        _require_attention(bundle, bounds)
    for name, array in public.items():
        if not _largest(array) <= bounds.largest:  # false for what is not a number, too
            raise _refused(
                f"{name} has a number that is not finite, or larger than {bounds.largest:g}"
            )


def rehearse(bundle: Bundle, guarantee: Guarantee) -> None:
    """Raises ProtocolError where invented histories cannot be asked for with `guarantee`.

    Touches no private data.
    """
    H = bundle.about.history
    rows = bundle.size + (bundle.about.form == "attention")  # the anonymous item too
    invented = np.full((3, H), -1, np.int32)
    invented[1, -1] = rows - 1
    invented[2] = np.arange(H) % max(rows, 1)
    try:
        # the answers are thrown away, so the key may be known
        ask(bundle, invented, guarantee=guarantee, key=bytes(32))
    except Exception as failure:  # of invented histories: its words are public
        raise _refused(
            f"it cannot be asked ({type(failure).__name__}: {str(failure)[:200]})"
        ) from None


def _require_attention(bundle: Bundle, bounds: BundleBounds) -> None:
    for name, least, most in (
        ("padding", 0.0, bounds.padding),
        ("theta", bounds.theta, bounds.largest),
        ("heads", 0, bounds.width),
    ):
        value = bundle.more.get(name, np.array(np.nan))
        if value.shape or not least <= float(value) <= most:
            raise _refused(f"{name} is {value}, expected {least:g} to {most:g}")
    moved = math.sqrt(2) * min(float(bundle.more["theta"].item()), 1.0)
    # the server rounds the same product, maybe upwards
    if not moved <= bundle.about.sensitivity <= moved * (1 + 1e-9):
        raise _refused(
            f"its attention can move by {moved:g}, it states {bundle.about.sensitivity:g}"
        )
    arrays = _encoder(bundle)
    if not arrays.keys() >= {"anonymous", "encoder.pool.dense"}:
        raise _refused("it lacks the user encoder")
    if (
        max(
            (length for array in (bundle.items, *arrays.values()) for length in array.shape[-1:]),
            default=0,
        )
        > bounds.width
    ):
        raise _refused(f"a vector of its encoder is longer than {bounds.width}")


def _encoder(bundle: Bundle) -> dict[str, npt.NDArray[np.generic]]:
    return {
        name: array
        for name, array in bundle.more.items()
        if name == "anonymous" or name.startswith("encoder.")
    }


def _largest(array: npt.NDArray[np.generic]) -> float:
    """The largest size of an entry; NaN where there is one.

    Without a copy: `items` may be most of the memory."""
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "fiu":
        return np.nan
    return max(-float(numbers.min(initial=0)), float(numbers.max(initial=0)))


def _refused(cause: str) -> ProtocolError:
    return ProtocolError(f"the server's bundle cannot be used: {cause}", _REMEDY)


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

    def bytes_of(self, version: str) -> int:
        """Size of a bundle that is here."""
        return self._path(version).stat().st_size

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
