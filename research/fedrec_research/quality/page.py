"""research/docs/quality.md: one table for each data set and split, the commands of the papers'
names, and where every other measurement is kept."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

from fedrec.storage import read_json
from fedrec_research import drawing
from fedrec_research.quality import tables


def write(target: Path, results: Path) -> None:
    """Write the page from the JSON files in `results`; a section whose file is absent is left out.

    Raises RunError on a damaged file."""
    text = resources.files(__package__).joinpath("sections.toml").read_text(encoding="utf-8")
    found = tables.tables(results)
    names = results / "names.json"
    drawing.write(
        target,
        "quality",
        tables=found,
        header=("", *(drawing.shown(e) for e in tables.EPSILONS)),
        untimed=not any(one.split in tables.BY_TIME for one in found),
        blank=sum(one.blank for one in found),
        behind=tables.behind(results),
        names={"rows": [], "note": "", **(read_json(names) if names.exists() else {})},
        others=[
            one
            for one in tomllib.loads(text)["measured"]
            if (results / f"{one['result']}.json").exists()
        ],
    )
