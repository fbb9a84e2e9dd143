"""Folder of compiled loops where the package's own cannot be written: a system-wide installation,
a read-only image.

numba keeps compiled functions beside the source, else in the user's cache folder, and refuses to be
imported where it can write neither, as under an account without a home.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def keep_compiled(package: Path) -> None:
    """Set NUMBA_CACHE_DIR, unless it is set or the package's folder can be written.

    It is fedrec's folder in the user's cache, else one of this user's in the temporary folder that
    nobody else can write: compiled functions are code. Processes of one user share it.
    """
    if os.environ.get("NUMBA_CACHE_DIR") or os.access(package, os.W_OK):
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in (Path(cache, "fedrec"), Path(tempfile.gettempdir(), f"fedrec-{os.geteuid()}")):
        if _own(folder):
            break
    else:
        folder = Path(tempfile.mkdtemp(prefix="fedrec-"))
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if "numba" in sys.modules:  # it has read the environment
        sys.modules["numba"].config.CACHE_DIR = str(folder)


def _own(folder: Path) -> bool:
    """Whether the folder is there, this user's and nobody else's to write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()  # links are everybody's to write
    except OSError:
        return False
    mine = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return mine and os.access(folder, os.W_OK)
