"""Rows of benchmarks as JSON's types: where those of one data set are kept, their means, and how
they are shown."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def folder_of(folder: Path, data: str) -> Path:
    """Where rows of this data are kept: another path is another folder."""
    place = str(Path(data).resolve())
    return folder / f"{Path(place).name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def peak_rss_mb() -> float:
    """Of this process, in MB; nan where the system does not say.

    VmHWM: Linux hands ru_maxrss down from the parent."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return math.nan
    return int(found.group(1)) / 1024 if found else math.nan


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, nan from fewer than two values."""
    n, mean = len(values), math.fsum(values) / len(values)
    error = (
        math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else math.nan
    )
    return mean, error


def table(header: Sequence[str], lines: Sequence[Sequence[str]], *, text: bool = False) -> str:
    """Markdown; all columns but the first hold numbers, or `text`."""
    rule = ["---"] + ["---" if text else "---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines])


def in_order(named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Items by name, numbers in names by size: epsilon 5 before epsilon 20, and inf after them."""
    return sorted(
        named.items(),
        key=lambda item: [
            float(part) if part.isdigit() else part for part in re.split(r"(\d+)", item[0])
        ],
    )


def figure(value: Any, digits: int = 4) -> str:
    """A number of a row as text: a dash where there is none, "inf" as it is."""
    if isinstance(value, int | float) and math.isfinite(value):
        return f"{value:.{digits}f}"
    return "inf" if value in ("inf", math.inf) else "–"


def merged(*parts: Mapping[str, Any]) -> Row:
    """Nested tables of a scenario laid over each other."""
    result: Row = {}
    for part in parts:
        for key, value in part.items():
            result[key] = (
                merged(result.get(key, {}), value) if isinstance(value, Mapping) else value
            )
    return result
