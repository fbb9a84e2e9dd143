"""research/docs/quality.md: the kept results as tables, each with the command that makes it."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

from fedrec.storage import read_json
from fedrec_research import drawing
from fedrec_research.news_paper import Shown
from fedrec_research.quality import serving_lists, simple, sizes
from fedrec_research.quality.news_popularity import BARE, LIST
from fedrec_research.quality.three_readers import MOST, pooled


def write(target: Path, results: Path) -> None:
    """Write the page from the JSON files in `results`; a section whose file is absent is left out.

    Raises RunError on a damaged file."""
    text = resources.files(__package__).joinpath("sections.toml").read_text(encoding="utf-8")
    sections = [
        {**section, "result": read_json(path), "file": path.name}
        for section in tomllib.loads(text)["sections"]
        if (path := results / f"{section['result']}.json").exists()
    ]
    drawing.write(
        target,
        "quality",
        sections=sections,
        news_paper=Shown,
        pooled=pooled,
        BARE=BARE,
        LIST=LIST,
        MOST=MOST,
        K=serving_lists.K,
        simple=simple,
        sizes=sizes,
    )
