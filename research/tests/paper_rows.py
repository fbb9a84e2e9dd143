"""Rows of one figure of a paper, of its small part on small planted data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrec_research.papers import figures


def paper_rows(
    name: str, folder: Path, *, data: str = "planted", overrides: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Of PAPER/FIGURE; rows are kept in the folder."""
    found = figures.run(name, data, quick=True, folder=folder, overrides=overrides)
    rows: list[dict[str, Any]] = found["figures"][name.partition("/")[2]]["rows"]
    return rows
