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
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from fedrec import __version__
from fedrec.errors import FedRecError, SettingsError
from fedrec.numerics.threads import cores, use_at_most
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.machine import ClockWatch, keep_little, watch_machine
from fedrec.operations.metrics import served
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
from fedrec_server.serving.settings import LimitsTable, ServingSettings, TlsTable
from fedrec_server.serving.store import ModelStore
from fedrec_server.serving.workers import Worker, Workers, chosen, samples

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
        sources = [
            Source.of(url, _kept(settings), settings.fetch, demo=demo)
            for url in map(str, paths)
            if is_address(url)
        ]
        places = [
            *(Path(path) for path in paths if not is_address(str(path))),
            *(source.path for source in sources),
        ]
        # whoever stops it from a thread of this process has one worker: this process
        alone = stop is not None or threading.current_thread() is not threading.main_thread()
        number = 1 if alone else chosen(settings)
        stop = stop or threading.Event()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            if not runner.run(first_models(places, sources, wait=wait, stop=stop, log=log)):
                return
            answering = Answering(places, sources, settings, page, demo, verify)
            if number == 1:
                runner.run(_serve(answering, log, ready=ready, stop=stop))
                return
        _supervise(answering, number, log, ready)


@dataclass(frozen=True)
class Answering:
    """What a process that answers is given."""

    paths: Sequence[Path]
    sources: Sequence[Source]
    settings: ServingSettings
    page: bool
    demo: bool
    verify: Verify | None


def _supervise(
    answering: Answering,
    number: int,
    log: logging.Logger,
    ready: Callable[[Serving], None] | None,
) -> None:
    """Workers, until SIGTERM or SIGINT."""
    settings = answering.settings
    one = settings.model_copy(update={"limits": settings.limits.divided(number)})
    workers = Workers(settings, number, partial(_work, replace(answering, settings=one), number))
    over = threading.Event()
    again = threading.Event()

    def hung_up(*_: object) -> None:
        again.set()
        logs.reopen(log)

    with ExitStack() as stack:
        for name in ("SIGTERM", "SIGINT"):
            signal.signal(getattr(signal, name), lambda *_: over.set())
        signal.signal(signal.SIGHUP, hung_up)
        watched_at = ""
        if settings.metrics:
            where = Address.of(settings.metrics)
            registry = CollectorRegistry(auto_describe=False)
            endpoint = stack.enter_context(served(registry, where.host, where.port))
            watched_at = str(endpoint.address)
            registry.register(workers)
        file = Path(settings.state, "serving.json")
        told: list[Serving] = []

        def tell(words: Sequence[str]) -> None:
            told[:] = [replace(each, verified=tuple(words)) for each in told]
            if told and settings.state:
                _write(told[0], file, log)

        def listen(first: Serving) -> None:
            told[:] = [replace(first, pid=os.getpid(), metrics=watched_at)]
            if settings.state:
                stack.callback(_forget, file)
            tell(first.verified)
            _say_listening(told[0], log)
            if ready:
                ready(told[0])

        workers.run(ready=listen, changed=tell, again=again, over=over)
        logs.say(log, "stopped")


