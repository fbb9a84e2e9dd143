"""`fedrec bench paper PAPER/FIGURE`: figures of the papers re-made, with what the paper says of
each beside ours.

Every figure starts from its own scenario file (`starts`), reads test through a seal
(`data.sealed`), and keeps its rows, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_simulations.experiments.papers.paper import Line, Paper, Work
from fedrec_simulations.experiments.papers.paper_data import provenance
from fedrec_simulations.experiments.papers.starts import Start, heading, started
from fedrec_simulations.experiments.progress import Tell
from fedrec_simulations.experiments.row_queue import RowQueue, silent
from fedrec_simulations.experiments.rows import Row, folder_of
from fedrec_simulations.experiments.source import source_digest
from fedrec_simulations.experiments.trials import RowFiles

PAPERS = ("ada-dpals", "am-ssp", "convex-ssp", "dp-cmf", "fast-dpmf", "privaterec")
"""Names that the command takes; the module of each has its `PAPER`."""


def paper(name: str) -> Paper:
    """A paper by the command's name. Raises SettingsError on an unknown one."""
    if name not in PAPERS:
        raise SettingsError(
            f"there is no paper {name!r}",
            f"Use one of: {', '.join(PAPERS)}, or one of their figures, as dp-cmf/figure1.",
        )
    found: Paper = import_module(
        f"fedrec_simulations.experiments.papers.{name.replace('-', '_')}"
    ).PAPER
    return found


def run(
    name: str,
    data: str,
    *,
    quick: bool = False,
    jobs: int = 1,
    overrides: Sequence[str] = (),
    folder: Path = Path("runs/bench-paper"),
    tell: Tell = silent,
) -> dict[str, Any]:
    """One figure, or all figures of a paper, as a JSON-able dict; finished trainings are kept in
    `folder`, and told of as they are made.

    `jobs` rows are made at a time, in processes, but for figures that show seconds: their rows have
    the machine to themselves, afterwards. Raises SettingsError on an unknown paper or figure, on a
    wrong key, and where a figure needs data that is not given.
    """
    named, _, wanted = name.partition("/")
    which = paper(named)
    place, told = folder / named, tuple(overrides)
    asked = [wanted] if wanted else which.figures
    works = {
        figure: work(which, figure, data, quick=quick, folder=place, overrides=told)
        for figure in asked
    }
    lines = dict[str, list[Line]]()
    for some, at_once in (
        (works.keys() - set(which.timed), jobs),
        (set(which.timed) & works.keys(), 1),
    ):
        plans = {
            figure: which.figures[figure](one) for figure, one in works.items() if figure in some
        }
        lines |= (
            RowQueue[list[Line]](
                RowFiles(next(iter(works.values())).folder), jobs=at_once, tell=tell
            ).results(plans)
            if plans
            else {}
        )
    figures = {
        figure: _content(named, figure, which, one, lines[figure]) for figure, one in works.items()
    }
    return dict(
        finite({"paper": named, "quick": quick, "overrides": list(told), "figures": figures})
    )


def work(
    which: Paper, figure: str, data: str, *, quick: bool, folder: Path, overrides: tuple[str, ...]
) -> Work:
    """What a figure is made of; data "planted" is the small planted set.

    Raises SettingsError as `run` does."""
    if figure not in which.figures:
        raise SettingsError(
            f"{which.name} has no {figure!r}", f"Use one of: {', '.join(which.figures)}."
        )
    name = f"{which.prefix}_{figure}"
    other = [
        said
        for said in overrides
        if which.fixed and said.partition("=")[0].strip() not in which.fixed
    ]
    if other:
        raise SettingsError(
            f"{other[0]} changes no figure of {which.name}, whose runs are fixed",
            f"fedrec simulate simulations/{name}.toml --set ...",
        )
    told = (*(which.planted if data == "planted" else ()), *overrides)
    start = Start(name, overrides=told) if figure in which.no_data else started(name, data, told)
    return Work(start, quick, folder_of(folder, data or start.scenario.data.path))


def _content(named: str, figure: str, which: Paper, work: Work, lines: Sequence[Line]) -> Row:
    start, rows = work.start, [line.row(figure, work.seeds) for line in lines]
    return {
        "heading": heading(start.name),
        "scenario": f"simulations/{start.name}.toml",
        "x": start.figure.x,
        "each_seed": which.each_seed,
        "rows": rows,
        "data": asdict(provenance(named, figure, start)),
        "code": source_digest(which.figures[figure]),
        "published": which.published.get(figure, {}),
    }
