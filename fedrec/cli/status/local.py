"""State of a party as its own folder says it: whether its process runs, since when, and how far it
came.

Read only, also while it runs."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.cli.ledgers import account
from fedrec.errors import FedRecError
from fedrec.privacy.guarantee import Guarantee
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.settings import ClientSettings
from fedrec_server.runs import run_folder

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


@dataclass(frozen=True)
class KnownProgress:
    """How far a party came, by its ledger or its notes; None where they do not say."""

    round: int | None = None
    users: int | None = None
    epsilon_left: float | None = None
    last_success_s: float | None = None
    phase: str = ""


def process(state: Path, name: str) -> Process:
    """The process that wrote `name` in a state folder."""
    path = state / name
    if not state.is_dir():
        return Process(False, {}, None, "it has no state folder on this machine", here=False)
    try:
        told, written_s = json.loads(path.read_text()), path.stat().st_mtime
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


def kept_by_aggregator(settings: AggregatorSettings) -> KnownProgress:
    """Users, the last round released, and what its limit leaves."""
    with suppress(FedRecError):
        found = account.of_aggregator(settings)
        if found.entries:
            return _kept(found, settings.limit)
    return KnownProgress()


def kept_by_client(settings: ClientSettings) -> KnownProgress:
    """The last round charged, and what is left for each user, or click."""
    with suppress(FedRecError):
        if account.ledger_path(settings).exists():
            return _kept(account.of_client(settings), settings.privacy.limit)
    return KnownProgress()


def _kept(found: account.Account, limit: Guarantee | None) -> KnownProgress:
    users = None if found.users is None else sum(found.users.values())
    return KnownProgress(found.last_round, users, found.left(limit), found.last_success_s)


def kept_by_server(state: Path) -> KnownProgress:
    """The last round that is kept of the newest training, when, and whether its model is there."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError, FedRecError):
        folder = run_folder(state)
        phase = "finished" if (folder / "model" / "manifest.json").exists() else ""
        lines = folder / "rounds.jsonl"
        if not lines.exists():
            return KnownProgress(phase=phase)
        last = json.loads(lines.read_text().splitlines()[-1])
        return KnownProgress(
            int(last["round"]), int(last["enrolled"]), None, lines.stat().st_mtime, phase
        )
    return KnownProgress()


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
