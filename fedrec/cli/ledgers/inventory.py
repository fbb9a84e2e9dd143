"""`fedrec ledger show`: what the ledger of a party holds, read while the party runs too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedrec.cli.disclosure.aggregator import ledger_by, ledger_of, spent_of
from fedrec.cli.ledgers import account
from fedrec.errors import RunError, SettingsError
from fedrec.federation.protocol import LedgerHead
from fedrec.ledgers.sqlite_ledger import read_clock
from fedrec.operations.settings_files import kind_of
from fedrec_aggregator.chain import ClockSet, LedgerLink
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client import ledger as client_ledger
from fedrec_client.settings import ClientSettings
from fedrec_client.settings import load as load_client
from fedrec_server.aggregation import memory
from fedrec_server.settings import ServerSettings
from fedrec_server.settings import load as load_server

Content = dict[str, Any]


@dataclass(frozen=True)
class Jump:
    """The clock was set after so many entries; unix times that it should have shown, and did."""

    after: int
    expected_s: float
    now_s: float


@dataclass(frozen=True)
class Shown:
    """One ledger. rounds: of each run, how many were charged or released. seen: of the aggregator's
    ledger, how far this party saw it."""

    party: str
    path: str
    entries: int
    head: str
    first_s: float | None
    last_s: float | None
    spent: Mapping[str, Content]
    rounds: Mapping[str, int]
    jumps: tuple[Jump, ...] = ()
    seen: LedgerHead | None = None
    users: Mapping[str, int] | None = None


def shown(path: Path) -> Shown:
    """What one party's ledger holds, also while it runs.

    Raises RunError where there is none, or its chain is broken."""
    match kind_of(path):
        case "aggregator":
            return _of_aggregator(load_aggregator(path))
        case "client":
            return of_client(load_client(path))
        case "server":
            return _of_server(load_server(path))
    raise SettingsError(
        f"{path} is of serving, which keeps no ledger",
        "Give the settings of an aggregator, a client or a server.",
    )


def text(ledger: Shown) -> str:
    """What a ledger shows, for a terminal."""
    lines = [f"{ledger.party}: {ledger.path}"]
    if ledger.entries:
        times = (
            f", {time_text(ledger.first_s)} to {time_text(ledger.last_s)}"
            if ledger.first_s is not None
            else ""
        )
        lines.append(f"  entries  {ledger.entries:,}{times}")
        lines.append(f"  head     {ledger.head}")
    else:
        lines.append("  entries  none")
    lines += [
        f"  spent    epsilon {told['epsilon']:.4g} per {unit} at delta {told['delta']:g}"
        for unit, told in ledger.spent.items()
    ]
    lines += [f"  run      {run}: {rounds} rounds" for run, rounds in ledger.rounds.items()]
    lines += [f"  users    {name}: {count:,}" for name, count in (ledger.users or {}).items()]
    if ledger.seen is not None:
        lines.append(
            f"  seen     of the aggregator's ledger: {ledger.seen.number:,} entries, head "
            f"{ledger.seen.head or '-'}"
        )
    for jump in ledger.jumps:
        way = "back" if jump.now_s < jump.expected_s else "ahead"
        hours = abs(jump.now_s - jump.expected_s) / 3_600
        lines.append(
            f"  clock    set {way} by {hours:.1f} h, to {time_text(jump.now_s)}, after entry "
            f"{jump.after}"
        )
    return "\n".join(lines)


def as_dict(ledger: Shown) -> Content:
    """Ready for JSON."""
    return asdict(ledger)


def _of_aggregator(settings: AggregatorSettings) -> Shown:
    links, users = chain_of(settings)
    place = "PostgreSQL" if settings.postgres else str(settings.state / "ledger.sqlite")
    jumps = tuple(
        Jump(number, e.last_s, e.now_s)
        for number, e in enumerate(link.entry for link in links)
        if isinstance(e, ClockSet)
    )
    return _shown("aggregator", place, account.of_links(links, users), jumps)


def of_client(settings: ClientSettings) -> Shown:
    """What a client's ledger shows: of rounds, or of clicks where a click is the unit."""
    path = account.ledger_path(settings)
    jumps = tuple(Jump(after, jump.expected_s, jump.now_s) for after, jump in read_clock(path))
    seen = client_ledger.read_seen(path) if settings.privacy.unit == "user" else None
    found = account.of_client(settings)
    return _shown(f"client {settings.name}", str(path), found, jumps, seen)


def _shown(
    party: str,
    place: str,
    found: account.Account,
    jumps: tuple[Jump, ...],
    seen: LedgerHead | None = None,
) -> Shown:
    return Shown(
        party,
        place,
        len(found.entries),
        found.head,
        found.first_s,
        found.last_s,
        spent_of(found.events),
        found.rounds,
        jumps,
        seen,
        found.users,
    )


def _of_server(settings: ServerSettings) -> Shown:
    kept = memory(settings)
    return Shown("server", str(kept.path), 0, "", None, None, {}, {}, seen=kept.ledger_head())


def require_there(path: Path) -> None:
    """Raises RunError where a party's ledger is lost."""
    if not path.exists():
        raise RunError(
            f"{path} is not there",
            "Restore the newest backup (`fedrec restore`).",
        )


def chain_of(settings: AggregatorSettings) -> tuple[tuple[LedgerLink, ...], Content]:
    """The links of an aggregator's ledger, in its file or in PostgreSQL, and what they say."""
    if settings.postgres:
        return ledger_by(settings)
    return _links(settings.state / "ledger.sqlite")


def _links(path: Path) -> tuple[tuple[LedgerLink, ...], Content]:
    require_there(path)
    return ledger_of(path)


def time_text(at_s: float | None) -> str:
    """An instant, as tables show it."""
    return (
        "-" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    )
