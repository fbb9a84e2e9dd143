"""`fedrec ledger`: what the ledgers of some settings files hold, whether they are whole and fit
each other, and what can be repaired.

Nothing here changes an entry. A chain that is broken, a ledger that is lost or was put back cannot
be repaired: the newest backup is what helps (`fedrec_cli.ledgers.backup`).
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedrec.errors import FedRecError, RunError, SettingsError
from fedrec.federation.protocol import LedgerHead
from fedrec.operations.clock import ClockJump
from fedrec.operations.party_settings import kind_of
from fedrec.storage import read_json
from fedrec_aggregator.chain import Chain, Charge, ClockSet, Link, Released
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.postgres_ledger import held_in
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_cli.disclosure.aggregator import ledger_by, ledger_of, spent_of
from fedrec_client import click_ledger
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
class Finding:
    """One thing that was looked at: `wrong` is empty where it is in order, else says what is not,
    and `remedy` what helps."""

    party: str
    what: str
    wrong: str = ""
    remedy: str = ""
    exit_code: int = 0


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


# --- show ---


def shown(path: Path) -> Shown:
    """What one party's ledger holds, also while it runs.

    Raises RunError where there is none, or its chain is broken."""
    match kind_of(path):
        case "aggregator":
            return _of_aggregator(load_aggregator(path))
        case "client":
            return _of_client(load_client(path))
        case "server":
            return _of_server(load_server(path))
    raise SettingsError(
        f"{path} is of serving, which keeps no ledger",
        "Give the settings of an aggregator, a client or a server.",
    )


def text(ledger: Shown) -> str:
    """The same for a terminal."""
    lines = [f"{ledger.party}: {ledger.path}"]
    if ledger.entries:
        times = (
            f", {_time(ledger.first_s)} to {_time(ledger.last_s)}"
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
            f"  clock    set {way} by {hours:.1f} h, to {_time(jump.now_s)}, after entry "
            f"{jump.after}"
        )
    return "\n".join(lines)


def as_dict(ledger: Shown) -> Content:
    """Ready for JSON."""
    return asdict(ledger)


def _of_aggregator(settings: AggregatorSettings) -> Shown:
    links, users = _ledger_by(settings)
    place = "PostgreSQL" if settings.postgres else str(settings.state / "ledger.sqlite")
    rounds = dict[str, int]()
    for link in links:
        if isinstance(link.entry, Released):
            rounds[link.entry.run] = rounds.get(link.entry.run, 0) + 1
    jumps = tuple(
        Jump(number, e.last_s, e.now_s)
        for number, e in enumerate(link.entry for link in links)
        if isinstance(e, ClockSet)
    )
    spent = spent_of(link.entry.event for link in links if isinstance(link.entry, Charge))
    first_s, last_s = (links[0].time_s, links[-1].time_s) if links else (None, None)
    head = links[-1].hash if links else ""
    return Shown(
        "aggregator",
        place,
        len(links),
        head,
        first_s,
        last_s,
        spent,
        rounds,
        jumps,
        users=users,
    )


def _of_client(settings: ClientSettings) -> Shown:
    party, news = f"client {settings.name}", settings.privacy.unit == "click"
    path = Path(settings.state) / ("clicks.sqlite" if news else "ledger.sqlite")
    jumps = tuple(
        Jump(after, jump.expected_s, jump.now_s)
        for after, jump in (click_ledger if news else client_ledger).read_clock(path)
    )
    rounds = dict[str, int]()
    if news:
        clicks = click_ledger.read_entries(path)
        for click in clicks:
            rounds[click.run] = rounds.get(click.run, 0) + click.answers
        first_s, last_s = (clicks[0].time_s, clicks[-1].time_s) if clicks else (None, None)
        return Shown(
            party,
            str(path),
            len(clicks),
            clicks[-1].head if clicks else "",
            first_s,
            last_s,
            {},
            rounds,
            jumps,
        )
    entries = client_ledger.read_entries(path)
    for entry in entries:
        rounds[entry.run] = rounds.get(entry.run, 0) + 1
    spent = spent_of(event for entry in entries for event in entry.events)
    first_s, last_s = (entries[0].time_s, entries[-1].time_s) if entries else (None, None)
    head, seen = entries[-1].head if entries else "", client_ledger.read_seen(path)
    return Shown(party, str(path), len(entries), head, first_s, last_s, spent, rounds, jumps, seen)


def _of_server(settings: ServerSettings) -> Shown:
    kept = memory(settings)
    return Shown("server", str(kept.path), 0, "", None, None, {}, {}, seen=kept.ledger_head())


# --- verify ---


def verified(paths: Sequence[Path]) -> tuple[Finding, ...]:
    """Every ledger by itself, and, where the aggregator's is among them, what the others have seen
    of it."""
    return tuple(_verified(paths))


def _verified(paths: Sequence[Path]) -> Iterator[Finding]:
    # the aggregator's first: the others are set beside it
    aggregators = [path for path in paths if kind_of(path) == "aggregator"]
    held: Chain | None = None
    for path in aggregators:
        yield from _of_an_aggregator(load_aggregator(path))
        held = _whole_chain(load_aggregator(path))
    for path in paths:
        if path not in aggregators:
            yield from _VERIFIED[kind_of(path)](path)
            if held is not None:
                yield _followed(path, held)


def _of_an_aggregator(settings: AggregatorSettings) -> Iterator[Finding]:
    yield _examined("aggregator", "its chain is whole", lambda: _ledger_by(settings))
    yield from _releases(settings)


def _whole_chain(settings: AggregatorSettings) -> Chain | None:
    try:
        return Chain(_ledger_by(settings)[0])
    except FedRecError:
        return None


def _of_a_client(path: Path) -> Iterator[Finding]:
    client = load_client(path)
    party = f"client {client.name}"
    yield _examined(party, "its chain is whole", lambda: _of_client(client))
    yield _examined(party, "its head file knows no more", lambda: _heads(client))


def _of_serving(path: Path) -> Iterator[Finding]:
    raise SettingsError(f"{path} is of serving, which keeps no ledger", "Leave it out.")


_VERIFIED: Mapping[str, Callable[[Path], Iterable[Finding]]] = {
    "client": _of_a_client,
    "server": lambda path: (),
    "serving": _of_serving,
}
"""What is looked at in the ledger of a party by itself, by its kind."""


def _examined(party: str, what: str, look: Callable[[], object]) -> Finding:
    try:
        look()
    except FedRecError as failure:
        return Finding(party, what, failure.cause, failure.remedy, failure.exit_code)
    return Finding(party, what)


def _releases(settings: AggregatorSettings) -> Iterator[Finding]:
    """Files that are there must be what was released; those that are not may have been removed
    (`ReleaseLedger.removable`)."""
    what, wrong = "release files are what was released", list[str]()
    try:
        links, _ = _ledger_by(settings)
        stored = held_in(settings.postgres.conninfo).releases if settings.postgres else None
    except FedRecError:
        return
    for link in links:
        if isinstance(entry := link.entry, Released):
            path = settings.state / "releases" / entry.run / f"round-{entry.round:03d}.safetensors"
            if stored is not None:
                found = stored.get((entry.run, entry.round))
            else:
                found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            if found not in {None, entry.release_sha256}:
                wrong.append(f"{path.parent.name}/{path.name}")
    remedy = (
        "Put the files of the newest backup back: a release must be the same however often it is "
        "asked for."
    )
    yield (
        Finding("aggregator", what, f"not as recorded: {', '.join(wrong)}", remedy, 6)
        if wrong
        else Finding("aggregator", what)
    )


def _heads(settings: ClientSettings) -> None:
    """Raises RunError where the small file beside the ledger says that there was more."""
    news = settings.privacy.unit == "click"
    path = Path(settings.state) / ("clicks.sqlite" if news else "ledger.sqlite")
    heads = [
        entry.head
        for entry in (click_ledger.read_entries(path) if news else client_ledger.read_entries(path))
    ]
    beside = path.with_suffix(".head.json")
    if not beside.exists() and not heads:
        return
    kept = read_json(beside)
    if int(kept["number"]) > len(heads) or (
        kept["number"] and heads[int(kept["number"]) - 1] != kept["head"]
    ):
        cause = f"{path} is older than {beside.name} beside it, or one of the two was replaced"
        raise RunError(
            cause,
            (
                "Put back the newest pair (`fedrec restore`). If it is lost, what was spent is "
                "not known."
            ),
        )


def _followed(path: Path, held: Chain) -> Finding:
    """Whether the aggregator's ledger still holds what a client or the server has seen of it."""
    ledger = shown(path)
    seen, what = ledger.seen or LedgerHead(), "the aggregator's ledger holds what it has seen of it"
    if held.growth(seen, most=0) is not None:
        return Finding(ledger.party, what)
    there = len(held.links)
    wrong = (
        f"it has seen {seen.number} entries of the aggregator's ledger, which has {there} and "
        "does not hold those"
    )
    return Finding(
        ledger.party,
        what,
        wrong,
        "The aggregator's ledger was put back: restore its newest backup.",
        7,
    )


