"""Examination of each party: its settings, certificates, files, ledger and limit, and whether it
reaches the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedrec.cli.doctor import machine
from fedrec.cli.doctor.certificates import authority, certificate, holder_of
from fedrec.cli.doctor.machine import Check, Doubt, judged
from fedrec.cli.ledgers import account
from fedrec.errors import FedRecError, UnreachableError
from fedrec.federation.protocol import OWN_HEADS, HeadMemory, LedgerHead, OwnLedger, follow
from fedrec.operations.addresses import proxy_words
from fedrec.operations.certificates import Role
from fedrec.operations.party_settings import AggregatorAccess
from fedrec.recipes import guarantee_of
from fedrec.settings import Scenario
from fedrec.transport.aggregator_client import (
    RemoteReleaseEndpoint,
    RemoteReportEndpoint,
    Retry,
    healthy,
)
from fedrec.transport.channel import Access
from fedrec.transport.rounds_client import greet
from fedrec.transport.three_party_client import RemotePeer
from fedrec_aggregator.main import peer_access
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_aggregator.settings_tables import TlsSettings
from fedrec_client.ledger import read_seen
from fedrec_client.opened import read_site
from fedrec_client.settings import ClientSettings
from fedrec_client.settings import load as load_client
from fedrec_server.aggregation import memories
from fedrec_server.runs import require_affordable
from fedrec_server.serving.settings import load as load_serving
from fedrec_server.settings import ServerSettings
from fedrec_server.settings import load as load_server
from fedrec_server.workload import workload_of

Clock = Callable[[], float]
Settings = TypeVar("Settings")

_TIMEOUT_S = 15.0  # of a busy machine too


def _settings(
    party: str, load: Callable[[Path], Settings], path: Path
) -> tuple[Settings | None, Check]:
    """A party's settings where they can be read, and what to say of the file."""
    try:
        return load(path), Check(party, "settings", "ok", str(path))
    except FedRecError as failure:
        return None, Check(
            party, "settings", "failure", failure.cause, failure.remedy, failure.exit_code
        )


def aggregator_checks(
    path: Path, scenario: Scenario | None, clock: Clock, *, reach: bool
) -> Iterator[Check]:
    """Everything about an aggregator. One of three asks its peers: whether they run, show the
    pinned key, take this one's, and have its time."""
    settings, read = _settings("aggregator", load_aggregator, path)
    yield read
    if settings is None:
        return
    yield judged(
        "aggregator",
        "port",
        lambda: machine.port(settings.listen, told=settings.state / "address.json"),
    )
    if tls := settings.tls:
        yield judged("aggregator", "certificate", lambda: _shown(tls, clock(), settings.pins))
        yield judged(
            "aggregator",
            "private files",
            lambda: machine.private([tls.key, settings.state / "ledger.sqlite"]),
        )
    yield judged("aggregator", "clients", lambda: _listed(settings))
    yield judged("aggregator", "disk", lambda: machine.disk(settings.state))
    yield judged("aggregator", "ledger", lambda: machine.release_ledger(settings, clock()))
    if scenario:
        yield judged(
            "aggregator", "limit", lambda: machine.aggregator_limit(settings, scenario.privacy)
        )
    for peer in settings.three_party.peers if settings.three_party and reach else ():
        yield judged(
            "aggregator",
            f"aggregator {peer.place}",
            lambda peer=peer: _peer_answers(peer_access(settings, peer), clock),  # type: ignore[misc]
        )


def _listed(settings: AggregatorSettings) -> str | Doubt:
    if settings.clients or settings.any_client:
        return f"{len(settings.clients)} listed{', any other too' if settings.any_client else ''}"
    return Doubt("no client is listed, so none may report", "List them in [[clients]].")


def client_checks(
    path: Path, scenario: Scenario | None, clock: Clock, *, reach: bool
) -> Iterator[Check]:
    """Everything about a client, its data too, which are read and not shown."""
    settings, read = _settings("client", load_client, path)
    yield read
    if settings is None:
        return
    yield judged(
        "client", "data", lambda: f"{read_site(settings.data).num_users:,} users can be read"
    )
    state = Path(settings.state)
    ways = _ways(settings.aggregator, settings.aggregators)
    for first in _different(ways):
        yield from _own_files(
            "client", first, "client", clock, name=settings.name, pins=settings.pins
        )
    link = settings.server
    if link.certificate:
        own = Path(link.certificate), Path(link.key)
        said = {"role": "client", "name": settings.name, "pins": settings.pins}
        yield judged(
            "client",
            "certificate for the server",
            lambda: certificate(*own, now_s=clock(), **said),  # type: ignore[arg-type]
        )
    secrets = [
        *_secrets(ways),
        *([Path(link.key)] if link.key else []),
        state / "ledger.sqlite",
        state / "clicks.sqlite",
    ]
    yield judged("client", "private files", lambda: machine.private(secrets))
    yield judged("client", "disk", lambda: machine.disk(state))
    yield from proxied("client", ways)
    yield judged("client", "ledger", lambda: machine.client_ledger(settings, clock()))
    yield judged("client", "items", lambda: machine.items_known(state))
    if scenario and settings.privacy.unit == "user":
        yield judged("client", "limit", lambda: machine.client_limit(settings, scenario.privacy))
    if reach:
        places = [*range(3)] if settings.aggregators else [None]
        for place, (called, way) in zip(places, ways.items(), strict=False):
            access = Access(**way.called_by(settings.name))
            yield judged(
                "client",
                called,
                lambda access=access, place=place: _reports_to(access, settings, place),  # type: ignore[misc]
            )
        yield judged("client", "server", lambda: server_answers(settings, clock))


