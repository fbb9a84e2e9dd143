"""What is examined of each party: its settings, certificates, files, ledger and limit, and whether it reaches the others."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from fedrec.errors import FedRecError, PrivacyError, RunError, SettingsError, UnreachableError
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import Role
from fedrec.operations.party_settings import AggregatorAccess
from fedrec.privacy.accounting import GaussianEvent, mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.ledger import Ledger
from fedrec.recipes import guarantee_of
from fedrec.settings import Scenario
from fedrec_aggregator.chain import Charge, Link
from fedrec_aggregator.channel import Access
from fedrec_aggregator.remote import healthy
from fedrec_aggregator.settings import AggregatorSettings
from fedrec_aggregator.settings import load as load_aggregator
from fedrec_client.ledger import Entry, read_entries
from fedrec_client.main import read_site
from fedrec_client.settings import ClientSettings
from fedrec_client.settings import load as load_client
from fedrec_server.rounds import check
from fedrec_server.settings import ServerSettings
from fedrec_server.settings import load as load_server
from fedrec_simulations import checks
from fedrec_simulations.certificate_checks import authority, certificate
from fedrec_simulations.checks import Check, Doubt, judged
from fedrec_simulations.inspect_aggregator import ledger_of

Clock = Callable[[], float]

_TIMEOUT_S = 5.0


def aggregator_checks(path: Path, scenario: Scenario | None, clock: Clock) -> Iterator[Check]:
    """Everything about an aggregator; it calls nobody."""
    try:
        settings = load_aggregator(path)
    except FedRecError as failure:
        yield Check("aggregator", "settings", "failure", failure.cause, failure.remedy, failure.exit_code)
        return
    yield Check("aggregator", "settings", "ok", str(path))
    yield judged("aggregator", "port", lambda: checks.port(settings.listen, told=settings.state / "address.json"))
    if tls := settings.tls:
        yield judged("aggregator", "certificate", lambda: certificate(tls.certificate, tls.key, now_s=clock(), ca=tls.client_ca))
        yield judged("aggregator", "private files", lambda: checks.private([tls.key, settings.state / "ledger.sqlite"]))
    yield judged("aggregator", "disk", lambda: checks.disk(settings.state))
    yield judged("aggregator", "ledger", lambda: _release_ledger(settings, clock()))
    if scenario:
        yield judged("aggregator", "limit", lambda: _aggregator_limit(settings, scenario))


def client_checks(path: Path, scenario: Scenario | None, clock: Clock, *, reach: bool) -> Iterator[Check]:
    """Everything about a client, its data too, which are read and not shown."""
    try:
        settings = load_client(path)
    except FedRecError as failure:
        yield Check("client", "settings", "failure", failure.cause, failure.remedy, failure.exit_code)
        return
    yield Check("client", "settings", "ok", str(path))
    yield judged("client", "data", lambda: f"{read_site(settings.data).num_users:,} users can be read")
    state = Path(settings.state)
    if access := settings.aggregator:
        yield from _own_files("client", access, "client", clock)
    yield judged("client", "private files", lambda: checks.private([*_secrets(access), state / "ledger.sqlite", state / "clicks.sqlite"]))
    yield judged("client", "disk", lambda: checks.disk(state))
    if settings.privacy.unit == "user":
        yield judged("client", "ledger", lambda: _client_ledger(settings, clock()))
    if scenario and settings.privacy.unit == "user":
        yield judged("client", "limit", lambda: _client_limit(settings, scenario))
    if reach:
        if access:
            yield judged("client", "aggregator", lambda: _aggregator_answers(Access(name=settings.name, **access.model_dump())))
        link = settings.superlink
        yield judged("client", "superlink", lambda: _gate_answers(link.address, link.root_certificates, link.insecure, clock))


def server_checks(path: Path, scenario: Scenario | None, clock: Clock, *, reach: bool) -> Iterator[Check]:
    """Everything about a server."""
    try:
        settings = load_server(path)
    except FedRecError as failure:
        yield Check("server", "settings", "failure", failure.cause, failure.remedy, failure.exit_code)
        return
    yield Check("server", "settings", "ok", str(path))
    yield judged("server", "public data", lambda: _public(settings, scenario))
    if access := settings.aggregator:
        yield from _own_files("server", access, "server", clock)
    yield judged("server", "private files", lambda: checks.private(_secrets(access)))
    yield judged("server", "disk", lambda: checks.disk(Path(settings.state)))
    gate = settings.superlink
    if gate.start:
        yield judged("server", "port", lambda: checks.port(gate.listen, told=Path(settings.state) / "server.json"))
    if gate.certificate:
        yield judged("server", "gate's certificate", lambda: certificate(Path(gate.certificate), Path(gate.key), now_s=clock()))
        yield judged("server", "gate's key", lambda: checks.private([Path(gate.key)]))
    if reach and access:
        yield judged("server", "aggregator", lambda: _aggregator_answers(Access(name="server", **access.model_dump())))


# --- what they have in common ---


def _secrets(access: AggregatorAccess | None) -> list[Path]:
    return [Path(name) for name in (access.key, access.token) if name] if access else []


def _own_files(party: str, access: AggregatorAccess, role: Role, clock: Clock) -> Iterator[Check]:
    own, ca = access.certificate, Path(access.ca) if access.ca else None
    if own:
        yield judged(party, "certificate", lambda: certificate(Path(own), Path(access.key), now_s=clock(), role=role))
    if ca:
        yield judged(party, "authority", lambda: authority(ca, now_s=clock()))


def _aggregator_answers(access: Access) -> str:
    if not healthy(access, timeout_s=_TIMEOUT_S):
        raise UnreachableError(f"{access.address} answers, but does not serve", "Look into the aggregator's log.")
    how = "without TLS" if access.insecure else "its certificate is the pinned one" if access.pin else "its certificate is vouched for"
    return f"{access.address} serves, {how}"


def _gate_answers(address: str, roots: str, insecure: bool, clock: Clock) -> str | Doubt:
    """Asks for a page that is not there: the answer's date shows the server's clock. Raises SettingsError or UnreachableError."""
    try:
        date = _date_at(Address.of(address), None if insecure else _trusting(roots))
    except ssl.SSLCertVerificationError as failure:
        cause = f"{address} shows a certificate that is not to be trusted: {failure.verify_message}"
        raise UnreachableError(cause, "Check superlink.root_certificates.") from None
    except (OSError, ValueError, HTTPException) as failure:
        raise UnreachableError(f"no SuperLink answers at {address}: {failure}", "Start the server, or correct superlink.address.") from None
    return checks.clock(clock(), date, f"the server's at {address}") if date else f"{address} answers"


def _date_at(where: Address, secure: ssl.SSLContext | None) -> float | None:
    if secure:
        line: HTTPConnection = HTTPSConnection(where.host, where.port, timeout=_TIMEOUT_S, context=secure)
    else:
        line = HTTPConnection(where.host, where.port, timeout=_TIMEOUT_S)
    with closing(line):
        line.request("GET", "/")
        date = line.getresponse().getheader("date")
    return parsedate_to_datetime(date).timestamp() if date else None


def _trusting(roots: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=roots or None)
    except OSError as failure:
        raise SettingsError(f"superlink.root_certificates: {roots}: {failure}", "Name a readable PEM file.") from None


# --- ledgers and limits ---


def _release_ledger(settings: AggregatorSettings, now_s: float) -> str:
    links = _links(settings)
    if not links:
        return "begins with the first run"
    _require_forward(links[-1].time_s, now_s)
    spent = _account([link.entry.event for link in links if isinstance(link.entry, Charge)], settings.limit or Guarantee(math.inf, 1e-5))
    return f"{len(links)} entries, unbroken; epsilon {spent.epsilon:.4g} released so far, limit {settings.privacy.max_epsilon:g}"


def _client_ledger(settings: ClientSettings, now_s: float) -> str:
    entries = _entries(settings)
    if not entries:
        return "begins with the first run"
    _require_forward(entries[-1].time_s, now_s)
    spent = _account([event for entry in entries for event in entry.events], settings.privacy.limit)
    return f"{len(entries)} rounds, unbroken; epsilon {spent.epsilon:.4g} spent so far, limit {settings.privacy.limit.epsilon:g}"


def _aggregator_limit(settings: AggregatorSettings, scenario: Scenario) -> str:
    guarantee = _established(scenario, allowed=settings.limits.allow_not_established)
    charged = [link.entry.event for link in _links(settings) if isinstance(link.entry, Charge)]
    return _room(guarantee, charged, settings.limit)


def _client_limit(settings: ClientSettings, scenario: Scenario) -> str:
    guarantee = _established(scenario, allowed=settings.privacy.allow_not_established)
    return _room(guarantee, [event for entry in _entries(settings) for event in entry.events], settings.privacy.limit)


def _links(settings: AggregatorSettings) -> tuple[Link, ...]:
    path = settings.state / "ledger.sqlite"
    return ledger_of(path)[0] if path.exists() else ()


def _entries(settings: ClientSettings) -> tuple[Entry, ...]:
    path = Path(settings.state) / "ledger.sqlite"
    return read_entries(path) if path.exists() else ()


def _account(events: Sequence[GaussianEvent], limit: Guarantee) -> Ledger:
    """What was spent, whether or not the limit of today would have allowed it."""
    return Ledger(limit, tuple(events))


def _established(scenario: Scenario, *, allowed: bool) -> Guarantee:
    guarantee = guarantee_of(scenario)
    if scenario.privacy.accountant == "am-ssp" and guarantee.private:
        guarantee = replace(guarantee, established=False, note="the paper's conversion covers one item update")
    if not guarantee.established and not allowed:
        raise PrivacyError(f"the scenario promises {guarantee}", "Choose another scenario, or set allow_not_established.")
    return guarantee


def _room(guarantee: Guarantee, charged: Sequence[GaussianEvent], limit: Guarantee | None) -> str:
    """Raises BudgetExceededError or UnitMismatchError where this scenario's run would pass the limit."""
    if limit is None:
        if not guarantee.private:
            raise PrivacyError(
                "the scenario has no noise, and privacy.without_noise is not set", 'Set it, with max_epsilon = "inf", or a finite epsilon.'
            )
        return "no limit over all runs"
    run = GaussianEvent("run of this scenario", mu_for(guarantee.epsilon, guarantee.delta), guarantee.unit, guarantee.neighbours)
    after = _account(charged, limit).add(run)
    return f"{guarantee} fits; epsilon {after.epsilon:.4g} after it, limit {limit.epsilon:g}"


def _require_forward(last_s: float, now_s: float) -> None:
    if now_s < last_s - 86_400:
        raise RunError(f"the clock is {(last_s - now_s) / 86_400:.1f} days before the ledger's last entry", "Set the clock right.")


def _public(settings: ServerSettings, scenario: Scenario | None) -> str:
    if scenario and scenario.recipe == "privaterec":
        from fedrec_server.news import check as check_news  # brings torch
        from fedrec_server.public_news import read_public_news

        catalogue = read_public_news(Path(settings.public.path), settings.public.format, scenario)
        check_news(scenario, settings.aggregator)
        return f"{len(catalogue.news):,} items, news"
    public = settings.public.read()
    if scenario:
        check(scenario, public)
    return f"{len(public.items):,} items, {public.kind}"
