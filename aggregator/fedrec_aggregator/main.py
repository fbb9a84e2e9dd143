"""The aggregator's process: settings in, a service on a port, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from fedrec.errors import RunError, SettingsError
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import pins
from fedrec.operations.clock import ClockJump
from fedrec.operations.machine import ClockWatch, watch_machine
from fedrec.operations.metrics import Metrics
from fedrec.operations.party_settings import insecure_name, require_three_keys
from fedrec.operations.party_state import Doing
from fedrec.operations.watched_files import LOOK_S, WatchedFiles
from fedrec.storage import write_json
from fedrec.transport.channel import Access
from fedrec.transport.server_tls import say_where_out_of_time, server_credentials
from fedrec.transport.three_party_client import RemotePeer
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.credentials import Roster
from fedrec_aggregator.ledger import ReleaseLedger
from fedrec_aggregator.postgres_ledger import LedgerAwayError, PostgresLedger
from fedrec_aggregator.service import MAX_RPCS, OPTIONS, AggregatorService
from fedrec_aggregator.settings import AggregatorSettings, load
from fedrec_aggregator.settings_tables import PeerTable, ThreePartyTable
from fedrec_aggregator.three_party import ThreePartyAggregator

_CALLERS = ("clients", "servers", "any_client", "keys", "tokens", "pins")
"""Keys of the settings that are read again while it runs."""

_TICK_S = 0.2
"""How often rounds are looked at that nobody asks about."""


def run(
    settings: AggregatorSettings,
    *,
    source: Path | None = None,
    ready: Callable[[Address], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; calls that run are finished first, for
    `traffic.stop_grace_s`.

    When it listens, `ready` is called with its address and `address.json` (address, pid, metrics)
    is in the state folder. source: file of the settings; who may call (`clients`, `servers`,
    `pins`) is read again from it after SIGHUP, and when it or the pins change. Raises SettingsError
    or RunError where it cannot start.
    """
    with ExitStack() as stack:
        log = stack.enter_context(
            logs.party_log(
                "aggregator",
                file=settings.log,
                max_bytes=settings.log_max_bytes,
                kept=settings.log_files,
            )
        )
        ledger = _ledger(settings, stop)
        stack.callback(ledger.close)
        metrics = Metrics("aggregator", version("fedrec"))
        own = [settings.tls.certificate, settings.tls.client_ca or ""] if settings.tls else []
        watch_machine(metrics.registry, state=settings.state, certificates=own)
        core = _core(settings, ledger, stack)

        async def serve() -> None:
            service = AggregatorService(
                core,
                Roster.of(settings),
                settings.traffic,
                metrics=metrics,
                log=log,
                tls=settings.tls,
            )
            if isinstance(ledger, PostgresLedger):
                stack.enter_context(_renewed(ledger, log))
            try:
                await _serve(service, settings, source, stack, ready, stop)
            finally:
                service.close()

        asyncio.run(serve())
        if ledger.deposed:
            raise RunError(
                "another aggregator took the ledger over",
                "Start this one again with postgres.standby = true: it waits for its turn.",
            )


def _ledger(settings: AggregatorSettings, stop: threading.Event | None) -> ReleaseLedger:
    table = settings.postgres
    kept: dict[str, Any] = {"limit": settings.limit, "releases_of_runs": settings.releases_of_runs}
    if table is None:
        return ReleaseLedger(settings.state, **kept)
    chosen: dict[str, Any] = {"lease_s": table.lease_s, "standby": table.standby}
    chosen["stop"] = stop or threading.Event()  # no handler yet: SIGTERM ends the process
    return PostgresLedger(settings.state, table.conninfo, **kept, **chosen)


@contextmanager
def _renewed(ledger: PostgresLedger, log: logging.Logger) -> Iterator[None]:
    """A thread that renews the lease, also while a round is being closed, which takes time."""
    ended = threading.Event()

    def renew() -> None:
        while not (ledger.deposed or ended.wait(ledger.lease_s / 3)):
            try:
                ledger.renew()
                ledger.away = False
            except RunError as failure:
                ledger.away = isinstance(failure, LedgerAwayError)
                logs.say_failure(log, "lease", failure)

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _core(settings: AggregatorSettings, ledger: ReleaseLedger, stack: ExitStack) -> Aggregator:
    """The one that sums alone, or one of three. Raises SettingsError where two of three have one
    key."""
    limits = settings.limits.limits()
    if (three := settings.three_party) is None:
        return Aggregator(ledger, limits, noise=settings.noise)
    party = _of_three(settings, three, stack)
    return ThreePartyAggregator(ledger, limits, noise=settings.noise, **party)


def _of_three(
    settings: AggregatorSettings, three: ThreePartyTable, stack: ExitStack
) -> dict[str, Any]:
    """Place, names and peers. Raises SettingsError where two of three have one key."""
    keys = {peer.place: peer.pin or insecure_name(peer.place) for peer in three.peers} | {
        three.place: _own_key(settings, three.place)
    }
    try:
        require_three_keys(list(keys.values()), insecure=False)
    except ValueError as failure:
        raise SettingsError(
            f"three_party: {failure}",
            "Give every operator's aggregator a key of its own, and its pin.",
        ) from None
    peers = {
        peer.place - 1: stack.enter_context(RemotePeer(peer_access(settings, peer)))
        for peer in three.peers
    }
    names = [keys[place].encode() for place in (1, 2, 3)]
    return {"place": three.place - 1, "names": names, "peers": peers}