def serving_checks(path: Path, clock: Clock) -> Iterator[Check]:
    """Everything about a serving process; it calls nobody.

    A public authority may have issued its certificate, which names no role then."""
    settings, read = _settings("serving", load_serving, path)
    yield read
    if settings is None:
        return
    told = Path(settings.state) / "serving.json" if settings.state else None
    for kind, address in (("gRPC", settings.grpc), ("HTTP", settings.http)):
        if address:
            yield judged(
                "serving",
                f"{kind} port",
                lambda address=address: machine.port(address, told=told),  # type: ignore[misc]
            )
    if tls := settings.tls:
        own = Path(tls.certificate), Path(tls.key)
        yield judged("serving", "certificate", lambda: _serving_shows(*own, clock()))
        yield judged("serving", "private files", lambda: machine.private([own[1]]))


def device_checks(state: Path, clock: Clock) -> Iterator[Check]:
    """Everything about a device that asks for recommendations: it has no settings, only a state
    folder."""
    yield judged("device", "private files", lambda: machine.private([state / "ledger.sqlite"]))
    yield judged("device", "disk", lambda: machine.disk(state))
    yield judged(
        "device", "ledger", lambda: machine.serving_ledger(state / "ledger.sqlite", clock())
    )


def server_checks(
    path: Path, scenario: Scenario | None, clock: Clock, *, reach: bool
) -> Iterator[Check]:
    """Everything about a server."""
    settings, read = _settings("server", load_server, path)
    yield read
    if settings is None:
        return
    yield judged("server", "public data", lambda: _public(settings, scenario))
    ways = _ways(settings.aggregator, settings.aggregators)
    for first in _different(ways):
        yield from _own_files("server", first, "server", clock, pins=settings.pins)
    yield judged("server", "private files", lambda: machine.private(_secrets(ways)))
    yield judged("server", "disk", lambda: machine.disk(Path(settings.state)))
    yield from proxied("server", ways)
    link = settings.link
    yield judged(
        "server",
        "port",
        lambda: machine.port(link.listen, told=Path(settings.state) / "server.json"),
    )
    if link.certificate:
        own = Path(link.certificate), Path(link.key)
        shown = {"now_s": clock(), "role": "server", "pins": settings.pins}
        yield judged("server", "link's certificate", lambda: certificate(*own, **shown))  # type: ignore[arg-type]
        yield judged("server", "link's key", lambda: machine.private([own[1]]))
    if reach:
        for seen, (called, way) in zip(memories(settings), ways.items(), strict=False):
            access = Access(**way.called_by("server"))
            yield judged(
                "server",
                called,
                lambda access=access, seen=seen: _releases_of(access, seen, scenario),  # type: ignore[misc]
            )


# --- what they have in common ---


def _ways(
    one: AggregatorAccess | None, three: Sequence[AggregatorAccess]
) -> dict[str, AggregatorAccess]:
    """Every aggregator that a party names, by what it is called here."""
    return {f"aggregator {place}": each for place, each in enumerate(three, start=1)} | (
        {"aggregator": one} if one else {}
    )


def _different(ways: Mapping[str, AggregatorAccess]) -> list[AggregatorAccess]:
    """One for each pair of files that is looked at: a party mostly shows all three the same
    certificate."""
    return list({(each.ca, each.certificate): each for each in ways.values()}.values())


def proxied(party: str, ways: Mapping[str, AggregatorAccess]) -> Iterator[Check]:
    """A doubt for each way that leads through the environment's proxy."""
    for called, way in ways.items():
        if words := proxy_words(way.address):
            variable, _, remedy = words.strip().partition(" is set: ")
            doubt = Doubt(
                f"{variable} is set: what goes to {way.address} goes through that proxy",
                f"{remedy[:1].upper()}{remedy[1:]}",
            )
            yield judged(party, f"proxy to {called}", lambda doubt=doubt: doubt)  # type: ignore[misc]


