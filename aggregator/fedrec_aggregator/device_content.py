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
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from fedrec.errors import SettingsError
from fedrec.operations.addresses import Address

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 1 << 30
_KEPT_BYTES = 1 << 28
_TIMEOUT_S = 20.0


class PublishedContent:
    """What a server published (`fedrec_server.workload`). get: its file of a name, "v1/round"
    or "v1/content/SHA256"; raises OSError where it has none.

    Bytes are kept by digest, so that all who fetch them share one copy: up to `most_bytes`, the
    least recently asked for dropped first.
    """

    def __init__(self, get: Callable[[str], bytes], *, most_bytes: int = _KEPT_BYTES) -> None:
        self._get = get
        self._most = most_bytes
        self._kept = OrderedDict[str, bytes]()
        self._lock = Lock()

    def told(self) -> bytes:
        """The round that is open, as JSON; "{}" where there is none, or none can be read."""
        return self._fetched("v1/round") or b"{}"

    def content(self, sha256: str) -> bytes | None:
        """Bytes of that digest; None where there are none."""
        if not _DIGEST.fullmatch(sha256):
            return None
        with self._lock:
            if sha256 in self._kept:
                self._kept.move_to_end(sha256)
                return self._kept[sha256]
        found = self._fetched(f"v1/content/{sha256}")
        if found is None or hashlib.sha256(found).hexdigest() != sha256:
            return None
        with self._lock:
            found = self._kept.setdefault(sha256, found)
            while sum(map(len, self._kept.values())) > self._most:
                self._kept.popitem(last=False)
        return found

    def _fetched(self, name: str) -> bytes | None:
        try:
            return self._get(name)
        except OSError:
            return None


def in_folder(folder: Path) -> Callable[[str], bytes]:
    """Reads the folder itself."""
    return lambda name: (folder / name).read_bytes()


def at_address(address: str, *, ca: str = "") -> Callable[[str], bytes]:
    """Asks a web server or a cache that serves the folder at https://HOST/PATH, without v1. ca: ""
    for the system's authorities.

    Raises SettingsError on another address."""
    if not address.startswith("https://"):
        raise SettingsError(
            f"devices.content = {address!r} is no folder and no https address",
            "Name the server's devices folder.",
        )
    opener = _opener(address, ca)

    def get(name: str) -> bytes:
        with opener.open(f"{address.rstrip('/')}/{name}", timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read(_MOST_BYTES))

    return get


def _opener(address: str, ca: str) -> OpenerDirector:
    local = Address(urlsplit(address).hostname or "", 0).loopback  # no proxy to this machine
    return build_opener(
        HTTPSHandler(context=ssl.create_default_context(cafile=ca or None)),
        ProxyHandler({} if local else None),
    )
