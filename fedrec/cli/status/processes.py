"""Process of a party on this machine: whether it runs, and since when."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START_SLACK_S = 120.0
"""A process that started so much after its file was written last is another one, with the number of
the first."""


@dataclass(frozen=True)
class Process:
    """told: what its file says. since_s: when it started, or when the file was written last. here:
    its folder is on this machine."""

    running: bool
    told: dict[str, Any]
    since_s: float | None = None
    why: str = ""
    here: bool = True


def process(state: Path, name: str) -> Process:
    """The process that wrote `name` in a state folder."""
    path = state / name
    if not state.is_dir():
        return Process(False, {}, None, "it has no state folder on this machine", here=False)
    try:
        told = json.loads(path.read_text())
        written_s = path.stat().st_mtime
        pid = int(told["pid"])
    except FileNotFoundError:
        return Process(False, {}, None, "it is not running: it never started, or was stopped")
    except (OSError, ValueError, KeyError, TypeError):
        return Process(False, {}, None, f"{path} cannot be read")
    started_s = _started_s(pid)
    if started_s is None or started_s > written_s + _START_SLACK_S:
        return Process(
            False,
            told,
            written_s,
            "its process is gone without having been stopped: see its log, and start it again",
        )
    return Process(True, told, started_s)


def _started_s(pid: int) -> float | None:
    """When the process with this number started, unix time; None where there is none that is
    alive."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        boot_s = next(
            float(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime")
        )
        return None if fields[0] == "Z" else boot_s + float(fields[19]) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        if Path("/proc/stat").exists():
            return None
    try:  # not Linux: whether it is there must do
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0.0
