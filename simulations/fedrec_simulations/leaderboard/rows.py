"""Rows of the leaderboard as files: one system at one guarantee under one protocol, measured or
taken from a publication."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from fedrec.errors import DataError
from fedrec.storage import finite, write_json
from fedrec_simulations.leaderboard.protocol import SHA256, Strict, first_of

FORMAT = "fedrec-leaderboard/1"
SUFFIX = ".row.json"
_Digest = Annotated[str, Field(pattern=SHA256)]


class RowData(Strict):
    """What was read: a name, and the SHA-256 of every file by its name.

    Empty for a published row."""

    name: str
    files: dict[str, _Digest] = Field(default_factory=dict)


class RowSplit(Strict):
    """How it was divided; `sha256` of the parts, empty for a published row."""

    kind: str
    seed: int | None = None
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")


class RowGuarantee(Strict):
    """What is promised to whom. `established`: proved, for what was run."""

    unit: Literal["user", "example", "click"]
    neighbours: Literal["add/remove", "replace"]
    epsilon: float = Field(gt=0)
    delta: float = Field(ge=0, lt=1)
    established: bool
    note: str = ""


class RowCode(Strict):
    """What made the row: the software's name and version, and a digest of its source."""

    name: str = Field(min_length=1)
    version: str = Field(min_length=1)
    sha256: _Digest


class Row(Strict):
    """One row. `metrics`: one value for each seed, in the order of `seeds`; of a published row the
    one that is printed.

    `serving_epsilon`: of each served answer, where those are noised too. `models`: SHA-256 of what
    was trained, taken before the test rows were read, one for each seed. `reference`: of a
    published row, where it is printed and how that was read.
    """

    format: Literal["fedrec-leaderboard/1"]
    source: Literal["measured", "published"]
    protocol: str
    system: str = Field(min_length=1, max_length=80)
    data: RowData
    split: RowSplit
    guarantee: RowGuarantee
    serving_epsilon: float | None = Field(None, gt=0)
    metrics: dict[str, tuple[float, ...]] = Field(min_length=1)
    seeds: tuple[int, ...] = ()
    noise: Literal["", "system", "seeded"] = ""
    command: str = ""
    code: RowCode | None = None
    models: tuple[_Digest, ...] = ()
    reference: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Row:
        for name, values in self.metrics.items():
            if not all(math.isfinite(value) for value in values):
                raise ValueError(f"metrics.{name} must be finite numbers, found {list(values)}")
        if math.isnan(self.guarantee.epsilon) or (
            self.serving_epsilon is not None and math.isnan(self.serving_epsilon)
        ):
            raise ValueError("an epsilon is a number or inf, found nan")
        return self._measured() if self.source == "measured" else self._published()

    def _measured(self) -> Row:
        for name, said in {
            "split.sha256": self.split.sha256,
            "seeds": self.seeds,
            "command": self.command,
            "noise": self.noise,
        }.items():
            if not said:
                raise ValueError(f"a measured row says its {name}")
        if self.code is None:
            raise ValueError("a measured row says its code")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"each seed counts once, found {list(self.seeds)}")
        if len(self.models) != len(self.seeds):
            raise ValueError(
                f"a measured row has a model for each seed, found {len(self.models)} for "
                f"{len(self.seeds)} seeds"
            )
        for name, values in self.metrics.items():
            if len(values) != len(self.seeds):
                raise ValueError(
                    f"metrics.{name} has one value for each seed, found {len(values)} for "
                    f"{len(self.seeds)} seeds"
                )
        return self

    def _published(self) -> Row:
        if not self.reference:
            raise ValueError(
                "a published row says its reference: where it is printed, and how it was read"
            )
        if self.seeds or self.models or self.code is not None:
            raise ValueError("a published row has no seeds, models or code: it was not run here")
        if any(len(values) != 1 for values in self.metrics.values()):
            raise ValueError("a published row has one value for each metric")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the content, which a row's file carries beside it."""
        return hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()

    def content(self) -> dict[str, Any]:
        """JSON's types."""
        return dict(finite(self.model_dump(mode="json")))


def write_row(folder: Path, row: Row) -> Path:
    """Write `PROTOCOL-SYSTEM-DIGEST.row.json`; the same row has the same file. Returns its path."""
    name = "".join(
        letter if letter.isalnum() or letter in ".-" else "-"
        for letter in f"{row.protocol}-{row.system}"
    ).lower()
    path = folder / f"{name}-{row.digest[:10]}{SUFFIX}"
    write_json(path, {**row.content(), "sha256": row.digest})
    return path


def read_row(path: Path) -> Row:
    """Raises DataError on a file that is no row, names an unknown key, lacks one, or was changed
    after it was written."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise DataError(f"{path}: {failure.strerror or failure}", "Check the path.") from None
    except ValueError as failure:
        raise DataError(
            f"{path} is not JSON: {failure}",
            f"Rows are files of {FORMAT}, as `fedrec bench submit` writes them.",
        ) from None
    if not isinstance(content, dict):
        raise DataError(
            f"{path} is no row: expected a JSON object",
            f"Rows are files of {FORMAT}, as `fedrec bench submit` writes them.",
        )
    said = content.pop("sha256", None)
    try:
        row = Row.model_validate(content)
    except ValidationError as failure:
        raise DataError(
            f"{path}: {first_of(failure)}", "docs/leaderboard.md lists the keys of a row."
        ) from None
    if said != row.digest:
        raise DataError(
            f"{path} was changed after it was written: its sha256 is not that of its content",
            "Submit the run again.",
        )
    return row


def read_rows(folders: Sequence[Path]) -> list[Row]:
    """All rows below the folders, each once.

    Raises DataError where a folder is missing or a row is wrong."""
    found = dict[str, Row]()
    for folder in folders:
        if not folder.is_dir():
            raise DataError(
                f"{folder} is no folder",
                "Give folders of rows, as `fedrec bench submit` writes them.",
            )
        for path in sorted(folder.rglob(f"*{SUFFIX}")):
            row = read_row(path)
            found.setdefault(row.digest, row)
    return list(found.values())