def _work(answering: Answering, number: int, worker: Worker) -> None:
    """A worker's process."""
    keep_little()
    use_at_most(max(1, cores() // number))
    if not worker.first:  # one fetches and verifies for all
        answering = replace(answering, sources=(), verify=None)
    settings = answering.settings
    file = Path(settings.log) if settings.log else None
    kept = {"max_bytes": settings.log_max_bytes, "kept": settings.log_files}
    stop = threading.Event()
    try:
        with (
            logs.party_log("serving", file=file, **kept) as log,
            asyncio.Runner(loop_factory=_loop_factory()) as runner,
        ):
            runner.run(_serve(answering, log, ready=None, stop=stop, worker=worker))
    except FedRecError as failure:  # the log has it
        worker.say("failed", (failure.cause, failure.remedy))


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
    answering: Answering,
    log: logging.Logger,
    *,
    ready: Callable[[Serving], None] | None,
    stop: threading.Event,
    worker: Worker | None = None,
) -> None:
    settings = answering.settings
    state = "" if worker else settings.state  # the parent's
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
        if told and state:
            words = tuple(dict.fromkeys(serving.verified.values()))
            _write(replace(told, verified=words), file, log)
        elif worker:
            worker.say("verified", dict(serving.verified))

    watch = Watch(
        answering.paths, serving, demo=answering.demo, verify=answering.verify, changed=tell
    )
    serving.look = watch.look if worker else None
    with ExitStack() as stack:
        stack.callback(serving.endpoint.close)
        await watch.start()
        watched_at = ""
        if settings.metrics and not worker:
            watched_at = str(
                stack.enter_context(counts.served(Address.of(settings.metrics))).address
            )
        grpc_server, grpc_at = await _open_grpc(serving, worker)
        try:
            listener, http_at = await _open_http(serving, answering.page, worker)
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
        if worker:
            worker.say("ready", told)
        else:
            if state:
                # before it is written: a signal in between would leave it
                stack.callback(_forget, file)
            tell()
            _say_listening(told, log)
        if ready:
            ready(told)
        # of gRPC every call leaves a cycle: with all that was imported to look at, they would be
        # looked for too seldom
        gc.freeze()
        fetching = [asyncio.create_task(fetch_on(source, log)) for source in answering.sources]
        if settings.tls and listener is None:  # HTTP's listener says it itself
            say_where_out_of_time(Path(settings.tls.certificate), log)
        await _until_told(serving, watch, stop, worker)
        for task in fetching:
            task.cancel()
        await _drain(serving, grpc_server, listener, closing=not worker or stop.is_set())
        if not worker:
            logs.say(log, "stopped")


def _say_listening(told: Serving, log: logging.Logger) -> None:
    address = f"grpc {told.grpc or '-'}, http {told.http or '-'}"
    logs.say(log, "listening", address=address, pid=told.pid, version=told.newest)


async def _open_grpc(serving: ServingContext, worker: Worker | None) -> tuple[Any, str]:
    wanted = worker.grpc if worker else serving.settings.grpc
    if not wanted:
        return None, ""
    server, address = await GrpcApi(serving).open(
        Address.of(wanted), serving.settings.tls, shared=worker is not None
    )
    return server, str(address)


async def _open_http(
    serving: ServingContext, page: bool, worker: Worker | None
) -> tuple[HttpListener | None, str]:
    settings = serving.settings
    if not settings.http:
        return None, ""
    tls = settings.tls
    listener = HttpListener(
        HttpApi(serving, page=page),
        Address.of(settings.http),
        _connections(settings.limits),
        serving.log,
        setting="http",
        tls=_tls(tls) if tls else None,
        idle_s=settings.limits.idle_s,
        grace_s=settings.limits.grace_s,
        listening=worker.http if worker else None,
    )
    await listener.start()
    return listener, f"{'https' if tls else 'http'}://{listener.address}"


def _tls(table: TlsTable) -> TlsFiles:
    client_ca = Path(table.client_ca) if table.client_ca else None
    return TlsFiles(Path(table.certificate), Path(table.key), client_ca)


def _connections(limits: LimitsTable) -> ConnectionLimits:
    return ConnectionLimits(
        limits.connections,
        limits.connections_per_peer,
        limits.loopback,
        limits.head_bytes,
        limits.request_s,
    )


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


async def _until_told(
    serving: ServingContext, watch: Watch, stop: threading.Event, worker: Worker | None
) -> None:
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
    go = threading.Event()
    if worker:
        answers = {
            "stop": lambda _: stop.set(),
            "go": lambda _: go.set(),
            "look": lambda _: hung_up(),
            "verified": serving.verified.update,
            "counts": lambda turn: worker.say("counts", (turn, samples(serving.counts.registry))),
        }

        def heard() -> None:
            for kind, content in worker.heard():
                answers[kind](content)
            if stop.is_set():
                loop.remove_reader(worker.pipe.fileno())

        loop.add_reader(worker.pipe.fileno(), heard)
    every_s = serving.settings.models.watch_s
    due_s = 0.0
    while not (go.is_set() or stop.is_set()):
        if over.is_set():
            over.clear()
            if worker is None:
                break
            worker.say("leaving")  # it goes on until another one answers
        if again.is_set() or (every_s and loop.time() >= due_s):
            again.clear()
            await watch.look()
            due_s = loop.time() + every_s
        serving.store.retire()
        clock.look()
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _LOOK_S)


async def _drain(
    serving: ServingContext, grpc_server: Any, http: HttpListener | None, *, closing: bool
) -> None:
    """closing: nobody goes on in this one's place, so that new queries are refused."""
    limits = serving.settings.limits
    serving.stopping = True
    logs.say(serving.log, "stopping")
    serving.counts.state.doing(Doing.STOPPING)
    await asyncio.sleep(limits.notice_s)  # load balancers send no more calls after it
    serving.closed = closing
    endings = [grpc_server.stop(limits.grace_s)] if grpc_server else []
    if http:
        endings.append(http.end())
    await asyncio.gather(*endings)
