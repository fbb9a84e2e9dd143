"""Settings of the person who runs a client, in one TOML file: data, limit, whom to trust, where
things are kept.

Relative paths start at the file's folder. `EXAMPLE` is a complete file with mutual TLS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fedrec.data.kinds import KINDS, assumed
from fedrec.operations.party_settings import (
    AggregatorAccess,
    AggregatorOfThree,
    FilePath,
    PartyTable,
    PinnedTable,
    pinned,
    require_pin,
    require_three,
    three_pinned,
)
from fedrec.operations.settings_files import checked, read
from fedrec.privacy.guarantee import Guarantee
from fedrec.settings_tables.data import Epsilon

NEWS_FORMATS = ("mind", "news-shard")
"""Values of data.format that are about news."""
EXAMPLE = """
name = "library"
state = "/var/lib/fedrec/client"

[data]
path = "/srv/ratings.csv"
rating_range = [1, 5]

[data.columns]
user = "reader"
item = "book"
rating = "stars"

[privacy]
max_epsilon = 5.0
delta = 1e-5

[aggregator]
address = "aggregator.example.org:7001"
ca = "/etc/fedrec/ca.pem"
pin = "0000000000000000000000000000000000000000000000000000000000000000"
certificate = "/etc/fedrec/client-library.pem"
key = "/etc/fedrec/client-library.key"

[server]
address = "server.example.org:7002"
ca = "/etc/fedrec/ca.pem"
pin = "0000000000000000000000000000000000000000000000000000000000000000"
certificate = "/etc/fedrec/client-library.pem"
key = "/etc/fedrec/client-library.key"
"""


class ClientData(PartyTable):
    """Where the events of this site's users are; they are never written anywhere else."""

    path: FilePath = Field(min_length=1, description="file or folder of the data")
    format: str = Field(
        "auto",
        description=(
            "auto, shard, or a format that `fedrec data formats` lists; of news: mind or news-shard"
        ),
    )
    kind: Literal["auto", "ratings", "clicks"] = Field(
        "auto", description="what to take part with; clicks may be made from ratings"
    )
    click_threshold: float = Field(0.0, description="the lowest rating that counts as a click")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "column names of tables: user, item, rating, timestamp; without a header, numbers "
            "from 1"
        ),
    )
    separator: str = Field(
        "",
        description=(
            "of tables: tab, comma, semicolon, space, pipe, :: or a character; empty takes the "
            "suffix's, or guesses"
        ),
    )
    header: Literal["auto", "yes", "no"] = Field(
        "auto", description="of tables: whether the first line names the columns; auto guesses"
    )
    rating_range: tuple[float, float] | None = Field(
        None, description="lowest and highest rating, where the format has no public scale"
    )
    duplicates: Literal["auto", "refuse", "last", "mean"] = Field(
        "auto",
        description=(
            "what to do with a second row of one user and item; auto merges clicks, and refuses "
            "ratings"
        ),
    )
    out_of_range: Literal["refuse", "clip"] = Field(
        "refuse", description="what to do with ratings off the scale, the file's or the run's"
    )

    def reader_options(self) -> dict[str, object]:
        """Keywords for `fedrec.data.read`: only what differs from the reader's own defaults."""
        options: dict[str, object] = dict(self.columns)
        for name, usual in (
            ("duplicates", "auto"),
            ("out_of_range", "refuse"),
            ("separator", ""),
            ("header", "auto"),
        ):
            if (value := getattr(self, name)) != usual:
                options[name] = value
        # of ratings too: what counts is whether, not how often
        if self.duplicates == "auto" and not KINDS[assumed(self.kind)].rated:
            options["duplicates"] = "last"
        return (
            options if self.rating_range is None else {**options, "rating_range": self.rating_range}
        )


class ClientPrivacy(PartyTable):
    """What may be spent in all runs together by each user of this site.

    The default is one run of the default scenario."""

    max_epsilon: Epsilon = Field(
        5.0, description='the most, over all runs; "inf" takes part in runs without privacy'
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="at which max_epsilon is stated")
    personal_epsilon: Epsilon = Field(
        math.inf,
        description="the most that one run may cost each user here, at delta: in a run that "
        "announces limits, reports count as the largest announced one that is not above this says, "
        "and the ledger is charged that; other runs above it are refused",
    )
    allow_not_established: bool = Field(
        False,
        description=(
            "take part where a guarantee is kept for reproduction and its proof does not hold"
        ),
    )

    unit: Literal["user", "click"] = Field(
        "user",
        description=(
            "what max_epsilon protects: a user, towards an aggregator; or one click exchanged "
            "for another, noised here"
        ),
    )
    max_user_epsilon: Epsilon = Field(
        math.inf,
        description=(
            "news: the most over all runs per user (replace), for a full history and the most "
            "labels of anybody here"
        ),
    )
    open_categories: tuple[str, ...] = Field(
        (), description="news: categories whose clicks may leave as they are, where a run asks"
    )

    @property
    def limit(self) -> Guarantee:
        """The limit as a guarantee."""
        return Guarantee(
            self.max_epsilon,
            self.delta,
            self.unit,
            "add/remove" if self.unit == "user" else "replace",
        )


