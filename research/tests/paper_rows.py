"""Small inputs of several tests: rows of one figure of a paper on planted data, lists of clicks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrec_research.papers import figures


def paper_rows(
    name: str, folder: Path, *, data: str = "planted", overrides: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Of PAPER/FIGURE; rows are kept in the folder."""
    found = figures.run(name, data, quick=True, folder=folder, overrides=overrides)
    rows: list[dict[str, Any]] = found["figures"][name.partition("/")[2]]["rows"]
    return rows


def write_lists(folder: Path) -> None:
    """Two tastes; every user's last two clicks of its own taste are test."""
    rng = np.random.default_rng(0)
    lists = [rng.permutation(30)[:12] + 30 * (user % 2) for user in range(200)]
    for name, part in (("train.txt", slice(0, 10)), ("test.txt", slice(10, 12))):
        (folder / name).write_text(
            "".join(f"{k} {' '.join(map(str, items[part]))}\n" for k, items in enumerate(lists))
        )
