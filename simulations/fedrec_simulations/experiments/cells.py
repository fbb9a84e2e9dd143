"""Rows of a long benchmark that are kept in its own result file: the same command goes on after a stop, and on another machine.

A row carries a digest of the source that made it (`source.source_digest`) and of what was asked for: other rows are made anew.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.errors import RunError
from fedrec.storage import finite, read_json, write_json
from fedrec_simulations.experiments.progress import Pace, Progress, Tell
from fedrec_simulations.experiments.rows import Row, first_done, workers
from fedrec_simulations.experiments.source import source_digest

Summary = Callable[[Mapping[str, Row]], Mapping[str, Any]]
"""What a benchmark makes of its rows by name; some may still be missing."""


def kept_rows(output: Path | None, asked: Mapping[str, partial[Row]]) -> dict[str, Row]:
    """Rows of this source that the file holds and that are asked for; none where it is absent or holds something else."""
    if output is None or not output.exists():
        return {}
    try:
        content = read_json(output)
    except RunError:
        return {}
    rows = content.get("rows") if isinstance(content, dict) else None
    known = rows if isinstance(rows, dict) else {}
    return {name: known[name] for name, make in asked.items() if name in known and known[name].get("made_by") == _made_by(make)}


def made(asked: Mapping[str, partial[Row]], *, output: Path | None, jobs: int, summary: Summary, tell: Tell) -> dict[str, Any]:
    """`summary` of all rows, with the rows themselves; written to `output` after each, which holds those made before.

    asked: what makes each row, importable and giving JSON's types. jobs: rows at a time, each in a process with its share of the cores.
    """
    rows, pace = kept_rows(output, asked), Pace()
    with workers(jobs) as pool:
        futures = {pool.submit(_timed, make): name for name, make in asked.items() if name not in rows}
        while futures:
            for future in first_done(futures):
                name = futures.pop(future)
                rows[name] = future.result()
                pace.note("row", rows[name]["seconds"])
                tell(Progress(name, len(asked) - len(futures), len(asked), pace.left_s(["row"] * len(futures), jobs)))
                if output is not None:
                    write_json(output, _result(asked, rows, summary))
    return _result(asked, rows, summary)


def _timed(make: partial[Row]) -> Row:
    started = time.perf_counter()
    row = dict(finite(make()))
    return row | {"seconds": time.perf_counter() - started, "made_by": _made_by(make)}


def _made_by(make: partial[Row]) -> str:
    asked = f"{source_digest(make)} {make.func.__qualname__} {make.args!r}"
    return hashlib.sha256(asked.encode()).hexdigest()[:12]


def _result(asked: Mapping[str, Any], rows: Mapping[str, Row], summary: Summary) -> dict[str, Any]:
    found = {name: rows[name] for name in asked if name in rows}
    return dict(finite({**summary(found), "missing": len(asked) - len(found), "rows": found}))
