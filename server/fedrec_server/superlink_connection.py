"""SuperLink of a server: a child behind the server's fleet proxy, or one that runs already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, Self

from fedrec.errors import SettingsError
from fedrec_server.executor import AppRunner
from fedrec_server.fleet_listener import FleetListener
from fedrec_server.fleet_proxy import Certificate, FleetLimits
from fedrec_server.flower import Owner
from fedrec_server.flower_rounds import Runner
from fedrec_server.settings import address_of
from fedrec_server.settings_tables import SuperLinkTable
from fedrec_server.superlink import SuperLink


class Connection(Protocol):
    """A server's way to a SuperLink, as long as the context."""

    def __enter__(self) -> Self:
        """Begin; the SuperLink may still be starting."""

    def __exit__(self, *exception: object) -> None:
        """End what was started."""

    def up(self, sleep: Callable[[float], None], *, changed: Callable[[], object]) -> Runner:
        """What runs apps there, once it answers; `changed` is told when the SuperLink is another
        process."""

    @property
    def owner(self) -> Owner | None:
        """Which client a node is, None where nodes are believed."""

    def wake(self, nodes: Iterable[int]) -> None:
        """There are messages for these nodes."""

    @property
    def proxy(self) -> str:
        """Where our clients connect, "" for nowhere."""

    @property
    def superlink(self) -> str:
        """Where Flower listens, "" where that is not known."""

    @property
    def superlink_pid(self) -> int:
        """Process id of a SuperLink that was started here, else 0."""


class SuperLinkConnection:
    """The SuperLink of a run: a child behind our proxy, or one that runs already.

    A context that ends what was started here."""

    def __init__(self, table: SuperLinkTable, folder: Path) -> None:
        self._table = table
        self._stack = ExitStack()
        database = (
            Path(table.database) if table.database else folder / "flower" / "superlink.sqlite"
        )
        self._child = SuperLink(folder / "flower", database) if table.start else None
        self._proxy: FleetListener | None = None

    def __enter__(self) -> Self:
        """Begin; the SuperLink may still be starting."""
        if self._child:
            self._proxy = self._stack.enter_context(_proxy(self._table, self._child))
            self._stack.enter_context(self._child)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def up(self, sleep: Callable[[float], None], *, changed: Callable[[], object]) -> AppRunner:
        """What runs apps at the SuperLink, once it answers.

        `changed` is told whenever the child is another."""
        if self._child:
            self._child.changed = changed
            self._child.wait_until_up()
            return AppRunner(self._child.address, self._child.secret, sleep=sleep)
        certificates = (
            _file(self._table.root_certificates, "superlink.root_certificates")
            if self._table.root_certificates
            else None
        )
        if (
            certificates is None
            and not address_of(self._table.address, "superlink.address").loopback
        ):
            raise SettingsError(
                f"plain HTTP to a SuperLink at {self._table.address}",
                "Give superlink.root_certificates.",
            )
        return AppRunner(
            self._table.address,
            _file(self._table.secret, "superlink.secret"),
            certificates,
            sleep=sleep,
        )

    @property
    def owner(self) -> Owner | None:
        """Which client a node is, where the proxy asks for certificates."""
        return self._proxy.owner if self._proxy and self._proxy.certificate else None

    def wake(self, nodes: Iterable[int]) -> None:
        """There are messages for these nodes."""
        if self._proxy:
            self._proxy.wake(nodes)

    @property
    def proxy(self) -> str:
        """Where SuperNodes connect, as host:port; "" for none."""
        return str(self._proxy.address) if self._proxy else ""

    @property
    def superlink(self) -> str:
        """Where Flower listens."""
        return self._child.address if self._child else self._table.address

    @property
    def superlink_pid(self) -> int:
        """Process id of the child; 0 for none."""
        return self._child.pid if self._child else 0


def _proxy(table: SuperLinkTable, superlink: SuperLink) -> FleetListener:
    certificate = None
    if table.certificate:
        certificate = Certificate(
            Path(table.certificate), Path(table.key), Path(table.client_ca), table.clients
        )
    limits = FleetLimits(
        max_body_bytes=table.max_message_bytes, max_bytes=8 * table.max_message_bytes
    )
    return FleetListener(
        address_of(table.listen, "superlink.listen"),
        lambda: superlink.address,
        certificate,
        limits,
        holds=certificate is not None,
    )


def _file(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as failure:
        raise SettingsError(
            f"{key}: {path}: {failure.strerror or failure}",
            "Name a readable file in the server's settings.",
        ) from None
