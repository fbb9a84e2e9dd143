"""`fedrec bench paper PAPER/FIGURE`: figures of the papers re-made, with what the paper says of each beside ours.

Every figure starts from its own scenario file (`starts`), reads test through a seal (`data.sealed`), and keeps its rows, so
that the same command goes on where it was stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_simulations.experiments.intervals import interval
from fedrec_simulations.experiments.papers.paper_data import provenance
from fedrec_simulations.experiments.papers.starts import Start, heading
from fedrec_simulations.experiments.papers.watch import Watch
from fedrec_simulations.experiments.progress import Tell
from fedrec_simulations.experiments.rows import Row

PAPERS = {
    "ada-dpals": "ada_dpals",
    "am-ssp": "am_ssp",
    "convex-ssp": "convex_ssp",
    "dp-cmf": "dp_cmf",
    "fast-dpmf": "fast_dpmf",
    "privaterec": "privaterec",
}
"""By the name that the command takes: the module with `FIGURES`, `PUBLISHED` and `figure`, and the beginning of its scenarios' names."""
TIMED = {"am-ssp": ("figure3", "figure6", "figure8"), "fast-dpmf": ("figure2", "figure3")}
"""By paper, figures that show seconds: whatever `jobs` says, their rows have the machine to themselves."""


@dataclass(frozen=True)
class Asked:
    """What the command was told: `overrides` are `table.key=value` of every scenario, `figure.seeds=[1,2]` for example."""

    paper: str
    figure: str
    data: str
    quick: bool = False
    overrides: tuple[str, ...] = ()

    def start(self, figure: str) -> Start:
        """The figure's scenario."""
        return Start(f"{PAPERS[self.paper]}_{figure}", self.data, self.overrides)


def run(
    name: str,
    data: str,
    *,
    quick: bool = False,
    jobs: int = 1,
    overrides: Sequence[str] = (),
    folder: Path = Path("runs/bench-paper"),
    tell: Tell = lambda progress: None,
) -> dict[str, Any]:
    """One figure, or all figures of a paper, as a JSON-able dict; finished trainings are kept in `folder`, and told of as they are made.

    `jobs` rows are made at a time, in processes; a row whose settings another one decides waits for it.
    Raises SettingsError on an unknown paper or figure, on a wrong key, and where a figure needs data that is not given.
    """
    paper, _, wanted = name.partition("/")
    if paper not in PAPERS:
        raise SettingsError(f"there is no paper {paper!r}", f"Use one of: {', '.join(PAPERS)}, or one of their figures, as dp-cmf/figure1.")
    module = import_module(f"fedrec_simulations.experiments.papers.{PAPERS[paper]}")
    asked = Asked(paper, wanted, data, quick, tuple(overrides))
    makers = {
        figure: partial(module.figure, figure, data, quick, folder / paper, overrides=asked.overrides)
        for figure in ([wanted] if wanted else module.FIGURES)
    }
    watch, figures = Watch(makers, tell), dict[str, Any]()
    if jobs > 1:
        watch.make_ahead([figure for figure in makers if figure not in TIMED.get(paper, ())], jobs)
    for figure in makers:
        rows = [row | _interval(row) for row in watch.rows(figure)]
        figures[figure] = _figure(asked, figure, rows) | {"published": module.PUBLISHED.get(figure, {})}
    return dict(finite({"paper": paper, "quick": quick, "overrides": list(asked.overrides), "figures": figures}))


def _figure(asked: Asked, figure: str, rows: Sequence[Row]) -> Row:
    start = asked.start(figure)
    fixed = asked.paper == "privaterec" or start.scenario.split.kind == "given"
    vary = "draws the noise and initial values, the data being divided once" if fixed else "divides the data and draws the noise"
    content: Row = {"heading": heading(start.name), "scenario": f"simulations/{start.name}.toml", "x": start.figure.x}
    content |= {"each_seed": vary, "rows": list(rows)}
    return content | {"data": asdict(provenance(asked.paper, figure, start))}


def _interval(row: Row) -> Row:
    """Ends of the mean's 95% interval over the seeds."""
    each = [value for value in row.get("each", ()) if isinstance(value, float | int)]
    if len(each) < 2 or not all(map(math.isfinite, each)):
        return {}
    found = interval(each)
    return {"interval": [found.mean - found.half, found.mean + found.half]}
