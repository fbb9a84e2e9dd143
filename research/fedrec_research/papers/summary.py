"""research/docs/papers.md: the five papers on one page, its claims and numbers drawn from the kept
results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fedrec.storage import read_json
from fedrec_research import drawing
from fedrec_research.claims import listed
from fedrec_research.claims.claim import Evidence
from fedrec_research.claims.points import Spot
from fedrec_research.papers.page import anchor

SERVED: Sequence[float | str] = (10.0, 5.0, 1.0)


def write(target: Path, results: Path) -> None:
    """Write the page; nothing where no study is kept."""
    found = listed.evidence(results)
    if not found.studies:
        return
    at_size = results / "ml20m.json"
    sizes = read_json(at_size)["cells"] if at_size.exists() else []
    drawing.write(
        target,
        "papers",
        claims=lambda paper: _claims(found, paper),
        counts=lambda paper: _counts(found, paper),
        rmse=lambda data, line: _rmse(found, data, line),
        bare=lambda way, model: _text(found, way, model, "laplace", ("inf",)),
        served=lambda way, model, noise: _text(found, way, model, noise, SERVED),
        large={row["system"].partition(",")[0]: f"{row['rmse'][0]:.3f}" for row in sizes},
    )


def _claims(found: Evidence, paper: str) -> str:
    """The main ones with their verdicts, each linked to what it rests on."""
    rows = [
        [
            claim.words,
            claim.printed or "–",
            f"[{verdict.outcome}]({anchor(f'{paper}/{claim.figure}')})"
            if claim.figure and not claim.test.by_study
            else f"[{verdict.outcome}](study.md#claims)",
        ]
        for claim, verdict in listed.verdicts(found, paper)
        if claim.main
    ]
    return drawing.table(("claim", "paper", "verdict"), rows, text=True)


def _counts(found: Evidence, paper: str) -> str:
    judged = listed.verdicts(found, paper)
    return f"Of {len(judged)} claims {listed.counts(judged)}."


def _rmse(found: Evidence, data: str, line: str) -> str:
    """Test RMSE of a line of the study at ε = 1, 5, 20."""
    (study,) = [one for one in found.studies if one.name == data]
    values = [study.mean(line, epsilon) for epsilon in (1.0, 5.0, 20.0)]
    return " / ".join(f"{value.mean:.3f}" if value else "–" for value in values)


def _text(found: Evidence, way: str, model: str, noise: str, served: Sequence[float | str]) -> str:
    """AUC on films with texts at each ε of serving."""
    spots = [Spot("privaterec/text", f"{way}, {model}, {noise}", e, "auc") for e in served]
    values = [spot.value(found.figures) for spot in spots]
    return " / ".join("–" if math.isnan(value) else f"{value:.3f}" for value in values)
