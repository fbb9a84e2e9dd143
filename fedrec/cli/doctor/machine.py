"""Examinations of one machine, each of one thing: what is installed, ports, disks, files that must
stay private, the clock.

An examination returns words where all is well, a `Doubt` where a run may start but somebody should
look, and raises a FedRecError, with its cause and its remedy, where a run would fail.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from fedrec.errors import FedRecError, RunError, SettingsError
from fedrec.operations.addresses import Address

LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 2**30
"""A release of 23 million numbers has 184 MB, and is kept by aggregator and server."""
CLOCK_SLACK_S = 300.0
"""Two machines whose clocks differ by more have one that is wrong."""


@dataclass(frozen=True)
class Doubt:
    """Something that a run survives and somebody should look at."""

    words: str
    remedy: str


@dataclass(frozen=True)
class Check:
    """One examination of one party, as it came out.

    `exit_code` is 0 unless the verdict is failure."""

    party: str
    name: str
    verdict: Literal["ok", "doubt", "failure"]
    words: str
    remedy: str = ""
    exit_code: int = 0


def judged(party: str, name: str, examine: Callable[[], str | Doubt]) -> Check:
    """Carry out one examination."""
    try:
        found = examine()
    except FedRecError as failure:
        return Check(party, name, "failure", failure.cause, failure.remedy, failure.exit_code)
    except OSError as failure:
        where = f"{failure.filename}: " if failure.filename else ""
        return Check(
            party,
            name,
            "failure",
            f"{where}{failure.strerror or failure}",
            "Check the path and its permissions.",
            RunError.exit_code,
        )
    if isinstance(found, Doubt):
        return Check(party, name, "doubt", found.words, found.remedy)
    return Check(party, name, "ok", found)


def python() -> str:
    """Raises SettingsError on an older Python than the packages are written for."""
    if sys.version_info < LEAST_PYTHON:
        raise SettingsError(
            f"Python {sys.version.split()[0]}",
            f"Use Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer.",
        )
    return f"Python {sys.version.split()[0]}"


def packages(distribution: str = "fedrec") -> str:
    """Raises SettingsError where a package that `distribution` needs is missing, or another than
    the pinned version."""
    wanted = [line for line in metadata.requires(distribution) or [] if "extra ==" not in line]
    for line in wanted:
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        pinned = re.search(r"==\s*([\w.]+)", line)
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise SettingsError(f"{name} is not installed", f"pip install '{line}'") from None
        if pinned and found != pinned[1]:
            raise SettingsError(
                f"{name} {found} is installed, needed is {pinned[1]}",
                f"pip install {name}=={pinned[1]}",
            )
    return (
        f"{distribution} {metadata.version(distribution)} and its {len(wanted)} packages, flwr "
        f"{metadata.version('flwr')}"
    )


def port(address: str, *, told: Path | None = None) -> str | Doubt:
    """Whether a party can listen there.

    `told` is the file in which it would say that it listens already. Raises SettingsError."""
    try:
        where = Address.of(address)
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((where.host, where.port))
    except ValueError as failure:
        raise SettingsError(
            str(failure), "For example 0.0.0.0:7001; port 0 takes a free one."
        ) from None
    except OSError as failure:
        if told is not None and told.exists():
            return Doubt(
                f"{address} is taken; {told.name} says that this party runs already",
                "If it does not, remove that file.",
            )
        raise SettingsError(
            f"{address}: {failure.strerror}",
            "Stop whoever listens there, or name another address of this machine.",
        ) from None
    return f"{where} is free" if where.port else f"any free port of {where.host}"


def disk(folder: Path) -> str | Doubt:
    """Write, sync and remove a mebibyte where the state goes; look for free space.

    Raises RunError."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".fedrec-doctor-") as file:
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        raise RunError(
            f"{there} cannot be written: {failure.strerror}",
            "Give a state folder that this user may write, with free space.",
        ) from None
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE_BYTES:
        return Doubt(
            f"{free / 2**20:.0f} MiB free under {there}",
            "Free some: releases and checkpoints are kept for every round.",
        )
    return f"{there} can be written and synced, {free / 2**30:.0f} GiB free"


def private(paths: Sequence[Path]) -> str | Doubt:
    """Keys, tokens and ledgers must be for their owner's eyes.

    Raises SettingsError where everybody may read one."""
    modes = {path: _mode(path) for path in paths if path.exists()}
    for path, mode in modes.items():
        if mode & 0o007:
            raise SettingsError(
                f"{path} is open to every user of this machine (mode {mode:o})", f"chmod 600 {path}"
            )
    for path, mode in modes.items():
        if mode & 0o070:
            return Doubt(
                f"{path} is open to its group (mode {mode:o})",
                f"chmod 600 {path}, unless the group is this service's own.",
            )
    return (
        f"{', '.join(path.name for path in modes)} readable by the owner alone"
        if modes
        else "nothing to keep private yet"
    )


def clock(here_s: float, there_s: float, whose: str) -> str | Doubt:
    """Two clocks, seconds since 1970."""
    apart = abs(here_s - there_s)
    if apart > CLOCK_SLACK_S:
        return Doubt(
            f"this clock and {whose} are {apart / 60:.0f} minutes apart",
            "Let both follow a time server: certificates and ledgers depend on it.",
        )
    return f"{apart:.0f} s from {whose}"


def _mode(path: Path) -> int:
    """Its permissions, as far as its folder lets anybody use them."""
    passing = (path.parent.stat().st_mode & 0o011) * 0o7
    return path.stat().st_mode & (0o700 | passing)
