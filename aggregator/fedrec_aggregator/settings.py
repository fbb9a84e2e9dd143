"""Settings of the operator of an aggregator, in one TOML file. Unknown keys are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from fedrec.operations.addresses import Address
from fedrec.operations.party_settings import (
    PinnedTable,
    require_callers,
    require_three_keys,
    with_pin,
)
from fedrec.operations.pins import of_role
from fedrec.operations.settings_files import checked, read
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams, SystemStreams
from fedrec_aggregator.settings_tables import (
    ClientEntry,
    DevicesTable,
    FilePath,
    LimitSettings,
    Name,
    PostgresTable,
    PrivacySettings,
    Sha256,
    ThreePartyTable,
    TlsSettings,
    TokenEntry,
    TrafficSettings,
)

EXAMPLE = """\
listen = "0.0.0.0:50051"             # port 0: a free one, written to address.json in state
state = "/var/lib/fedrec/aggregator" # the ledger and the releases; one aggregator per folder
metrics = "127.0.0.1:9101"           # GET /metrics; empty for none
log = "/var/log/fedrec/aggregator.jsonl" # empty for standard error
servers = ["server"]                 # names of the servers that may open rounds
any_client = false                   # true: all clients with a certificate of the authority

[tls]
certificate = "aggregator.pem"       # relative paths start at this file's folder
key = "aggregator-key.pem"
client_ca = "ca.pem"                 # mutual TLS: whose certificates are taken; none with tokens

[[clients]]
name = "hospital"
max_users = 6000

[[clients]]
name = "library"
max_users = 3000

[privacy]
max_epsilon = 5.0                    # over all that it ever releases; "inf" sets no limit
delta = 1e-5

[limits]
min_cohort = 100                     # fewer users than this: nothing is released
max_round_s = 3600.0

