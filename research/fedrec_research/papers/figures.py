"""`fedrec research figures PAPER/FIGURE`: figures of the papers re-made, with what the paper says
of each beside ours.

Every figure starts from its own scenario file (`starts`), and reads test through a seal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_research.claims.listed import published
from fedrec_research.papers.paper import Paper, Work
from fedrec_research.papers.paper_data import provenance
from fedrec_research.papers.starts import Start, heading, started
from fedrec_research.trials import ROWS, Row, Tell, code, rows_of, silent

PAPERS = ("ada-dpals", "am-ssp", "convex-ssp", "dp-cmf", "fast-dpmf", "privaterec")
"""Names that the command takes; the module of each has its `PAPER`."""


def paper(name: str) -> Paper:
    """A paper by the command's name. Raises SettingsError on an unknown one."""
    if name not in PAPERS:
        raise SettingsError(
            f"there is no paper {name!r}",
            f"Use one of: {', '.join(PAPERS)}, or one of their figures, as dp-cmf/figure1.",
        )
    found: Paper = import_module(f"fedrec_research.papers.{name.replace('-', '_')}").PAPER
    return found


def run(
    name: str,
    data: str,
    *,
    quick: bool = False,
    jobs: int = 1,
    overrides: Sequence[str] = (),
    folder: Path = ROWS,
    tell: Tell = silent,
) -> dict[str, Any]:
    """One figure, or all figures of a paper, as a JSON-able dict; finished rows are kept in
    `folder`, and told of as they are made.

    `jobs` rows are made at a time, in processes, but for figures that show seconds: their rows have
    the machine to themselves. Raises SettingsError on an unknown paper or figure, on a wrong key,
    and where a figure needs data that is not given.
    """
    named, _, wanted = name.partition("/")
    which = paper(named)
    starts = {
        figure: _start(which, figure, data, tuple(overrides))
        for figure in ([wanted] if wanted else which.figures)
    }
    figures = dict[str, Row]()
    for figure, start in starts.items():
        at_once = 1 if figure in which.timed else jobs
        work = Work(start, quick, partial(rows_of, folder=folder, jobs=at_once, tell=tell))
        lines = which.figures[figure](work)
        figures[figure] = {
            "heading": heading(start.name),
            "scenario": f"research/scenarios/{start.name}.toml",
            "x": start.figure.x,
            "each_seed": which.each_seed,
            "rows": [line.row(figure, work.seeds) for line in lines],
            "data": asdict(provenance(named, figure, start)),
            "code": code(),
            "published": dict(published(named, figure)),
        }
    content = {"paper": named, "quick": quick, "overrides": list(overrides), "figures": figures}
    return dict(finite(content))


def _start(which: Paper, figure: str, data: str, overrides: tuple[str, ...]) -> Start:
    """Data "planted" is the small planted set. Raises SettingsError as `run` does."""
    if figure not in which.figures:
        raise SettingsError(
            f"{which.name} has no {figure!r}", f"Use one of: {', '.join(which.figures)}."
        )
    keys = [said.partition("=")[0].strip() for said in overrides]
    if which.fixed and (others := [key for key in keys if key not in which.fixed]):
        raise SettingsError(
            f"{others[0]} changes no figure of {which.name}, whose runs are fixed", "Leave it out."
        )
    name = f"{which.prefix}_{figure}"
    told = (*(which.planted if data == "planted" else ()), *overrides)
    return Start(name, overrides=told) if figure in which.no_data else started(name, data, told)
