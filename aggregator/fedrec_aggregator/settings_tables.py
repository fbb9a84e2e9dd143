"""Tables of an aggregator's settings, one per concern."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedrec.federation.report_batches import MAX_EVENTS_PER_USER
from fedrec.operations.addresses import Address
from fedrec.operations.party_settings import PartyTable
from fedrec_aggregator.opening_checks import Limits

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def resolved(value: Path, info: ValidationInfo) -> Path:
    """A path of the file, from the file's own folder."""
    base = (info.context or {}).get("folder", Path())
    return Path(base) / value.expanduser()


def _epsilon(value: object) -> object:
    return (
        math.inf
        if isinstance(value, str) and value.strip().lower() in {"inf", "infinity"}
        else value
    )


FilePath = Annotated[Path, AfterValidator(resolved)]


class TlsSettings(PartyTable):
    """The aggregator's own certificate, and whose certificates it takes."""

    certificate: FilePath = Field(description="PEM, the aggregator's certificate first")
    key: FilePath = Field(description="PEM, its private key")
    client_ca: FilePath | None = Field(
        None, description="PEM; when set, every caller must show a certificate of this authority"
    )


class PeerTable(PartyTable):
    """One of the other two of three aggregators: where it is, and by which key it is known, also
    when it calls."""

    place: Literal[1, 2, 3] = Field(description="its place")
    address: str = Field(min_length=1, description="host:port")
    name: str = Field(
        "", description="as in its certificate, fedrec:aggregator:<name>; empty: its place"
    )
    pin: str = Field("", pattern=r"^([0-9a-f]{64})?$", description="SHA-256 of its public key")
    ca: FilePath | None = Field(
        None, description="file of the authority that vouches for it; without it the pin alone"
    )


class ThreePartyTable(PartyTable):
    """This aggregator as one of three, of which any two must be honest; not yet reviewed from
    outside (docs/three-party.md)."""

    place: Literal[1, 2, 3] = Field(
        description="this one's place, the same in all parties' settings"
    )
    peers: tuple[PeerTable, PeerTable] = Field(description="the other two")


class ClientEntry(PartyTable):
    """One client that may enrol users."""

    name: Name = Field(description="as in its certificate or beside its token")
    max_users: int | None = Field(
        None, ge=1, description="users it may enrol; without it limits.max_users_per_sender"
    )


class TokenEntry(PartyTable):
    """A bearer token, known by its hash alone."""

    role: Literal["client", "server"] = Field(description="what its bearer may do")
    name: Name = Field(description="who its bearer is")
    sha256: Sha256 = Field(description="SHA-256 of the token, 64 hexadecimal digits")


class DevicesTable(PartyTable):
    """The endpoint of light devices (docs/scale.md)."""

    listen: str = Field(description="host:port of HTTPS; port 0 picks one")
    content: str = Field(
        min_length=1,
        description="the folder that the server publishes to, or an https address that serves it",
    )
    ca: str = Field(
        "", description="file of the authority that vouches for that address; empty: the system's"
    )
    certificate: str = Field(
        "",
        description=(
            "certificate of the endpoint; empty: plain HTTP, on loopback behind a reverse proxy"
        ),
    )
    key: str = Field("", description="its private key")
    admitted: str = Field(
        "",
        description="file of devices that may take part, device-<32 hexadecimal digits> one a line",
    )
    any_device: bool = Field(
        False, description="every device may take part: nothing says that a device is a person"
    )
    connections_per_peer: int = Field(
        64,
        ge=1,
        description="open connections of one address on another machine; more for a proxy there",
    )

    @property
    def folder(self) -> Path:
        """The content's, where it is one."""
        return Path(self.content)

    @field_validator("content", "ca", "certificate", "key", "admitted")
    @classmethod
    def _from_the_files_folder(cls, value: str, info: ValidationInfo) -> str:
        return (
            value if not value or value.startswith("https:") else str(resolved(Path(value), info))
        )

    @model_validator(mode="after")
    def _safe(self) -> DevicesTable:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("devices: a certificate and its key come together")
        if not self.certificate and not Address.of(self.listen).loopback:
            raise ValueError(
                "devices: secrets need TLS: give certificate and key, or listen on loopback "
                "behind a reverse proxy"
            )
        if self.any_device == bool(self.admitted):
            raise ValueError(
                "devices: give the file of those that are admitted, or any_device = true"
            )
        return self


class PostgresTable(PartyTable):
    """The ledger in PostgreSQL instead of the state folder (docs/scale.md)."""

    conninfo: str = Field(
        min_length=1,
        description=(
            "libpq connection string, such as service=fedrec; its password in a password file"
        ),
    )
    lease_s: float = Field(
        15.0, ge=0.5, description="a standby takes over from a holder not heard of for so long"
    )
    standby: bool = Field(
        False, description="wait while another process holds the ledger, instead of stopping"
    )

    @field_validator("conninfo")
    @classmethod
    def _no_password(cls, value: str) -> str:
        if re.search(r"\bpassword\s*=|://[^/@]*:[^/@]*@", value):
            raise ValueError(
                "postgres.conninfo: a password does not belong into settings: put it into "
                "~/.pgpass, or name its file (passfile=)"
            )
        return value


class PrivacySettings(PartyTable):
    """What this aggregator may release at all, over every run in its ledger."""

    max_epsilon: Annotated[float, BeforeValidator(_epsilon), Field(gt=0)] = Field(
        description='limit of everything ever released; "inf" sets none'
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="at which epsilon is stated")
    unit: Literal["user", "example"] = Field("user", description="whom the limit protects")
    without_noise: bool = Field(
        False, description='take plans without noise; needs max_epsilon = "inf"'
    )
    noise: Literal["system", "seeded"] = Field(
        "system", description="seeded noise can be drawn again by anybody: simulations only"
    )
    seed: int = Field(0, ge=0, description="of seeded noise")


class TrafficSettings(PartyTable):
    """What peers may use of this process at once, together and each."""

    max_uploads: int = Field(
        64, ge=1, description="batches being received or waiting, of all clients"
    )
    max_uploads_per_client: int = Field(4, ge=1, description="... and of one client")
    max_calls_per_server: int = Field(8, ge=1, description="calls of one server at once")
    max_upload_bytes: int = Field(
        64 * 2**20,
        ge=2**20,
        description="announced bytes of all batches being received or waiting; of one client at "
        "most half of what the others leave",
    )
    upload_timeout_s: float = Field(
        60.0, gt=0, description="from a batch's first frame to its last"
    )
    request_timeout_s: float = Field(
        10.0, gt=0, description="for a request's first message to arrive"
    )
    download_timeout_s: float = Field(600.0, gt=0, description="for a release to be taken")
    stop_grace_s: float = Field(
        20.0, ge=0, description="for calls that run when the process is told to stop"
    )


class LimitSettings(PartyTable):
    """Limits in the settings file; `opening_checks.Limits` says what each bound is for."""

    min_cohort: int = Field(100, ge=1)
    max_users_per_sender: int = Field(100_000, ge=1)
    max_users_per_batch: int = Field(4_096, ge=1)
    max_events_per_user: int = Field(MAX_EVENTS_PER_USER, ge=1)
    max_batch_bytes: int = Field(16 * 2**20, ge=1_024)
    max_round_s: float = Field(3_600.0, gt=0)
    max_accumulator_bytes: int = Field(2**29, ge=1)
    max_shares_bytes: int = Field(2**34, ge=1)
    allow_not_established: bool = False

    def limits(self) -> Limits:
        """Limits as the core takes them."""
        return Limits(**self.model_dump())
