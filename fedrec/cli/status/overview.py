"""`fedrec status`: asks every party that some settings files name, and says of each whether it is
up and what it does.

A party of this machine is asked by its state folder (the file with its process id), then by its
metrics; what metrics do not say is read off its ledger or its notes, also when it is down. The
others by their addresses: the aggregator over gRPC with the certificate of the settings that name
it, the server by greeting it, serving by its health route. Nothing of a key, a token or
a user is read.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrec.cli.status.kept_progress import kept_by_aggregator, kept_by_client, kept_by_server
from fedrec.cli.status.processes import Process, process
from fedrec.cli.status.states import Measured, ready, scraped
from fedrec.errors import FedRecError, SettingsError
from fedrec.operations.addresses import Address
from fedrec.operations.party_settings import AggregatorAccess
from fedrec.operations.settings_files import kind_of
from fedrec.privacy.guarantee import said_down
from fedrec.transport.aggregator_client import RemoteReleaseEndpoint, Retry, healthy
from fedrec.transport.channel import Access
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client.run_record import unknown_of
from fedrec_client.settings import ClientSettings
from fedrec_client.settings import load as load_client
from fedrec_server.serving.settings import ServingSettings
from fedrec_server.serving.settings import load as load_serving
from fedrec_server.settings import ServerSettings
from fedrec_server.settings import load as load_server

TIMEOUT_S = 3.0
"""For each question to a party."""

_FINISHED = "it is not running: its training is finished; --again or --every trains once more"


@dataclass(frozen=True)
class PartyStanding:
    """One party.

    Times are unix seconds; None where nobody says. `why`: of a party that is not up, or how it was
    asked."""

    party: str
    address: str
    up: bool
    since_s: float | None = None
    version: str = ""
    phase: str = ""
    round: int | None = None
    waiting_for: str = ""
    users: int | None = None
    quorum: str = ""
    epsilon_left: float | None = None
    last_success_s: float | None = None
    why: str = ""

    def measured(self, told: Measured) -> PartyStanding:
        """With what its metrics say."""
        there = told.number("fedrec_quorum_users")
        needed = told.number("fedrec_quorum_needed_users")
        return replace(
            self,
            since_s=told.value("fedrec_start_time_seconds", self.since_s),
            version=told.label("fedrec_info", "version") or self.version,
            phase=told.label("fedrec_phase", "phase") or self.phase,
            round=told.number("fedrec_round", self.round),
            waiting_for=told.label("fedrec_waiting", "reason") or self.waiting_for,
            users=told.number("fedrec_users_enrolled", self.users),
            quorum="" if there is None else f"{there}/{'?' if needed is None else needed}",
            epsilon_left=told.value("fedrec_budget_epsilon_left", self.epsilon_left),
            last_success_s=told.value("fedrec_last_success_timestamp_seconds", self.last_success_s),
        )


def asked(
    paths: Sequence[Path], *, own_only: bool = False, clock: Callable[[], float] = time.time
) -> tuple[PartyStanding, ...]:
    """Every party that these settings files are of, or name (not with `own_only`); each once, by
    its address: three aggregators may have one port.

    Raises SettingsError on a file that is none of a party.
    """
    if not paths:
        raise SettingsError(
            "no settings file is given",
            "fedrec status server.toml aggregator.toml client.toml serving.toml",
        )
    own = list[PartyStanding]()
    named = list[Callable[[], PartyStanding]]()
    for path in paths:
        match kind_of(path):
            case "aggregator":
                own.append(_aggregator(load_aggregator(path)))
            case "server":
                server = load_server(path)
                own.append(_server(server))
                for access in (server.aggregator, *server.aggregators):
                    if access is not None:
                        named.append(lambda access=access: _asked_aggregator(access, "server"))  # type: ignore[misc]
            case "client":
                client = load_client(path)
                own.append(_client(client))
                named += list(_named_by(client, clock))
            case "serving":
                own.append(_serving(load_serving(path)))
    rows = list(own)
    told = [] if own_only else [ask() for ask in named]
    for row in told:
        # one of its kind may listen under another name than it is called by, and has one port
        single = len({one.address for one in told if one.party == row.party}) == 1
        place = _port if single else str
        alike = {place(known.address) for known in rows if known.party == row.party}
        if place(row.address) not in alike:
            rows.append(row)
    return tuple(rows)


def table(parties: Sequence[PartyStanding], *, now_s: float) -> str:
    """Table of the parties, for a terminal."""
    console = Console(file=io.StringIO(), width=180, color_system=None, highlight=False)
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    columns = (
        "party",
        "address",
        "up",
        "since",
        "version",
        "phase",
        "round",
        "waiting for",
        "users",
        "quorum",
        "epsilon left",
        "last success",
    )
    for column in columns:
        rows.add_column(column, overflow="fold")
    for one in parties:
        cells = (
            *(
                one.party,
                one.address or "-",
                "up" if one.up else "DOWN",
                _ago(one.since_s, now_s),
                one.version or "-",
                one.phase or "-",
            ),
            *(_or_dash(one.round), one.waiting_for or "-", _or_dash(one.users), one.quorum or "-"),
            *(
                "-" if one.epsilon_left is None else said_down(one.epsilon_left),
                _ago(one.last_success_s, now_s),
            ),
        )
        rows.add_row(*(Text(cell) for cell in cells))
    console.print(rows)
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return "\n".join(
        [
            *lines,
            *(
                f"{one.party} {one.address}: {one.why}".replace(" :", ":")
                for one in parties
                if one.why
            ),
        ]
    )


def as_dict(parties: Sequence[PartyStanding]) -> dict[str, Any]:
    """Ready for JSON."""
    return {"exit_code": exit_code(parties), "parties": [asdict(one) for one in parties]}


def exit_code(parties: Sequence[PartyStanding]) -> int:
    """0 where every party is up, else that of a party which could not be reached."""
    return 0 if all(one.up for one in parties) else 7


# --- parties by their own settings ---


def _aggregator(settings: AggregatorSettings) -> PartyStanding:
    found = process(Path(settings.state), "address.json")
    row = _row("aggregator", found, str(found.told.get("address", settings.listen)), settings.log)
    kept = kept_by_aggregator(settings)
    row = replace(
        row,
        users=kept.users,
        epsilon_left=kept.epsilon_left,
        last_success_s=kept.last_success_s,
        round=kept.round,
    )
    return _with_metrics(row, found, settings.metrics)


def _server(settings: ServerSettings) -> PartyStanding:
    found = process(Path(settings.state), "server.json")
    row = _row(
        "server",
        found,
        str(found.told.get("link") or settings.link.listen),
        Path(settings.log) if settings.log else None,
    )
    kept = kept_by_server(Path(settings.state))
    row = replace(
        row,
        round=kept.round,
        users=kept.users,
        last_success_s=kept.last_success_s,
        phase="" if row.up else kept.phase,
    )
    if kept.phase == "finished" and not found.running and not found.told:
        row = replace(row, why=_FINISHED)
    row = _with_metrics(row, found, settings.metrics)
    said = f"the model that serves: {kept.evaluation}" if kept.evaluation else ""
    return replace(row, why="; ".join(filter(None, (row.why, said))))


def _client(settings: ClientSettings) -> PartyStanding:
    found = process(Path(settings.state), "client.json")
    row = _row(f"client {settings.name}", found, "", Path(settings.log) if settings.log else None)
    kept = kept_by_client(settings)
    row = replace(
        row, round=kept.round, epsilon_left=kept.epsilon_left, last_success_s=kept.last_success_s
    )
    unknown, events = unknown_of(Path(settings.state))
    if unknown and not row.why:
        row = replace(row, why=f"the catalogue lacks items of {unknown:,} of {events:,} events")
    return _with_metrics(row, found, settings.metrics)


def _serving(settings: ServingSettings) -> PartyStanding:
    found = (
        process(Path(settings.state), "serving.json")
        if settings.state
        else Process(False, {}, None, "it has no state folder")
    )
    address = str(found.told.get("http", "")).partition("://")[2] or settings.http
    if not address:
        return _row("serving", found, settings.grpc, None)
    answer = ready(Address.of(address), settings.tls, timeout_s=TIMEOUT_S)
    row = PartyStanding(
        "serving",
        address,
        answer.ready,
        found.since_s if found.running else None,
        why="; ".join(found.told.get("verified", ())) if answer.ready else answer.why,
    )
    watched = str(found.told.get("metrics", "")) or settings.metrics
    told = scraped(Address.of(watched), timeout_s=TIMEOUT_S) if watched else None
    return row.measured(told) if told else row


# --- parties that others name ---


def _named_by(
    client: ClientSettings, clock: Callable[[], float]
) -> Iterator[Callable[[], PartyStanding]]:
    from fedrec.cli.doctor.parties import server_answers

    server = client.server
    for access in (client.aggregator, *client.aggregators):
        if access is not None:
            yield lambda access=access: _asked_aggregator(access, client.name)  # type: ignore[misc]

    def asked() -> PartyStanding:
        try:
            server_answers(client, clock)
        except FedRecError as failure:
            return PartyStanding("server", server.address, up=False, why=failure.cause)
        return PartyStanding(
            "server", server.address, up=True, why=f"it takes client {client.name}"
        )

    yield asked


def _asked_aggregator(table: AggregatorAccess, name: str) -> PartyStanding:
    """By the certificate of whose settings these are: a server is told of users enrolled and budget
    left, a client no more than health."""
    row = PartyStanding("aggregator", table.address, up=False)
    try:
        access = Access(**table.called_by(name))
        if not healthy(access, timeout_s=TIMEOUT_S):
            return replace(row, why="it answers, and does not serve")
        row = replace(row, up=True, why=f"asked over gRPC as {name}")
        if name == "server":
            with RemoteReleaseEndpoint(
                access, retry=Retry(patience_s=0.0, deadline_s=TIMEOUT_S)
            ) as endpoint:
                budget = endpoint.budget()
                row = replace(
                    row,
                    users=endpoint.enrolled(),
                    epsilon_left=budget.left_epsilon,
                )
    except FedRecError as failure:
        return replace(row, why=failure.cause)
    return row


# --- what they have in common ---


def _row(party: str, found: Process, address: str, log: Path | None) -> PartyStanding:
    since_s = (
        found.since_s if found.running or log is None or not log.exists() else log.stat().st_mtime
    )
    version = str(found.told.get("version", ""))
    return PartyStanding(
        party, address, found.running, since_s, version, why="" if found.running else found.why
    )


def _with_metrics(row: PartyStanding, found: Process, wanted: str) -> PartyStanding:
    """Also of a party whose state folder is on another machine."""
    address = str(found.told.get("metrics") or found.told.get("metrics_address") or wanted)
    if not address or Address.of(address).port == 0 or (not row.up and found.here):
        return row
    told = scraped(Address.of(address), timeout_s=TIMEOUT_S)
    if told is None:
        return replace(row, why=row.why or f"its metrics at {address} do not answer")
    return replace(row, up=True, why="").measured(told)


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _ago(at_s: float | None, now_s: float) -> str:
    if at_s is None:
        return "-"
    passed = now_s - at_s
    if passed < 0:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if passed >= 2 * seconds:
            return f"{passed / seconds:.0f} {unit} ago"
    return f"{passed:.0f} s ago"
