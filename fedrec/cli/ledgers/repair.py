"""Repair of a ledger: what can be finished without changing an entry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedrec.cli.ledgers.inventory import require_there, time_text
from fedrec.errors import SettingsError
from fedrec.operations.clock import ClockJump
from fedrec.operations.settings_files import kind_of
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client import click_ledger
from fedrec_client import ledger as client_ledger
from fedrec_client.settings import load as load_client


def repaired(path: Path, *, clock: Callable[[], float] = time.time) -> tuple[str, ...]:
    """Do what can be done without changing an entry, and say it; () where there was nothing. The
    party must not be running.

    Finishes what a crash left half done (SQLite's journal, a head file that is behind, files that
    were not moved to their place), and writes down that the clock was set back. Raises RunError
    where the ledger is in use, lost, damaged or was put back.
    """
    repair = _REPAIRS.get(kind_of(path))
    if repair is None:
        raise SettingsError(
            f"{path} is of {kind_of(path)}, which keeps no ledger of its own",
            "Give the settings of an aggregator or a client.",
        )
    return repair(path, clock)


def _aggregator_repaired(path: Path, clock: Callable[[], float]) -> tuple[str, ...]:
    settings = load_aggregator(path)
    if settings.postgres:
        raise SettingsError(
            f"the ledger of {path} lies in PostgreSQL, which finishes by itself what a crash left",
            "Look at it with `fedrec ledger show` and `fedrec ledger verify`.",
        )
    require_there(settings.state / "ledger.sqlite")
    ledger = ReleaseLedger(settings.state, limit=settings.limit, clock=clock)
    try:
        jump = ledger.clock_behind()
        if jump is not None:
            ledger.note_clock(jump)
        return (*_jumped(jump), *_cleared(settings.state))
    finally:
        ledger.close()


def _client_repaired(path: Path, clock: Callable[[], float]) -> tuple[str, ...]:
    client = load_client(path)
    state = Path(client.state)
    limit = client.privacy.limit
    news = client.privacy.unit == "click"
    place = state / ("clicks.sqlite" if news else "ledger.sqlite")
    require_there(place)
    own = (click_ledger.ClickLedger if news else client_ledger.ClientLedger)(
        place, limit=limit, clock=clock
    )
    try:
        return (*_jumped(own.note_clock()), *_cleared(state))
    finally:
        own.close()


_REPAIRS: Mapping[str, Callable[[Path, Callable[[], float]], tuple[str, ...]]] = {
    "aggregator": _aggregator_repaired,
    "client": _client_repaired,
}


def _jumped(jump: ClockJump | None) -> tuple[str, ...]:
    if jump is None:
        return ()
    hours = (jump.expected_s - jump.now_s) / 3_600
    return (
        (
            f"noted that the clock is {hours:.1f} h behind the last entry "
            f"({time_text(jump.now_s)}, the entry {time_text(jump.expected_s)})"
        ),
    )


def _cleared(state: Path) -> tuple[str, ...]:
    """Files that a crash left beside their place: `storage.write_bytes` writes there, and moves
    what is whole."""
    left = sorted(path for path in state.rglob(".*.part") if path.is_file())
    for path in left:
        path.unlink()
    return (f"removed {len(left)} files that a crash left half written",) if left else ()