def _own_key(settings: AggregatorSettings, place: int) -> str:
    if settings.tls is None:
        return insecure_name(place)
    try:
        return pins(settings.tls.certificate.read_bytes()).public_key
    except (OSError, ValueError) as failure:
        raise SettingsError(
            f"tls.certificate: {settings.tls.certificate}: {failure}", "Name a readable PEM file."
        ) from None


def peer_access(settings: AggregatorSettings, peer: PeerTable) -> Access:
    """The way to another of three aggregators, with this one's certificate."""
    if settings.tls is None or settings.three_party is None:
        own = settings.three_party.place if settings.three_party else 0
        return Access(peer.address, name=str(own), insecure=True)
    certificate = str(settings.tls.certificate)
    key = str(settings.tls.key)
    return Access(
        peer.address, ca=str(peer.ca or ""), pin=peer.pin, certificate=certificate, key=key
    )


async def _serve(
    service: AggregatorService,
    settings: AggregatorSettings,
    source: Path | None,
    stack: ExitStack,
    ready: Callable[[Address], None] | None,
    stop: threading.Event | None,
) -> None:
    watched = WatchedFiles((source, settings.pins) if source else ())
    stack.enter_context(watched.on_hangup())
    server = grpc.aio.server(options=tuple(OPTIONS.items()), maximum_concurrent_rpcs=MAX_RPCS)
    server.add_generic_rpc_handlers(service.handlers())
    address = _bind(server, settings)
    if settings.tls:
        say_where_out_of_time(settings.tls.certificate, service.log)
    told = {
        "address": str(address),
        "pid": os.getpid(),
        "metrics": _show_metrics(service, settings, stack),
    }
    if settings.devices is not None:
        from fedrec_aggregator.device_server import device_endpoint  # brings uvicorn

        told["devices"] = str(stack.enter_context(device_endpoint(service.core, settings.devices)))
    service.show_budget()
    if (last_s := service.core.ledger.last_release_s()) is not None:
        service.metrics.state.succeeded(last_s)
    await server.start()
    # before it is written: a signal in between would leave it
    stack.callback(lambda: (settings.state / "address.json").unlink(missing_ok=True))
    write_json(settings.state / "address.json", told)
    logs.say(
        service.log,
        "listening",
        address=str(address),
        pid=os.getpid(),
        ledger_head=service.core.ledger.head(),
    )
    if ready:
        ready(address)
    following = asyncio.create_task(_follow(service, settings, source, watched)) if source else None
    await _until_told(service, stop or threading.Event())
    if following:
        following.cancel()
    logs.say(service.log, "stopping")
    service.metrics.state.doing(Doing.STOPPING)
    await server.stop(settings.traffic.stop_grace_s)
    logs.say(service.log, "stopped")


async def _follow(
    service: AggregatorService, settings: AggregatorSettings, source: Path, watched: WatchedFiles
) -> None:
    """Let in whom the settings file and its pins name now; a file that cannot be used is logged,
    and changes nothing."""
    while True:
        await asyncio.sleep(LOOK_S)  # a changed file tells nobody
        if not watched.due():
            continue
        try:
            now = await asyncio.to_thread(load, source)
        except SettingsError as failure:
            logs.say_failure(service.log, "callers-not-reloaded", failure)
            continue
        service.admit_by(Roster.of(now))
        logs.say(service.log, "callers-reloaded", clients=len(now.clients))
        callers = {name: getattr(now, name) for name in _CALLERS}
        if now != settings.model_copy(update=callers):
            logs.say(
                service.log,
                "settings-changed",
                level=logging.WARNING,
                cause=f"{source.name} differs in more than {', '.join(_CALLERS)}",
                remedy="Start the aggregator again for the other keys.",
            )


async def _until_told(service: AggregatorService, stop: threading.Event) -> None:
    clock = ClockWatch(service.metrics.registry, service.log)
    if (jump := service.core.ledger.clock_behind()) is not None:
        clock.tell(jump)
        _note(service, jump)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, service.stopping.set)
    while not (service.stopping.is_set() or stop.is_set() or service.core.ledger.deposed):
        try:
            await service.tick()
        except Exception as failure:
            # a round that cannot be closed now must not end the service: the next tick tries again
            logs.say_failure(service.log, "tick", failure)
        if (jump := clock.look()) is not None:
            _note(service, jump)
        with suppress(TimeoutError):
            await asyncio.wait_for(service.stopping.wait(), _TICK_S)
    service.stopping.set()


def _note(service: AggregatorService, jump: ClockJump) -> None:
    try:
        service.core.ledger.note_clock(jump)
    except RunError as failure:
        logs.say_failure(service.log, "clock-not-noted", failure)


def _bind(server: grpc.aio.Server, settings: AggregatorSettings) -> Address:
    wanted = Address.of(settings.listen)
    try:
        if settings.tls is None:
            port = server.add_insecure_port(str(wanted))
        else:
            tls = settings.tls
            port = server.add_secure_port(
                str(wanted), server_credentials(tls.certificate, tls.key, tls.client_ca)
            )
    except RuntimeError:
        raise SettingsError(
            f"listen = {settings.listen!r}: this address cannot be had",
            "Name a free one of this machine, or port 0.",
        ) from None
    return Address(wanted.host, port)


def _show_metrics(
    service: AggregatorService, settings: AggregatorSettings, stack: ExitStack
) -> str:
    if not settings.metrics:
        return ""
    wanted = Address.of(settings.metrics)
    return str(stack.enter_context(service.metrics.serve(wanted.host, wanted.port)).address)
