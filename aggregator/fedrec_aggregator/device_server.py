"""The HTTPS endpoint of light devices in an aggregator's or a leaf's process: uvicorn in a thread
of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from fedrec.errors import RunError, SettingsError
from fedrec.operations.addresses import Address
from fedrec.transport.connection_limits import ConnectionLimits, bounded
from fedrec.transport.server_tls import RenewedContext
from fedrec_aggregator.core import Aggregator
from fedrec_aggregator.device_content import PublishedContent, at_address, in_folder
from fedrec_aggregator.device_intake import DeviceIntake, application
from fedrec_aggregator.settings_tables import DevicesTable

log = logging.getLogger(__name__)

_CALLS_AT_ONCE = 1_000
_LOOK_S = 0.01


@contextmanager
def device_endpoint(
    core: Aggregator, table: DevicesTable, *, request_s: float = 10.0, taken_s: float = 30.0
) -> Iterator[Address]:
    """Serve devices until the block ends. request_s, taken_s: see `ConnectionLimits`.

    Raises SettingsError where the address or the files cannot be used."""
    admitted = None if table.any_device else _admitted(Path(table.admitted))
    get = (
        at_address(table.content, ca=table.ca)
        if table.content.startswith("https:")
        else in_folder(table.folder)
    )
    intake = DeviceIntake(
        core,
        PublishedContent(get),
        admits=lambda sender: admitted is None or sender in admitted,
    )
    wanted = Address.of(table.listen)
    config = uvicorn.Config(
        application(intake),
        wanted.host,
        wanted.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=bounded(
            ConnectionLimits(
                _CALLS_AT_ONCE, table.connections_per_peer, request_s=request_s, taken_s=taken_s
            )
        ),
        lifespan="off",
        ws="none",
        ssl_certfile=table.certificate or None,
        ssl_keyfile=table.key or None,
    )
    try:
        config.load()
    except OSError as failure:  # of ssl too
        raise SettingsError(
            f"devices: the certificate cannot be used: {failure}", "Correct the files it names."
        ) from None
    server = _DeviceServer(config)
    if config.ssl is not None:
        pair = (Path(table.certificate), Path(table.key))
        server.shown = RenewedContext(config.ssl, *pair, log)
    thread = threading.Thread(target=_served, args=(server,), name="devices")
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise SettingsError(
                    f"devices.listen = {table.listen!r}: this address cannot be had",
                    "Name a free one, or port 0.",
                )
            thread.join(_LOOK_S)
        if not server.servers:
            raise RunError("the devices' endpoint did not start", "See the log.")
        yield Address(wanted.host, int(server.servers[0].sockets[0].getsockname()[1]))
    finally:
        server.should_exit = True
        thread.join()


class _DeviceServer(uvicorn.Server):
    shown: RenewedContext | None = None

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self.shown is not None:
            self.shown.look()
        return await super().on_tick(counter)


def _served(server: uvicorn.Server) -> None:
    try:
        server.run()
    except SystemExit:  # its word for an address that is taken
        return


def _admitted(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text(encoding="utf-8").split())
    except OSError as failure:
        raise SettingsError(
            f"devices.admitted: {path}: {failure.strerror or failure}",
            "Name a file of senders, one a line.",
        ) from None
