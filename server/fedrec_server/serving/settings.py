"""Settings of the person who serves models, in one TOML file.

Every key has a value without one. Unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from fedrec.operations.addresses import Address
from fedrec.operations.party_settings import FilePath, LoggedTable, PartyTable
from fedrec.operations.settings_files import checked, read

EXAMPLE = """\
grpc = "0.0.0.0:50061"         # port 0 takes a free one; empty for none
http = "0.0.0.0:8443"          # the same; with --page also the page
log = "/var/log/fedrec/serving.jsonl" # empty for standard error
state = "/run/fedrec"          # serving.json (addresses, pid) while it runs; empty for none
metrics = "127.0.0.1:9104"     # GET /metrics for Prometheus; empty for none

[tls]
certificate = "serving.pem"    # relative paths start at this file's folder
key = "serving-key.pem"
client_ca = "ca.pem"           # mutual TLS: whose certificates are taken; none serves anybody

[models]
watch_s = 1.0                  # how often it looks for a new bundle; 0: on SIGHUP only
kept = 3                       # versions that were replaced and still answer
retire_s = 3600.0              # how long a replaced version answers

[limits]
per_second_per_peer = 200.0
"""
"""A file with mutual TLS."""


class TlsTable(PartyTable):
    """How this server shows who it is, and whether callers must."""

    certificate: FilePath = Field(min_length=1, description="PEM, the server's certificate first")
    key: FilePath = Field(min_length=1, description="PEM, its private key")
    client_ca: FilePath = Field(
        "", description="PEM; when set, every caller must show a certificate of this authority"
    )


class ModelsTable(PartyTable):
    """Versions that answer."""

    watch_s: float = Field(
        1.0,
        ge=0,
        description="how often run folders are looked at for a new bundle; 0: on SIGHUP only",
    )
    kept: int = Field(
        3,
        ge=0,
        le=100,
        description="versions that were replaced and still answer, each at its full size in memory",
    )
    retire_s: float = Field(3_600.0, ge=0, description="how long a replaced version answers")


class FetchTable(PartyTable):
    """How bundles are fetched from a server that trains elsewhere: `fedrec serve
    https://server.example.org:7003`."""

    token: FilePath = Field(
        "", description="file with the token that the server's publish table knows"
    )
    ca: FilePath = Field(
        "", description="PEM of the authority that vouches for the server; empty takes the system's"
    )
    every_s: float = Field(
        60.0, ge=0.1, description="how often the server is asked whether it has a new one"
    )
    timeout_s: float = Field(60.0, gt=0, description="for the next bytes to come")
    max_bytes: int = Field(4 * 2**30, ge=1_024, description="largest bundle that is taken")


class RankingTable(PartyTable):
    """How a catalogue is searched."""

    together: int = Field(
        32, ge=1, le=1_024, description="most queries that wait and are ranked by one product"
    )


class LimitsTable(PartyTable):
    """What callers may use of this process, together and each.

    A peer is an address; this machine's own are not limited one by one."""

    most_items: int = Field(1_000, ge=1, le=100_000, description="largest k")
    body_bytes: int = Field(64 * 2**10, ge=2**10, le=2**24, description="largest request")
    head_bytes: int = Field(
        16 * 2**10, ge=2**10, le=2**20, description="largest head of an HTTP request"
    )
    request_s: float = Field(10.0, gt=0, description="for a request to arrive whole")
    idle_s: float = Field(60.0, gt=0, description="for the next request on an open HTTP connection")
    download_s: float = Field(600.0, gt=0, description="for a bundle to be taken")
    connections: int = Field(1_024, ge=1, description="open HTTP connections")
    connections_per_peer: int = Field(
        64,
        ge=1,
        description="open HTTP connections of one peer; more for a proxy on another machine",
    )
    waiting: int = Field(1_024, ge=1, description="queries that wait to be ranked")
    wait_s: float = Field(
        2.0, gt=0, description="longest wait, as the last queries took: longer is refused"
    )
    downloads: int = Field(64, ge=1, description="bundles being taken")
    per_peer: int = Field(64, ge=1, description="requests in progress of one peer")
    per_second_per_peer: float = Field(
        200.0,
        gt=0,
        description="requests a second of one peer, after a first burst of twice as many",
    )
    loopback: bool = Field(
        False,
        description=(
            "limit peers on this machine too; off, because one of them may be a proxy for everybody"
        ),
    )
    notice_s: float = Field(
        0.5,
        ge=0,
        description=(
            "between SIGTERM, when it stops being ready, and the first request that is refused"
        ),
    )
    grace_s: float = Field(
        20.0, ge=0, description="for requests in progress when it is told to stop"
    )


class ServingSettings(LoggedTable):
    """One server. `EXAMPLE` is a file with mutual TLS."""

    grpc: str = Field(
        "127.0.0.1:50061", description="host:port of gRPC; port 0 takes a free one; empty for none"
    )
    http: str = Field(
        "127.0.0.1:8080", description="host:port of HTTP; port 0 takes a free one; empty for none"
    )
    state: FilePath = Field(
        "",
        description=(
            "folder of serving.json, which says where it listens while it runs; empty for none"
        ),
    )
    metrics: str = Field(
        "", description="host:port for Prometheus, apart from the public ports; empty for none"
    )
    log: FilePath = Field("", description="file of JSON lines; empty for standard error")
    plain: bool = Field(
        False,
        description="no TLS on an address that others can reach: for a proxy in front that has it",
    )
    tls: TlsTable | None = None
    models: ModelsTable = ModelsTable()
    fetch: FetchTable = FetchTable()
    ranking: RankingTable = RankingTable()
    limits: LimitsTable = LimitsTable()

    @field_validator("grpc", "http", "metrics")
    @classmethod
    def _address(cls, value: str) -> str:
        return str(Address.of(value)) if value else value

    @model_validator(mode="after")
    def _combinations(self) -> ServingSettings:
        listening = [address for address in (self.grpc, self.http) if address]
        if not listening:
            raise ValueError("grpc and http are both empty: name at least one address")
        if (
            self.tls is None
            and not self.plain
            and not all(Address.of(address).loopback for address in listening)
        ):
            raise ValueError(
                "tls is missing: others could read what is asked and answered; plain = true "
                "where a proxy in front has it"
            )
        return self


def load(path: Path) -> ServingSettings:
    """Read a settings file.

    Raises SettingsError naming the first wrong key, what it must be and what was found."""
    return read(path, ServingSettings)


def validated(
    content: dict[str, Any], *, folder: Path = Path(), source: str = "settings"
) -> ServingSettings:
    """Settings from a table; relative paths start at `folder`. Raises SettingsError."""
    return checked(content, ServingSettings, folder=folder, source=source)


def overridden(
    settings: ServingSettings | None, *, grpc: str | None, http: str | None
) -> ServingSettings:
    """Settings of a file or none, with the addresses of the command line where they are given.

    Raises SettingsError."""
    given = {name: value for name, value in (("grpc", grpc), ("http", http)) if value is not None}
    return validated(
        (settings.model_dump(exclude_unset=True) if settings else {}) | given,
        source="--grpc, --http",
    )
