"""Tables of settings that several parties have: paths from the file's own folder, logs, pins, and
access to aggregators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    model_validator,
)

from fedrec.operations import logs
from fedrec.operations.addresses import Address
from fedrec.operations.certificates import Role
from fedrec.operations.pins import of_role, read_pins
from fedrec.settings_tables import Table


def _from_folder(value: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder", Path())
    return str(Path(folder) / Path(value).expanduser()) if value else value


FilePath = Annotated[str, AfterValidator(_from_folder)]
"""A path that starts at the settings file's folder where it is relative; an empty one stays
empty."""


class PartyTable(Table):
    """A table of a party's settings file."""


class LoggedTable(PartyTable):
    """Settings of a party that may write its log to a file."""

    log_max_bytes: int = Field(
        logs.MAX_BYTES,
        ge=0,
        description="size at which the log file is rotated; 0 leaves that to logrotate",
    )
    log_files: int = Field(
        logs.KEPT, ge=1, le=1_000, description="how many rotated log files are kept"
    )


class PinnedTable(LoggedTable):
    """Settings of a party that may know the others' keys from a file.

    `former`: tables and keys that the version before named otherwise, and their names now."""

    former: ClassVar[Mapping[str, str]] = {}

    pins: FilePath = Field(
        "", description="file of `fedrec certs` with the SHA-256 of every party's public key"
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: Any, info: ValidationInfo) -> Any:
        if isinstance(content, dict) and isinstance(path := content.get("pins"), str) and path:
            return cls.with_pins(dict(content), read_pins(Path(_from_folder(path, info))))
        return content

    @classmethod
    def with_pins(cls, content: dict[str, Any], pins: Mapping[str, str]) -> dict[str, Any]:
        """The table with the keys of the parties that it has to do with; what stands in it already
        stays."""
        raise NotImplementedError


def pinned(
    content: dict[str, Any], table: str, role: Role, pins: Mapping[str, str]
) -> dict[str, Any]:
    """The pin of the one party of that role put into a table that has none."""
    inner = content.get(table)
    known = of_role(pins, role)
    if not isinstance(inner, dict) or inner.get("pin") or inner.get("insecure"):
        return content
    if len(known) != 1:
        raise ValueError(
            f"the pins name {len(known)} of role {role}, needed is one: say which in {table}.pin"
        )
    there = {"pin": next(iter(known.values())), "pins": content.get("pins", "")}
    return content | {table: inner | there}


def require_callers(known: Mapping[str, str], whom: str) -> None:
    """Raises ValueError where pins that were cut off name no caller: without any, everybody whom
    the authority vouches for is let in."""
    if not known:
        raise ValueError(
            f"the pins name no {whom}, and everybody whom the authority vouches for would be let "
            "in: bring the whole pins.toml"
        )


def require_pin(table: str, address: str, pin: str) -> None:
    """Raises ValueError where another machine would be believed whatever key it has."""
    try:
        if pin or Address.of(address).loopback:
            return
    except ValueError:
        return  # said where the address is used
    raise ValueError(
        f"{table} has no pin: whoever the authority vouches for would be believed. Give "
        f"pins, or {table}.pin"
    )


class AggregatorAccess(PartyTable):
    """The aggregator, and how it knows this party."""

    address: str = Field(min_length=1, description="host:port")
    ca: FilePath = Field(
        "",
        description=(
            "file of the authority that vouches for the aggregator; empty: the system's authorities"
        ),
    )
    pin: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256 of the aggregator's public key (or certificate): any other is refused",
    )
    pins: FilePath = Field(
        "",
        description="file that the pin is of: where it changes, the next connection expects that",
    )
    certificate: FilePath = Field("", description="this party's certificate, for mutual TLS")
    key: FilePath = Field("", description="its private key")
    token: FilePath = Field(
        "", description="file with this party's token, where there is no certificate"
    )
    insecure: bool = Field(False, description="no TLS; on loopback only")

    @model_validator(mode="after")
    def _pairs(self) -> AggregatorAccess:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a certificate and its key come together")
        if not self.insecure:
            require_pin("aggregator", self.address, self.pin)
        return self

    def called_by(self, name: str) -> dict[str, Any]:
        """The fields of an `Access`, for a caller of that name."""
        return self.model_dump(include=set(AggregatorAccess.model_fields)) | {"name": name}


class AggregatorOfThree(AggregatorAccess):
    """One of three aggregators."""

    name: str = Field(
        "",
        description="as in its certificate, fedrec:aggregator:<name>; empty: its place, 1, 2 or 3",
    )


def three_pinned(content: dict[str, Any], pins: Mapping[str, str]) -> dict[str, Any]:
    """The pins of three aggregators, by their names, put where the table `aggregators` has none."""
    listed = content.get("aggregators")
    known = of_role(pins, "aggregator")
    if not isinstance(listed, list):
        return content
    return content | {
        "aggregators": [
            with_pin(each, str(place), known) for place, each in enumerate(listed, start=1)
        ]
    }


def with_pin(table: Any, place: str, known: Mapping[str, str]) -> Any:
    """A table of one of three aggregators with its pin, where it is known and not given."""
    if not isinstance(table, dict) or table.get("pin") or table.get("insecure"):
        return table
    pin = known.get(table.get("name") or place)
    return table | {"pin": pin} if pin else table


def require_three(aggregators: Sequence[AggregatorOfThree]) -> None:
    """Raises ValueError unless these are none, or three that cannot be two: with a pin of its own
    each, or insecure on loopback."""
    if not aggregators:
        return
    if len(aggregators) != 3:
        raise ValueError(
            f"three-party aggregation needs three aggregators, found {len(aggregators)}"
        )
    if len({one.insecure for one in aggregators}) != 1:
        raise ValueError("aggregators: all three insecure, in a trial, or none")
    require_three_keys(
        [one.address if one.insecure else one.pin for one in aggregators],
        insecure=aggregators[0].insecure,
    )


def require_three_keys(keys: Sequence[str], *, insecure: bool) -> None:
    """Raises ValueError unless all are there and differ."""
    what = "addresses" if insecure else "pins"
    if not all(keys):
        raise ValueError(f"aggregators: each of three needs one of three {what}")
    if len(set(keys)) != 3:
        raise ValueError(
            f"aggregators: three different {what} are needed: two shares with one operator "
            "are a report"
        )


def names_of_three(aggregators: Sequence[AggregatorAccess]) -> tuple[str, ...]:
    """How they are named in a ticket: by the SHA-256 of their public keys; in an insecure trial by
    their places."""
    return tuple(one.pin or insecure_name(place) for place, one in enumerate(aggregators, start=1))


def insecure_name(place: int) -> str:
    """In place of a key's SHA-256."""
    return f"insecure-{place}"
