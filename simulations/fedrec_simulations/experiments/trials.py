"""Trials, the rows they make, and where these are kept, so that a long benchmark may be stopped and
no row is made twice.

A kept row carries a digest of the source that decides it (`source`): figures of different code
never share a table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedrec.errors import RunError
from fedrec.storage import finite, read_json, write_json
from fedrec_simulations.experiments.rows import Row
from fedrec_simulations.experiments.source import source_digest

Summary = Callable[[Mapping[str, Row]], Mapping[str, Any]]
"""What a benchmark makes of its rows by name; some may still be missing."""


@dataclass(frozen=True)
class Trial:
    """One row to make: an importable function of its arguments alone, which returns JSON's types.

    name: of the row, and all that tells it from others. kind: of those that take alike long.
    recipes: that it trains, where that is known (`source.source_digest`).
    """

    name: str
    make: partial[Row]
    kind: str
    recipes: tuple[str, ...] | None = None

    @staticmethod
    def of(
        name: str,
        make: Callable[..., Row],
        *arguments: Any,
        kind: str = "",
        recipes: tuple[str, ...] | None = None,
    ) -> Trial:
        """The row `make(*arguments)`; without a kind, of that of its function."""
        return Trial(name, partial(make, *arguments), kind or make.__name__, recipes)

    @property
    def code(self) -> str:
        """Digest of its source."""
        return source_digest(self.make, recipes=self.recipes)


class Store(Protocol):
    """Where rows stay."""

    def find(self, trial: Trial) -> Row | None:
        """Its row, where it was made by the same source."""

    def keep(self, trial: Trial, row: Row, seconds: float) -> Row:
        """What is kept of a new row, as JSON's types."""


@dataclass(frozen=True)
class RowFiles:
    """A file for each row, under its name and the digest of its source.

    A row that says why it was `refused` is not kept."""

    folder: Path

    def path(self, trial: Trial) -> Path:
        """Of its file."""
        letters = "".join(c if c.isalnum() or c in "._" else "-" for c in trial.name)
        return self.folder / f"{letters}-{trial.code}.json"

    def find(self, trial: Trial) -> Row | None:
        """What its file holds."""
        path = self.path(trial)
        return dict(read_json(path)) if path.exists() else None

    def keep(self, trial: Trial, row: Row, seconds: float) -> Row:
        """The row, as it will be read."""
        if "refused" in row:
            return dict(finite(row))
        write_json(path := self.path(trial), row)
        return dict(read_json(path))


class ResultFile:
    """Rows in the benchmark's own result, with the summary of all: the same command goes on with
    the file, on another machine too."""

    def __init__(self, output: Path | None, trials: Sequence[Trial], summary: Summary) -> None:
        """output: None keeps rows in memory alone.

        A file that is absent or holds something else holds no rows."""
        self._output, self._names, self._summary, self._rows = (
            output,
            [trial.name for trial in trials],
            summary,
            dict[str, Row](),
        )
        known = _rows_in(output) if output is not None and output.exists() else {}
        for trial in trials:
            if trial.name in known and known[trial.name].get("made_by") == _made_by(trial):
                self._rows[trial.name] = known[trial.name]

    def find(self, trial: Trial) -> Row | None:
        """Of this source and these arguments."""
        return self._rows.get(trial.name)

    def keep(self, trial: Trial, row: Row, seconds: float) -> Row:
        """The row, how long it took, and what made it."""
        kept = dict(finite({**row, "seconds": seconds, "made_by": _made_by(trial)}))
        self._rows[trial.name] = kept
        if self._output is not None:
            write_json(self._output, self.content())
        return kept

    def content(self) -> dict[str, Any]:
        """The summary of all rows that are there, and the rows."""
        found = {name: self._rows[name] for name in self._names if name in self._rows}
        return dict(
            finite(
                {**self._summary(found), "missing": len(self._names) - len(found), "rows": found}
            )
        )


def _rows_in(output: Path) -> Mapping[str, Row]:
    try:
        content = read_json(output)
    except RunError:
        return {}
    rows = content.get("rows") if isinstance(content, dict) else None
    return rows if isinstance(rows, dict) else {}


def _made_by(trial: Trial) -> str:
    asked = f"{trial.code} {trial.make.func.__qualname__} {trial.make.args!r}"
    return hashlib.sha256(asked.encode()).hexdigest()[:12]
