"""The list of claims, and what kept results say of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.data.kinds import KINDS
from fedrec.storage import read_json
from fedrec_research.claims import ada_dpals, am_ssp, dp_cmf, fast_dpmf, privaterec
from fedrec_research.claims.claim import Claim, Evidence
from fedrec_research.papers.kept import figures
from fedrec_research.study.judging import OUTCOMES, Verdict
from fedrec_research.study.results import Study
from fedrec_research.trials import Row

CLAIMS: tuple[Claim, ...] = (
    *am_ssp.CLAIMS,
    *ada_dpals.CLAIMS,
    *dp_cmf.CLAIMS,
    *fast_dpmf.CLAIMS,
    *privaterec.CLAIMS,
)
Judged = Sequence[tuple[Claim, Verdict]]


def evidence(results: Path) -> Evidence:
    """What is kept. Raises RunError on a damaged file."""
    text = results / "news-noise-ml1m.json"
    rows = {"privaterec/text": list(_on_text(read_json(text)))} if text.exists() else {}
    return Evidence(studies(results), {**figures(results), **rows})


def studies(results: Path) -> list[Study]:
    """Studies that are kept, those of ratings first."""
    parts_of = defaultdict[str, list[Row]](list)
    for content in map(read_json, sorted(results.glob("study-*.json"))):
        parts_of[content["data"]["name"]].append(dict(content))
    found = [Study.of(*parts) for parts in parts_of.values()]
    return sorted(found, key=lambda study: (not KINDS[study.kind].rated, study.name))


def verdicts(found: Evidence, paper: str = "", figure: str = "") -> Judged:
    """Every claim with its verdict; of one paper, or read from one of its figures."""
    return [
        (claim, claim.test.judge(found))
        for claim in CLAIMS
        if paper in ("", claim.paper) and (not figure or figure == claim.figure)
    ]


def counts(judged: Judged) -> str:
    """ "12 held, 20 in part, 9 did not hold, 15 not tested"."""
    found = Counter(verdict.outcome for _, verdict in judged)
    return ", ".join(f"{found[outcome]} {outcome}" for outcome in OUTCOMES)


def published(paper: str, figure: str) -> Mapping[str, str]:
    """What a paper says of one of its figures: the value that it prints, by the claim."""
    return {c.words: c.printed for c in CLAIMS if (c.paper, c.figure) == (paper, figure)}


def _on_text(result: Mapping[str, Any]) -> Iterator[Row]:
    """`news_noise`'s rows as points of a figure, of AUC served at each epsilon."""
    for row in result["rows"]:
        for key, each in row.items():
            if key.startswith("auc at "):
                served = key.removeprefix("auc at ")
                yield {
                    "metric": "auc",
                    "series": f"{row['way']}, {row['model']}, {row['noise']}",
                    "x": served if served == "inf" else float(served),
                    "seeds": list(range(1, len(each) + 1)),
                    "each": each,
                }
