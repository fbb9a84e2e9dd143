"""Figures that are kept in research/results/figures, and PrivateRec's, of the runs that
`fedrec research measure news-paper` keeps.

A quick run, or one whose scenario was changed, shows no result and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.errors import RunError
from fedrec.storage import read_json
from fedrec_research.papers import privaterec
from fedrec_research.trials import Row

FOLDER = "figures"
NEWS = "news-paper-ml1m"


def figures(results: Path) -> dict[str, Sequence[Row]]:
    """Rows of the figures that are kept, by name, as "ada-dpals/figure1".

    Raises RunError as `kept` does."""
    return {f"{name}/{figure}": content["rows"] for name, figure, content in kept(results)}


def kept(results: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Paper, figure and content of each. Raises RunError on a file that is not of a full run."""
    for path in sorted((results / FOLDER).glob("*.json")):
        result = read_json(path)
        if result["quick"] or result["overrides"]:
            raise RunError(
                f"{path} is of a quick run, or of a scenario that was changed",
                f"Make it again: fedrec research figures {result['paper']}/FIGURE --output {path}.",
            )
        for figure, content in result["figures"].items():
            yield result["paper"], figure, content
    news = results / f"{NEWS}.json"
    for figure, content in privaterec.of_news_paper(read_json(news)) if news.exists() else ():
        yield "privaterec", figure, content
