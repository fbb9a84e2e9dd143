"""Version and commit of the code that works in a run folder.

code.json    {"version", "commit"} of every start of the run, in order: two where an interrupted
             run went on with other code; the commit where the code is a checkout of git
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import fedrec
from fedrec.storage import read_json, write_json

CODE = "code.json"


@cache
def code_version() -> dict[str, str]:
    """`commit` ends in -dirty where files were changed since, and is empty where the package was
    installed from a wheel."""
    return {"version": fedrec.__version__, "commit": _commit(Path(fedrec.__file__).parents[1])}


def note_code(folder: Path) -> None:
    """Note in a run folder which code goes to work in it."""
    known = read_json(folder / CODE, list) if (folder / CODE).exists() else []
    if code_version() not in known:
        write_json(folder / CODE, [*known, code_version()])


def _commit(root: Path) -> str:
    if not (root / ".git").exists():
        return ""
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        asked = subprocess.run([*words, "--abbrev=40"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # without git, or a checkout that git refuses to read
