"""Settings of the person who runs a server, in one TOML file: public data, whom to wait for, where
the others are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from fedrec.errors import SettingsError
from fedrec.federation.round_driver import Patience
from fedrec.operations.addresses import Address
from fedrec.operations.party_settings import (
    AggregatorAccess,
    AggregatorOfThree,
    FilePath,
    PinnedTable,
    pinned,
    require_callers,
    require_three,
    three_pinned,
)
from fedrec.operations.pins import of_role
from fedrec.operations.settings_files import checked, read
from fedrec_server.gathering import Gathering
from fedrec_server.settings_tables import (
    DevicesTable,
    GatheringTable,
    LinkTable,
    PublicTable,
    PublishTable,
    RoundsTable,
)

EXAMPLE = """
state = "/var/lib/fedrec/server"

[public]
path = "/srv/books.csv"
format = "table"
id_column = "book"
rating_range = [1, 5]

[gathering]
expected_users = 6040
min_clients = 2

[rounds]
timeout_s = 600

[aggregator]
address = "aggregator.example.org:7001"
ca = "/etc/fedrec/ca.pem"
pin = "0000000000000000000000000000000000000000000000000000000000000000"
certificate = "/etc/fedrec/server.pem"
key = "/etc/fedrec/server.key"

[link]
listen = "0.0.0.0:7002"
certificate = "/etc/fedrec/server.pem"
key = "/etc/fedrec/server.key"
client_ca = "/etc/fedrec/ca.pem"
"""


class ServerSettings(PinnedTable):
    """One server."""

    former: ClassVar[Mapping[str, str]] = {"superlink": "link"}

    state: FilePath = Field(
        min_length=1, description="folder of the run: checkpoints, releases, the model"
    )
    public: PublicTable
    gathering: GatheringTable = GatheringTable()
    rounds: RoundsTable = RoundsTable()
    aggregator: AggregatorAccess | None = Field(
        None, description="needed but for news that is noised on devices"
    )
    aggregators: tuple[AggregatorOfThree, ...] = Field(
        (),
        description="in place of aggregator: three, in the order of their places, for scenarios "
        "with privacy.aggregation = three-party (docs/three-party.md; not yet reviewed from "
        "outside)",
    )
    link: LinkTable
    devices: DevicesTable = DevicesTable()
    publish: PublishTable = PublishTable()
    seen_ledger: FilePath = Field(
        "",
        description=(
            "file with the newest head of the aggregator's ledger, the same for all runs; empty: "
            "in the state folder"
        ),
    )
    run: str = Field(
        "",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$",
        description="id of the run; empty makes one, once",
    )
    warm_start: bool = Field(
        True,
        description=(
            "begin a further training with the release of the last one, where the recipe can"
        ),
    )
    rehearsal: bool = Field(
        False,
        description=(
            "news: clients' noise is seeded (rehearsal_seed), so that the bundle is called an "
            "experiment"
        ),
    )
    metrics: str = Field(
        "", description="host:port of Prometheus metrics; port 0 picks one; empty for none"
    )
    log: FilePath = Field("", description="file of JSON lines; empty for standard error")

    @classmethod
    def with_pins(cls, content: dict[str, Any], pins: Mapping[str, str]) -> dict[str, Any]:
        """The aggregator's key, and the clients'."""
        link = content.get("link")
        if isinstance(link, dict) and link.get("certificate"):
            callers = of_role(pins, "client")
            if "clients" not in link:
                require_callers(callers, "client")
            content |= {"link": {"clients": callers} | link}
        return three_pinned(pinned(content, "aggregator", "aggregator", pins), pins)

    @model_validator(mode="after")
    def _one_or_three(self) -> ServerSettings:
        require_three(self.aggregators)
        if self.aggregator is not None and self.aggregators:
            raise ValueError(
                "aggregator is one that sums alone, aggregators are three: drop one or the other"
            )
        if self.devices.users and (self.aggregators or self.rounds.cohort < 1):
            raise ValueError(
                "devices report to one aggregator or its leaves, in every round: leave out "
                "aggregators and rounds.cohort"
            )
        return self

    def whom_to_wait_for(self) -> Gathering:
        """The gathering table as what `run_rounds` takes."""
        chosen = self.gathering
        return Gathering(chosen.expected_users, chosen.min_clients, chosen.timeout_s)

    def patience(self) -> Patience:
        """The rounds table as what `run_rounds` takes."""
        chosen = self.rounds
        return Patience(
            chosen.timeout_s,
            chosen.attempts,
            chosen.pause_s,
            chosen.short_attempts,
            chosen.min_share,
        )


def load(path: Path) -> ServerSettings:
    """Read a settings file.

    Raises SettingsError naming the first wrong key, what it must be and what was found."""
    return read(path, ServerSettings)


def validated(content: dict[str, Any], *, folder: Path = Path(), source: str) -> ServerSettings:
    """Settings from a table; relative paths start at `folder`. Raises SettingsError."""
    return checked(content, ServerSettings, folder=folder, source=source)


def address_of(text: str, key: str) -> Address:
    """The address that a key of the settings gives. Raises SettingsError."""
    try:
        return Address.of(text)
    except ValueError as failure:
        raise SettingsError(f"{key}: {failure}", "Correct it in the server's settings.") from None