def _peer_answers(access: Access, clock: Clock) -> str | Doubt:
    with RemotePeer(access) as peer:
        there_s = peer.clock_s()
    apart = machine.clock(clock(), there_s, f"the peer's at {access.address}")
    return (
        apart
        if isinstance(apart, Doubt)
        else (
            f"{access.address} runs, shows the pinned key, and takes this one's; its clock is "
            f"{apart}"
        )
    )


def _secrets(ways: Mapping[str, AggregatorAccess]) -> list[Path]:
    return sorted(
        {Path(name) for access in ways.values() for name in (access.key, access.token) if name}
    )


def _own_files(
    party: str, access: AggregatorAccess, role: Role, clock: Clock, *, name: str = "", pins: str
) -> Iterator[Check]:
    own = access.certificate
    ca = Path(access.ca) if access.ca else None
    if own:
        shown = {"now_s": clock(), "role": role, "name": name, "pins": pins}
        yield judged(
            party,
            "certificate",
            lambda: certificate(Path(own), Path(access.key), **shown),  # type: ignore[arg-type]
        )
    if ca:
        yield judged(party, "authority", lambda: authority(ca, now_s=clock()))


@dataclass
class _Seen:
    """How far a ledger was seen; what is looked at now is not kept."""

    head: LedgerHead

    def ledger_head(self) -> LedgerHead:
        return self.head

    def keep_ledger_head(self, head: LedgerHead) -> None:
        self.head = head


_ASKING = Retry(patience_s=0.0, deadline_s=_TIMEOUT_S)


def _reports_to(access: Access, settings: ClientSettings, place: int | None) -> str:
    """Asks it as the client itself will, without a word of a person: one that is not listed, whose
    key is another than the known one, or a ledger on either side that went back, is refused here as
    it would be in a round."""
    serves = _serves(access)
    path = account.ledger_path(settings)
    heads = [entry.head for entry in account.of_client(settings).entries]
    own = OwnLedger(len(heads), tuple(heads[-OWN_HEADS:]))
    seen = _Seen(read_seen(path, place) if path.exists() else LedgerHead())
    with RemoteReportEndpoint(access, retry=_ASKING) as reports:
        follow(lambda since: reports.growth(since, own), seen)
    return f"{serves}, and takes this client"


def _releases_of(access: Access, memory: HeadMemory, scenario: Scenario | None) -> str:
    """Asks it as the server itself will: whether its ledger went back, and whether its limit leaves
    the scenario's run."""
    serves = _serves(access)
    with RemoteReleaseEndpoint(access, retry=_ASKING) as releases:
        budget = releases.budget()
        if scenario:
            require_affordable(guarantee_of(scenario.privacy), budget)
        follow(releases.growth, _Seen(memory.ledger_head()))
    return f"{serves}, and takes this server"


def _serves(access: Access) -> str:
    """Whether it answers, shows the pinned key and speaks this version of the messages or an
    adjacent one."""
    if not healthy(access, timeout_s=_TIMEOUT_S):
        raise UnreachableError(
            f"{access.address} answers, but does not serve", "Look into the aggregator's log."
        )
    how = (
        "without TLS"
        if access.insecure
        else "its certificate is the pinned one"
        if access.pin
        else "its certificate is vouched for"
    )
    return f"{access.address} serves, {how}"


def _shown(tls: TlsSettings, now_s: float, pins: str) -> str | Doubt:
    """The aggregator's certificate; where callers come by token, a public authority may have issued
    it, which names no role."""
    return certificate(
        tls.certificate,
        tls.key,
        now_s=now_s,
        role="aggregator" if tls.client_ca else None,
        ca=tls.client_ca,
        pins=pins,
    )


def _serving_shows(path: Path, key: Path, now_s: float) -> str | Doubt:
    """Raises as `certificate`; a key that is a party's of the training is a doubt."""
    found = certificate(path, key, now_s=now_s)
    holder = holder_of(path)
    if isinstance(found, str) and holder is not None and holder.role != "serving":
        return Doubt(
            f"{path.name} is of {holder.role} {holder.name!r}: whoever breaks into serving can "
            "pose as that party",
            "Give it serving.pem of `fedrec certs`.",
        )
    return found


def server_answers(client: ClientSettings, clock: Clock) -> str | Doubt:
    """Whether the server takes this client, and the clocks agree. Raises FedRecError."""
    access = Access(**client.server.called_by(client.name))
    there_s = greet(access, timeout_s=_TIMEOUT_S)
    return machine.clock(clock(), there_s, f"the server's at {access.address}")


def _public(settings: ServerSettings, scenario: Scenario | None) -> str:
    work = workload_of(scenario or Scenario(), settings.public)
    if scenario:
        work.check(settings.aggregator or settings.aggregators or None)
    return work.about
