"""research/docs/figures.md: for each figure that is kept in research/results its charts, and for
each claim that is read from it what the paper prints, what our rows say, and the verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.report import charts
from fedrec.report.figures import standalone
from fedrec.storage import write_bytes
from fedrec_research import drawing
from fedrec_research.claims import listed
from fedrec_research.claims.claim import Claim, Evidence
from fedrec_research.papers.charts import charts_of
from fedrec_research.papers.figures import paper
from fedrec_research.papers.kept import FOLDER, NEWS, kept
from fedrec_research.study.judging import Verdict
from fedrec_research.trials import Row

PAGE = "figures.md"


def anchor(name: str) -> str:
    """Return the link to the section on the page of a figure named like "ada-dpals/figure1"."""
    return f"{PAGE}#{'-'.join(_title(*name.split('/')).lower().replace(',', '').split())}"


def write(target: Path, results: Path) -> None:
    """Write the page, and img/figure-*.svg beside it; nothing where no figure is kept.

    Raises RunError on a damaged file, and on one that is not of a full run."""
    found = listed.evidence(results)
    sections = [
        _section(target, name, figure, content, found)
        for name, figure, content in sorted(kept(results), key=_by_number)
    ]
    if sections:
        of_figures = [one for one in listed.verdicts(found) if one[0].figure]
        drawing.write(
            target,
            "figures",
            figures=sections,
            count=len(of_figures),
            counts=listed.counts(of_figures),
        )


def _section(
    target: Path, name: str, figure: str, content: Mapping[str, Any], found: Evidence
) -> Row:
    unproved = [f"{r['series']}" for r in content["rows"] if "NOT ESTABLISHED" in r["guarantee"]]
    pictures = [
        (
            chart.title.partition(" at delta")[0],
            _picture(target, f"figure-{name}-{figure}-{at}", chart),
        )
        for at, chart in enumerate(charts_of(content), 1)
    ]
    news = name == "privaterec"
    # what follows are the names of its keys, and its own name comes before
    heading = re.split(
        r" (?:Lines|Points|Rows|The other line|The paper takes)\b", content["heading"]
    )[0]
    return {
        "title": _title(name, figure),
        "name": f"{name}/{figure}",
        "rows": f"{NEWS}.json" if news else f"{FOLDER}/{name}-{figure}.json",
        "heading": _capital(re.sub(r"^.*?(?:Figure|Table)[^:]*: ", "", heading)),
        "data": content["data"]["words"].removesuffix(" Compare orders, not values."),
        "unproved": list(dict.fromkeys(unproved)),
        "pictures": pictures,
        "lines": [_line(*one) for one in listed.verdicts(found, name, figure)],
    }


def _by_number(one: tuple[str, str, Mapping[str, Any]]) -> tuple[str, int, str]:
    """Figure 2 before Figure 10."""
    return one[0], int(re.sub(r"\D", "", one[1]) or 99), one[1]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _line(claim: Claim, verdict: Verdict) -> list[str]:
    by_study = claim.test.by_study and verdict.outcome != "not tested"
    ours = "[by the study's lines](study.md#claims)" if by_study else verdict.found
    return [f"{claim.words} ({claim.where})", claim.printed or "–", ours, f"**{verdict.outcome}**"]


def _title(name: str, figure: str) -> str:
    """ "DP-CMF, Figure 4b" of dp-cmf and figure4b."""
    return f"{paper(name).name}, {re.sub(r'(?<=[a-z])(?=[0-9])', ' ', figure).capitalize()}"


def _picture(target: Path, name: str, chart: Any) -> str:
    drawn = standalone(str(charts.lines_against(chart, name=name)))
    write_bytes(target.parent / "img" / f"{name}.svg", drawn.encode())
    return name
