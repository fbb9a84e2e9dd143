"""Examinations of one machine, each of one thing: what is installed, ports, disks, files that must
stay private, the clock; and of ledgers: that they are whole, what is spent, in its unit, and
whether a scenario's run still fits.

An examination returns words where all is well, a `Doubt` where a run may start but somebody should
look, and raises a FedRecError, with its cause and its remedy, where a run would fail.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from fedrec.cli.disclosure.aggregator import DELTA
from fedrec.cli.ledgers import account
from fedrec.cli.ledgers.account import Account
from fedrec.errors import FedRecError, PrivacyError, RunError, SettingsError
from fedrec.operations.addresses import Address
from fedrec.privacy.accounting import GaussianEvent, Ledger, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import guarantee_of
from fedrec.settings_tables.training import PrivacySettings
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_client.run_record import unknown_of
from fedrec_client.settings import ClientSettings

LEAST_PYTHON = (3, 11)  # as `requires-python` of pyproject.toml
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
    return f"{distribution} {metadata.version(distribution)} and its {len(wanted)} packages"


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


def release_ledger(settings: AggregatorSettings, now_s: float) -> str | Doubt:
    """What an aggregator has released; a clock before its last entry is a doubt.

    Raises RunError where its chain is broken."""
    limit = settings.limit or Guarantee(math.inf, 1e-5)
    most = f"limit {settings.privacy.max_epsilon:g}"
    return _told(account.of_aggregator(settings), limit, now_s, "released so far", most)


def client_ledger(settings: ClientSettings, now_s: float) -> str | Doubt:
    """What each user of a client has spent, or of news the dearest click; a clock before its last
    entry is a doubt. Raises RunError."""
    limit = settings.privacy.limit
    most = f"limit {limit.epsilon:g}"
    return _told(account.of_client(settings), limit, now_s, "spent so far", most)


def items_known(state: Path) -> str | Doubt:
    """How many of a client's events the newest run's catalogue named. Raises RunError."""
    unknown, events = unknown_of(state)
    if not unknown:
        return "the newest catalogue names all events" if events else "no run yet"
    words = f"the newest run's catalogue lacks the items of {unknown:,} of {events:,} events"
    return Doubt(words, "Write item ids as the server's catalogue does: compare one of each.")


def serving_ledger(path: Path, now_s: float) -> str | Doubt:
    """What the answers of a device have cost; its limit is in no file: whoever asks says it each
    time. Raises RunError, also where the clock is before the last answer: what counts depends on
    it."""
    found = account.of_device(path)
    no_limit = Guarantee(math.inf, DELTA, "click", "replace")
    most = "the limit is what --limit of fedrec recommend says"
    told = _told(found, no_limit, now_s, f"at delta {DELTA:g} spent so far", most, "answer")
    if isinstance(told, Doubt):
        raise RunError(told.words, "Set the clock right.")
    return told


def _told(
    found: Account, limit: Guarantee, now_s: float, spent: str, most: str, first: str = "run"
) -> str | Doubt:
    if found.last_s is None:
        return f"begins with the first {first}"
    if clock := _set_back(found.last_s, now_s):
        return clock
    return f"{found.counted}, unbroken; {_priced(found.spent(limit), limit)} {spent}, {most}"


def _priced(epsilon: float, limit: Guarantee) -> str:
    return f"epsilon {epsilon:.4g} {limit.compared}"


def aggregator_limit(settings: AggregatorSettings, privacy: PrivacySettings) -> str:
    """Whether a run of the scenario fits.

    Raises PrivacyError where it does not, or is not to be taken part in."""
    guarantee = _established(privacy, allowed=settings.limits.allow_not_established)
    return _room(guarantee, account.of_aggregator(settings).events, settings.limit)


def client_limit(settings: ClientSettings, privacy: PrivacySettings) -> str:
    """Whether a run of the scenario fits; raises as `aggregator_limit` does."""
    guarantee = _established(privacy, allowed=settings.privacy.allow_not_established)
    return _room(guarantee, account.of_client(settings).events, settings.privacy.limit)


def _established(privacy: PrivacySettings, *, allowed: bool) -> Guarantee:
    guarantee = guarantee_of(privacy)
    if privacy.accountant == "am-ssp" and guarantee.private:
        guarantee = replace(
            guarantee, established=False, note="the paper's conversion covers one item update"
        )
    if not guarantee.established and not allowed:
        raise PrivacyError(
            f"the scenario promises {guarantee}",
            "Choose another scenario, or set allow_not_established.",
        )
    return guarantee


def _room(guarantee: Guarantee, charged: Sequence[GaussianEvent], limit: Guarantee | None) -> str:
    """Raises BudgetExceededError or UnitMismatchError where this scenario's run would pass the
    limit."""
    if limit is None:
        if not guarantee.private:
            raise PrivacyError(
                "the scenario has no noise, and privacy.without_noise is not set",
                'Set it, with max_epsilon = "inf", or a finite epsilon.',
            )
        return "no limit over all runs"
    run = GaussianEvent(
        "run of this scenario",
        mu_for(guarantee.epsilon, guarantee.delta),
        guarantee.unit,
        guarantee.neighbours,
    )
    after = Ledger(limit, tuple(charged)).add(run)
    return f"{guarantee} fits; {_priced(after.epsilon, limit)} after it, limit {limit.epsilon:g}"


def _set_back(last_s: float, now_s: float) -> Doubt | None:
    """Entries follow each other by number, whatever the clock says."""
    if now_s >= last_s - 86_400:
        return None
    remedy = (
        "Set the clock, or leave it if it is right now: the ledger goes on all the same, and "
        "notes the jump."
    )
    return Doubt(
        f"the clock is {(last_s - now_s) / 86_400:.1f} days before the ledger's last entry", remedy
    )
