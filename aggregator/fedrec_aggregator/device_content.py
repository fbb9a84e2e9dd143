"""Content that light devices read, as a server published it: from a folder, or over HTTPS with
every digest checked and kept."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Protocol
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES, _TIMEOUT_S = 1 << 30, 20.0


class Content(Protocol):
    """A publication of `fedrec_server.device_clients`."""

    def told(self) -> bytes:
        """The round that is open, as JSON; "{}" where there is none, or none can be read."""

    def content(self, sha256: str) -> bytes | None:
        """Bytes of that digest; None where there are none."""


class FolderContent:
    """The folder itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "v1"

    def told(self) -> bytes:
        """Implements `Content.told`."""
        return self._read("round") or b"{}"

    def content(self, sha256: str) -> bytes | None:
        """Implements `Content.content`."""
        return self._read(f"content/{sha256}") if _DIGEST.fullmatch(sha256) else None

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except OSError:
            return None


class HttpsContent:
    """A web server or a cache that serves the folder. address: https://HOST/PATH, without v1. ca:
    "" for the system's authorities.

    Bytes are kept by digest, up to `most_bytes`, the least recently asked for dropped first. Raises
    SettingsError on another address.
    """

    def __init__(
        self,
        address: str,
        *,
        ca: str = "",
        most_bytes: int = _MOST_BYTES,
        get: Callable[[str], bytes] | None = None,
    ) -> None:
        if not address.startswith("https://"):
            raise SettingsError(
                f"devices.content = {address!r} is no folder and no https address",
                "Name the server's devices folder.",
            )
        self._address, self._most = address.rstrip("/"), most_bytes
        self._get = get or _getter(ca, urlsplit(address).hostname or "")
        self._kept, self._lock = OrderedDict[str, bytes](), Lock()

    def told(self) -> bytes:
        """Implements `Content.told`."""
        return self._fetched("round") or b"{}"

    def content(self, sha256: str) -> bytes | None:
        """Implements `Content.content`; bytes of another digest are none."""
        if not _DIGEST.fullmatch(sha256):
            return None
        with self._lock:
            if sha256 in self._kept:
                self._kept.move_to_end(sha256)
                return self._kept[sha256]
        found = self._fetched(f"content/{sha256}")
        if found is None or hashlib.sha256(found).hexdigest() != sha256:
            return None
        with self._lock:
            self._kept[sha256] = found
            while sum(map(len, self._kept.values())) > self._most:
                self._kept.popitem(last=False)
        return found

    def _fetched(self, name: str) -> bytes | None:
        try:
            return self._get(f"{self._address}/v1/{name}")
        except (OSError, URLError):
            return None


def _getter(ca: str, host: str) -> Callable[[str], bytes]:
    local = Address(host, 0).loopback  # no proxy to this machine
    opener = build_opener(
        HTTPSHandler(context=ssl.create_default_context(cafile=ca or None)),
        ProxyHandler({} if local else None),
    )

    def get(url: str) -> bytes:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read(_MOST_BYTES))

    return get
