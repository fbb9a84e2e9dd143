"""The serving process: bundles and settings in, two listeners on one event loop, until it is told
to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrec import __version__
from fedrec.errors import SettingsError
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.machine import ClockWatch, keep_little, watch_machine
from fedrec.operations.party_state import Doing
from fedrec.storage import write_json
from fedrec.transport.connection_limits import ConnectionLimits
from fedrec.transport.http_listener import HttpListener, TlsFiles
from fedrec.transport.server_tls import say_where_out_of_time
from fedrec_server.serving.batcher import Batcher, ServingCounts
from fedrec_server.serving.context import ServingContext, Verify, Watch
from fedrec_server.serving.fetching import Source, fetch_on, first_models, is_address
from fedrec_server.serving.grpc_api import GrpcApi
from fedrec_server.serving.http_api import HttpApi
from fedrec_server.serving.refusals import Peers
from fedrec_server.serving.settings import ServingSettings, TlsTable
from fedrec_server.serving.store import ModelStore

_LOOK_S = 0.1
"""How often the process looks whether it was told something."""


@dataclass(frozen=True)
class Serving:
    """Where a server listens, kept as `serving.json` in the state folder while it runs. grpc and
    metrics: host:port, http: URL, "" for none.

    newest: version of the newest model; training: what is promised of its training; verified: of
    each model whether it follows from a certificate, in words.
    """

    pid: int
    grpc: str
    http: str
    newest: str
    training: str
    metrics: str = ""
    verified: tuple[str, ...] = ()


def run(
    paths: Sequence[Path | str],
    settings: ServingSettings,
    *,
    page: bool = False,
    demo: bool = False,
    wait: bool = False,
    verify: Verify | None = None,
    ready: Callable[[Serving], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serve the bundles at `paths`, run folders or files, or addresses of servers to fetch them
    from, until SIGTERM, SIGINT or `stop`.

    SIGHUP looks for new ones. demo: also those of experiments, trained with seeded noise. wait: for
    a first model where there is none. verify: examines each model's certificate, in a thread beside
    what answers. When it listens, `ready` is told where. Raises SettingsError
    or RunError where it cannot start.
    """
    keep_little()
    file = Path(settings.log) if settings.log else None
    with ExitStack() as stack:
        log = stack.enter_context(
            logs.party_log(
                "serving", file=file, max_bytes=settings.log_max_bytes, kept=settings.log_files
            )
        )
        runner = stack.enter_context(asyncio.Runner(loop_factory=_loop_factory()))
        sources = [
            Source.of(url, _kept(settings), settings.fetch, demo=demo)
            for url in map(str, paths)
            if is_address(url)
        ]
        places = [
            *(Path(path) for path in paths if not is_address(str(path))),
            *(source.path for source in sources),
        ]
        stop = stop or threading.Event()
        if not runner.run(first_models(places, sources, wait=wait, stop=stop, log=log)):
            return
        runner.run(
            _serve(
                places, sources, settings, log,
                page=page, demo=demo, verify=verify, ready=ready, stop=stop,
            )
        )  # fmt: skip


def _kept(settings: ServingSettings) -> Path:
    """Where fetched bundles are kept."""
    if not settings.state:
        raise SettingsError(
            "state is empty: a bundle that is fetched needs a place",
            "Give the serving settings a state folder.",
        )
    return Path(settings.state)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