class ServerAccess(PartyTable):
    """The server, whose messages come to this client."""

    address: str = Field(description="host:port")
    ca: FilePath = Field("", description="file of the authority that vouches for the server")
    pin: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256 of the server's public key (or certificate)",
    )
    pins: FilePath = Field(
        "",
        description="file that the pin is of: where it changes, the next connection expects that",
    )
    certificate: FilePath = Field(
        "", description="this client's certificate, which the server knows it by"
    )
    key: FilePath = Field("", description="its private key")
    insecure: bool = Field(False, description="no TLS; on loopback only")

    @model_validator(mode="after")
    def _one_way(self) -> ServerAccess:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a certificate and its key come together")
        if bool(self.certificate) == self.insecure:
            raise ValueError(
                "the server knows clients by certificate: give certificate and key, or insecure "
                "on one machine"
            )
        if self.certificate:
            require_pin("server", self.address, self.pin)
        return self

    def called_by(self, name: str) -> dict[str, Any]:
        """The fields of an `Access`, for a client of that name."""
        return self.model_dump() | {"name": name, "party": "server"}


class ClientSettings(PinnedTable):
    """One client."""

    former: ClassVar[Mapping[str, str]] = {
        "superlink": "server",
        "server.root_certificates": "ca",
    }

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="how server and aggregator know this client",
    )
    state: FilePath = Field(
        min_length=1, description="folder of the ledger and of what is known about runs"
    )
    own_head: FilePath = Field(
        "",
        description="file outside of state that keeps the newest head of this client's own ledger: "
        "a state folder that is put back, by one entry too, is refused then",
    )
    data: ClientData
    privacy: ClientPrivacy = ClientPrivacy()
    aggregator: AggregatorAccess | None = Field(
        None, description='needed where privacy.unit = "user", unless there are three'
    )
    aggregators: tuple[AggregatorOfThree, ...] = Field(
        (),
        description="in place of aggregator: three, in the order of their places; this client then "
        "takes part in three-party runs only (docs/three-party.md; not yet reviewed from outside)",
    )
    server: ServerAccess
    users_per_batch: int = Field(
        256, ge=1, le=65_536, description="most reports in one message to the aggregator"
    )
    idle_s: float = Field(
        120.0,
        ge=0,
        le=86_400,
        description=(
            "how long data and ledger stay open, and in memory, when nothing is asked; the next "
            "message opens them again"
        ),
    )
    keep_sent: bool = Field(
        False, description="keep every report that leaves in the state folder, for `fedrec inspect`"
    )
    rehearsal_seed: int | None = Field(
        None,
        ge=0,
        description=(
            "news: seed of noise that anybody can take off again, for a rehearsal; leave it out: "
            "the noise is secret"
        ),
    )
    metrics: str = Field(
        "", description="host:port of Prometheus metrics; port 0 picks one; empty for none"
    )
    log: FilePath = Field("", description="file of JSON lines; empty for standard error")

    @classmethod
    def with_pins(cls, content: dict[str, Any], pins: Mapping[str, str]) -> dict[str, Any]:
        """The aggregator's key, and the server's."""
        content = three_pinned(content, pins)
        return pinned(pinned(content, "aggregator", "aggregator", pins), "server", "server", pins)

    @property
    def seen(self) -> Path | None:
        """Second head file of the ledger."""
        return Path(self.own_head) if self.own_head else None

    @property
    def three(self) -> bool:
        """Whether it takes part with three aggregators."""
        return bool(self.aggregators)

    @model_validator(mode="after")
    def _one_way_to_noise(self) -> ClientSettings:
        if math.isfinite(self.privacy.personal_epsilon) and (
            self.privacy.unit != "user" or self.three
        ):
            raise ValueError(
                "privacy.personal_epsilon is of reports to one aggregator, of users' ratings "
                "or clicks"
            )
        if self.privacy.unit == "user" and math.isfinite(self.privacy.max_user_epsilon):
            raise ValueError(
                "privacy.max_user_epsilon is about news: max_epsilon is per user already"
            )
        if self.seen is not None and self.seen.is_relative_to(self.state):
            raise ValueError("own_head must lie outside of state, which may be put back as a whole")
        news = self.data.format in NEWS_FORMATS
        require_three(self.aggregators)
        if self.aggregator is not None and self.aggregators:
            raise ValueError(
                "aggregator is one that sums alone, aggregators are three: give one of the two"
            )
        if self.privacy.unit == "user" and self.aggregator is None and not self.aggregators:
            raise ValueError(
                'privacy.unit = "user" needs the table aggregator, or three '
                "aggregators: noise is added there"
            )
        if self.privacy.unit == "click" and not news:
            raise ValueError(
                'privacy.unit = "click" is about news: data.format must be one of '
                f"{', '.join(NEWS_FORMATS)}"
            )
        if self.rehearsal_seed is not None and self.privacy.unit != "click":
            raise ValueError(
                'rehearsal_seed is of noise made here, which needs privacy.unit = "click"'
            )
        return self


def load(path: Path) -> ClientSettings:
    """Read a settings file.

    Raises SettingsError naming the first wrong key, what it must be and what was found."""
    return read(path, ClientSettings)


def validated(
    content: dict[str, Any], *, folder: Path = Path(), source: str = "settings"
) -> ClientSettings:
    """Settings from a table; relative paths start at `folder`. Raises SettingsError."""
    return checked(content, ClientSettings, folder=folder, source=source)