# --- repair ---


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
    _require_there(settings.state / "ledger.sqlite")
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
    state, limit = Path(client.state), client.privacy.limit
    news = client.privacy.unit == "click"
    place = state / ("clicks.sqlite" if news else "ledger.sqlite")
    _require_there(place)
    own = (click_ledger.ClickSpending if news else client_ledger.ClientLedger)(
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


def _require_there(path: Path) -> None:
    if not path.exists():
        raise RunError(
            f"{path} is not there",
            "Restore the newest backup (`fedrec restore`); a repair begins no new ledger.",
        )


def _jumped(jump: ClockJump | None) -> tuple[str, ...]:
    if jump is None:
        return ()
    hours = (jump.expected_s - jump.now_s) / 3_600
    return (
        (
            f"noted that the clock is {hours:.1f} h behind the last entry ({_time(jump.now_s)}, "
            f"the entry {_time(jump.expected_s)})"
        ),
    )


def _cleared(state: Path) -> tuple[str, ...]:
    """Files that a crash left beside their place: `storage.write_bytes` writes there, and moves
    what is whole."""
    left = sorted(path for path in state.rglob(".*.part") if path.is_file())
    for path in left:
        path.unlink()
    return (f"removed {len(left)} files that a crash left half written",) if left else ()


def _ledger_by(settings: AggregatorSettings) -> tuple[tuple[Link, ...], Content]:
    if settings.postgres:
        return ledger_by(settings)
    return _links(settings.state / "ledger.sqlite")


def _links(path: Path) -> tuple[tuple[Link, ...], Content]:
    _require_there(path)
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=5.0)) as database:
        # finishes what a crash left in SQLite's journal: read only, that cannot be
        database.execute("SELECT 1 FROM sqlite_master")
    return ledger_of(path)


def _time(at_s: float | None) -> str:
    return (
        "-" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    )