async def _serve(
    paths: Sequence[Path],
    sources: Sequence[Source],
    settings: ServingSettings,
    log: logging.Logger,
    *,
    page: bool,
    demo: bool,
    verify: Verify | None,
    ready: Callable[[Serving], None] | None,
    stop: threading.Event,
) -> None:
    counts = ServingCounts(__version__)
    serving = ServingContext(
        settings,
        ModelStore(settings.models),
        Batcher(settings, counts),
        Peers(settings.limits),
        counts,
        log,
    )
    told: Serving | None = None
    file = Path(settings.state, "serving.json")

    def tell() -> None:
        if told and settings.state:
            words = tuple(dict.fromkeys(serving.verified.values()))
            _write(replace(told, verified=words), file, log)

    watch = Watch(paths, serving, demo=demo, verify=verify, changed=tell)
    with ExitStack() as stack:
        stack.callback(serving.endpoint.close)
        await watch.start()
        watched_at = ""
        if settings.metrics:
            watched_at = str(
                stack.enter_context(counts.served(Address.of(settings.metrics))).address
            )
        grpc_server, grpc_at = await _open_grpc(serving)
        try:
            listener, http_at = await _open_http(serving, page)
        except BaseException:
            if grpc_server:
                await grpc_server.stop(None)
            raise
        newest = serving.store.newest
        about = newest.ranked.about
        tls = settings.tls
        watch_machine(
            counts.registry,
            state=Path(settings.state) if settings.state else None,
            certificates=[tls.certificate, tls.client_ca] if tls else [],
        )
        told = Serving(
            os.getpid(), grpc_at, http_at, newest.version, about.trained, metrics=watched_at
        )
        if settings.state:
            # before it is written: a signal in between would leave it
            stack.callback(_forget, file)
        tell()
        logs.say(
            log,
            "listening",
            address=f"grpc {grpc_at or '-'}, http {http_at or '-'}",
            pid=told.pid,
            version=told.newest,
        )
        if ready:
            ready(told)
        # of gRPC every call leaves a cycle: with all that was imported to look at, they would be
        # looked for too seldom
        gc.freeze()
        fetching = [asyncio.create_task(fetch_on(source, log)) for source in sources]
        if settings.tls and listener is None:  # HTTP's listener says it itself
            say_where_out_of_time(Path(settings.tls.certificate), log)
        await _until_told(serving, watch, stop)
        for task in fetching:
            task.cancel()
        await _drain(serving, grpc_server, listener)
        logs.say(log, "stopped")


async def _open_grpc(serving: ServingContext) -> tuple[Any, str]:
    if not serving.settings.grpc:
        return None, ""
    server, address = await GrpcApi(serving).open(
        Address.of(serving.settings.grpc), serving.settings.tls
    )
    return server, str(address)


async def _open_http(serving: ServingContext, page: bool) -> tuple[HttpListener | None, str]:
    settings = serving.settings
    if not settings.http:
        return None, ""
    tls = settings.tls
    limits = settings.limits
    listener = HttpListener(
        HttpApi(serving, page=page),
        Address.of(settings.http),
        ConnectionLimits(
            limits.connections,
            limits.connections_per_peer,
            limits.loopback,
            limits.head_bytes,
            limits.request_s,
        ),
        serving.log,
        setting="http",
        tls=_tls(tls) if tls else None,
        idle_s=limits.idle_s,
        grace_s=limits.grace_s,
    )
    await listener.start()
    return listener, f"{'https' if tls else 'http'}://{listener.address}"


def _tls(table: TlsTable) -> TlsFiles:
    client_ca = Path(table.client_ca) if table.client_ca else None
    return TlsFiles(Path(table.certificate), Path(table.key), client_ca)


def _forget(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)


def _write(told: Serving, file: Path, log: logging.Logger) -> None:
    """Write what `fedrec status` reads; a disk that cannot be written keeps nobody from being
    served."""
    try:
        write_json(file, asdict(told))
    except OSError as failure:
        cause = f"{file} cannot be written: {failure.strerror or failure}"
        remedy = "Free disk space, or make the folder writable; `fedrec status` needs the file."
        logs.say(log, "state-not-written", level=logging.WARNING, cause=cause, remedy=remedy)


async def _until_told(serving: ServingContext, watch: Watch, stop: threading.Event) -> None:
    over = asyncio.Event()
    again = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        again.set()
        logs.reopen(serving.log)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, hung_up)
    clock = ClockWatch(serving.counts.registry, serving.log)
    every_s = serving.settings.models.watch_s
    due_s = 0.0
    while not (over.is_set() or stop.is_set()):
        if again.is_set() or (every_s and loop.time() >= due_s):
            again.clear()
            await watch.look()
            due_s = loop.time() + every_s
        serving.store.retire()
        clock.look()
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _LOOK_S)


async def _drain(serving: ServingContext, grpc_server: Any, http: HttpListener | None) -> None:
    limits = serving.settings.limits
    serving.stopping = True
    logs.say(serving.log, "stopping")
    serving.counts.state.doing(Doing.STOPPING)
    await asyncio.sleep(limits.notice_s)  # load balancers send no more calls after it
    serving.closed = True
    endings = [grpc_server.stop(limits.grace_s)] if grpc_server else []
    if http:
        endings.append(http.end())
    await asyncio.gather(*endings)
