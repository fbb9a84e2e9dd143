"""Protocols: what all rows of one table share: data, split, largest delta, headline metric, and the
settings that they leave no choice.

A protocol is a TOML file. Those in `protocols/` come with fedrec; a folder of rows may hold more.
Where the data were at hand its split is known by the digest of its parts, and a row must have that
one. Elsewhere the number of rows read is known from the data's own description, and rows are ranked
only among those of one split.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedrec.errors import DataError

SHIPPED = Path(__file__).parent / "protocols"
SHA256 = r"^[0-9a-f]{64}$"
_NAME = r"^[a-z0-9][a-z0-9.-]{0,63}$"


class Strict(BaseModel):
    """Unknown keys are refused, values frozen, infinity allowed and written as a string."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=True, ser_json_inf_nan="strings"
    )


class ProtocolData(Strict):
    """Which data: `rows` is how many lines of ratings, clicks or impressions its files have, 0
    where a row need not say."""

    title: str = Field(min_length=1)
    source: str = Field(min_length=1)
    rows: int = Field(0, ge=0)


class ProtocolSplit(Strict):
    """How it is divided: `settings.json` of a run has this kind and seed.

    `sha256`: of the parts; empty where it is not known yet."""

    kind: str
    seed: int = Field(1, ge=0)
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")


class Protocol(Strict):
    """One table of the leaderboard."""

    name: str = Field(pattern=_NAME)
    title: str = Field(min_length=1)
    data: ProtocolData
    split: ProtocolSplit
    largest_delta: float = Field(ge=0, lt=1)
    metric: str = Field(min_length=1)
    best: Literal["lowest", "highest"]
    also: tuple[str, ...] = ()
    least_seeds: int = Field(3, ge=2)
    settings: dict[str, Any] = Field(
        default_factory=dict, description='"table.key" = value, as a run must have it'
    )
    rules: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _metrics_once(self) -> Protocol:
        if self.metric in self.also:
            raise ValueError(f"{self.metric} is the headline metric and among `also`: name it once")
        return self


def read_protocol(path: Path) -> Protocol:
    """Raises DataError naming the file, the first wrong key and what was found."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise DataError(f"{path}: {failure.strerror or failure}", "Give a protocol file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise DataError(
            f"{path} is not TOML: {failure}", "Correct the line; strings need quotes."
        ) from None
    try:
        return Protocol.model_validate(content)
    except ValidationError as failure:
        raise DataError(
            f"{path}: {first_of(failure)}", "docs/leaderboard.md lists the keys of a protocol."
        ) from None


def protocols(folders: Sequence[Path] = ()) -> dict[str, Protocol]:
    """Those that come with fedrec, then those in `folders`, by name.

    Raises DataError on two of one name that differ."""
    found = dict[str, Protocol]()
    for path in (path for folder in (SHIPPED, *folders) for path in sorted(folder.glob("*.toml"))):
        protocol = read_protocol(path)
        if found.setdefault(protocol.name, protocol) != protocol:
            raise DataError(
                f"{path}: another protocol is called {protocol.name}", "Give it another name."
            )
    return found


def first_of(failure: ValidationError) -> str:
    """The first complaint in one line: which key, what it must be, what was found."""
    first = failure.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"there is no key {key}"
    found = "" if isinstance(first["input"], dict | BaseModel) else f", found {first['input']!r}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}{found}".removeprefix(": ")
