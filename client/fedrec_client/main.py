"""One client: hands the server's messages to its worker and the answers back, and goes on until it
is told to stop.

    server <--gRPC, TLS-- this process --> worker (child) --gRPC, TLS--> aggregator

Only the worker reads the data and the ledger, and it is there only while there are messages
(`fedrec_client.worker`): at rest, a client holds neither them nor the libraries that answering
needs. Each may be ended at any moment, by kill -9 too: the ledger is written before a report
leaves, and the same question is answered again with the same reports.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

import fedrec
from fedrec.errors import SettingsError
from fedrec.ledgers.file_lock import FileLock
from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.machine import keep_little, watch_machine
from fedrec.operations.metrics import Metrics
from fedrec.storage import write_json
from fedrec.transport.channel import Access
from fedrec.transport.rounds_client import RoundsConnection
from fedrec_client.settings import ClientSettings
from fedrec_client.worker import Worker


@dataclass(frozen=True)
class ClientStatus:
    """What runs where, kept as `client.json` in the state folder.

    Addresses are host:port, "" for none."""

    name: str
    version: str
    pid: int
    metrics_address: str


def run(
    settings: ClientSettings,
    *,
    ready: Callable[[ClientStatus], None] | None = None,
    stop: threading.Event | None = None,
    new_aggregator_ledger: bool = False,
    check: Callable[[], object] | None = None,
) -> None:
    """Answer until SIGTERM, SIGINT or `stop`. `ready` is told when messages are taken.

    new_aggregator_ledger: forget what was seen of the aggregator's ledger, and take the one that it
    has now. check: run by the first worker, before it opens anything; what it raises ends the
    client.

    A signal ends an answer in its middle, which is safe. Raises FedRecError where data, ledger,
    or certificates cannot be used.
    """
    keep_little()
    folder = Path(settings.state)
    ended = stop or threading.Event()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _signals(ended), ExitStack() as stack:
        file = Path(settings.log) if settings.log else None
        log = stack.enter_context(
            logs.party_log(
                "client", file=file, max_bytes=settings.log_max_bytes, kept=settings.log_files
            )
        )
        metrics, metrics_address = _metrics(settings.metrics, stack)
        own = [settings.server.certificate, settings.server.ca]
        for table in (settings.aggregator, *settings.aggregators):
            own += [table.certificate, table.ca] if table else []
        watch_machine(metrics.registry, state=folder, certificates=own)
        # two clients on one ledger would each spend what is left
        lock = FileLock(
            folder / "client.lock",
            f"{folder} is in use by another process",
            "Stop the other client, or give this one its own state folder.",
        )
        stack.enter_context(lock)
        worker = stack.enter_context(Worker(settings, metrics))
        users = worker.begin(check=check, new_aggregator_ledger=new_aggregator_ledger)
        status = ClientStatus(settings.name, fedrec.__version__, os.getpid(), metrics_address)
        # before it is written: a signal in between would leave it
        stack.callback((folder / "client.json").unlink, missing_ok=True)
        write_json(folder / "client.json", asdict(status))
        logs.say(log, "client-started", pid=os.getpid(), version=fedrec.__version__, users=users)
        if ready:
            ready(status)
        server = Access(**settings.server.called_by(settings.name))
        RoundsConnection(server).run(worker.answer, ended)


def _metrics(address: str, stack: ExitStack) -> tuple[Metrics, str]:
    metrics = Metrics("client", fedrec.__version__)
    if not address:
        return metrics, ""
    try:
        wanted = Address.of(address)
    except ValueError as failure:
        raise SettingsError(
            f"metrics: {failure}", "For example 127.0.0.1:9464; port 0 picks one."
        ) from None
    return metrics, str(stack.enter_context(metrics.serve(wanted.host, wanted.port)).address)


@contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT end the body, once: what is being closed after the first is not disturbed
    by a second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both = (signal.SIGTERM, signal.SIGINT)

    def end(_signal: int, _frame: FrameType | None) -> None:
        for each in both:
            signal.signal(each, signal.SIG_IGN)
        ended.set()
        raise KeyboardInterrupt

    before = [(each, signal.signal(each, end)) for each in both]
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)