[traffic]
max_uploads = 64
"""
"""A complete file with mutual TLS."""


class AggregatorSettings(PinnedTable):
    """One aggregator. `EXAMPLE` is a complete file."""

    listen: str = Field(description="host:port; port 0 takes a free one")
    state: FilePath = Field(description="folder of the ledger and the releases")
    metrics: str = Field("", description="host:port for Prometheus; empty for none")
    log: FilePath | None = Field(None, description="file of JSON lines; without it standard error")
    simulation: bool = Field(
        False,
        description="a rehearsal: seeded noise is allowed, and nothing is promised to anybody",
    )
    insecure: bool = Field(
        False,
        description="no TLS, callers are believed who they say they are; loopback addresses only",
    )
    releases_of_runs: int = Field(
        8,
        ge=1,
        description=(
            "runs that were released to last, whose releases are all kept; of an earlier run the "
            "newest release alone"
        ),
    )
    any_client: bool = Field(False, description="take clients that are not listed too")
    servers: tuple[Name, ...] = Field(("server",), description="servers that may open rounds")
    keys: dict[str, Sha256] = Field(
        {},
        description=(
            'SHA-256 of public keys by identity, "fedrec:client:hospital": with any, no other '
            "caller is known; pins fills it"
        ),
    )
    tls: TlsSettings | None = None
    clients: tuple[ClientEntry, ...] = ()
    tokens: tuple[TokenEntry, ...] = ()
    privacy: PrivacySettings
    three_party: ThreePartyTable | None = Field(
        None, description="set where this is one of three aggregators (docs/three-party.md)"
    )
    postgres: PostgresTable | None = Field(
        None, description="the ledger in PostgreSQL; without it, in files in state"
    )
    devices: DevicesTable | None = Field(None, description="the endpoint of light devices")
    limits: LimitSettings = LimitSettings()
    traffic: TrafficSettings = TrafficSettings()

    @classmethod
    def with_pins(cls, content: dict[str, Any], pins: Mapping[str, str]) -> dict[str, Any]:
        """The keys of clients and servers."""
        callers = {
            name: pin for name, pin in pins.items() if not name.startswith("fedrec:aggregator:")
        }
        if not any(content.get(name) for name in ("insecure", "tokens")) and "keys" not in content:
            require_callers(callers, "client and no server")
        three = content.get("three_party")
        known = of_role(pins, "aggregator")
        if (
            isinstance(three, dict)
            and isinstance(peers := three.get("peers"), list)
            and not content.get("insecure")
        ):
            filled = [
                with_pin(peer, str(peer.get("place")) if isinstance(peer, dict) else "", known)
                for peer in peers
            ]
            content |= {"three_party": three | {"peers": filled}}
        return {"keys": callers} | content

    @field_validator("log", mode="before")
    @classmethod
    def _no_log(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("listen", "metrics")
    @classmethod
    def _address(cls, value: str) -> str:
        return str(Address.of(value)) if value else value

    @model_validator(mode="after")
    def _combinations(self) -> AggregatorSettings:
        if self.privacy.noise == "seeded" and not self.simulation:
            raise ValueError(
                'privacy.noise = "seeded" needs simulation = true: whoever knows the seed '
                "can take the noise away"
            )
        if self.privacy.without_noise and math.isfinite(self.privacy.max_epsilon):
            raise ValueError('privacy.without_noise needs max_epsilon = "inf"')
        if len({client.name for client in self.clients}) != len(self.clients):
            raise ValueError("clients: every name once")
        if self.keys and self.any_client:
            raise ValueError(
                "any_client lets in callers whose keys are not known: leave out pins, or any_client"
            )
        if self.limits.max_batch_bytes > self.traffic.max_upload_bytes // 2:
            raise ValueError(
                "limits.max_batch_bytes must fit half of traffic.max_upload_bytes, which is one "
                "client's share, or no such batch is ever taken"
            )
        self._check_credentials()
        self._check_three()
        if self.postgres and self.three_party:
            raise ValueError(
                "postgres is for an aggregator that sums alone: leave the table out here"
            )
        if self.devices and self.three_party:
            raise ValueError(
                "devices report to an aggregator that sums alone: leave the table devices out here"
            )
        return self

    def _check_three(self) -> None:
        if (three := self.three_party) is None:
            return
        if {three.place, *(peer.place for peer in three.peers)} != {1, 2, 3}:
            raise ValueError(
                "three_party: this aggregator and its peers have the places 1, 2 and 3"
            )
        if self.tokens:
            raise ValueError(
                "three_party needs mutual TLS (tls.client_ca): the other aggregators show "
                "certificates"
            )
        if self.insecure:
            if any(peer.pin for peer in three.peers) or not all(
                Address.of(peer.address).loopback for peer in three.peers
            ):
                raise ValueError(
                    "three_party: insecure = true is for peers on loopback, without pins"
                )
        else:
            require_three_keys([*(peer.pin for peer in three.peers), "this one's"], insecure=False)

    def _check_credentials(self) -> None:
        if self.insecure:
            if not Address.of(self.listen).loopback:
                raise ValueError(
                    "insecure = true is for loopback addresses only: others could pose as a "
                    "client or read reports"
                )
            if self.tls or self.tokens:
                raise ValueError(
                    "insecure = true leaves tls and tokens without effect: drop one or the other"
                )
        elif self.tls is None:
            raise ValueError(
                "tls is missing: give a certificate, or insecure = true on a loopback "
                "address for a trial"
            )
        elif (self.tls.client_ca is None) == (not self.tokens):
            raise ValueError(
                "callers show either certificates (tls.client_ca) or tokens: give one of the two"
            )

    @property
    def limit(self) -> Guarantee | None:
        """The operator's limit over all runs: None for no limit on private runs; infinite epsilon
        allows runs without noise too."""
        privacy = self.privacy
        if math.isfinite(privacy.max_epsilon) or privacy.without_noise:
            return Guarantee(privacy.max_epsilon, privacy.delta, privacy.unit)
        return None

    @property
    def noise(self) -> Streams | SystemStreams:
        """Where noise comes from."""
        return Streams(self.privacy.seed) if self.privacy.noise == "seeded" else SystemStreams()


def load(path: Path) -> AggregatorSettings:
    """Read a settings file.

    Raises SettingsError naming the first wrong key, what it must be and what was found."""
    return read(path, AggregatorSettings)


def validated(
    content: dict[str, Any], *, folder: Path = Path(), source: str = "settings"
) -> AggregatorSettings:
    """Settings from a table; relative paths start at `folder`. Raises SettingsError."""
    return checked(content, AggregatorSettings, folder=folder, source=source)
