"""`fedrec bench paper PAPER/FIGURE`: figures of the papers re-made, with what the paper says of each beside ours."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from fedrec.checkpoint import finite
from fedrec.errors import SettingsError

PAPERS = {"ada-dpals": "ada_dpals", "dp-cmf": "dp_cmf", "fast-dpmf": "fast_dpmf"}
"""By the name that the command takes: the module with `FIGURES`, `PUBLISHED` and `figure`."""


def run(name: str, data: str, *, quick: bool = False, folder: Path = Path("runs/bench-paper")) -> dict[str, Any]:
    """One figure, or all figures of a paper that `data` allows, as a JSON-able dict; finished trainings are kept in `folder`.

    Raises SettingsError on an unknown paper or figure, and where a figure needs data that is not given.
    """
    paper, _, wanted = name.partition("/")
    if paper not in PAPERS:
        raise SettingsError(f"there is no paper {paper!r}", f"Use one of: {', '.join(PAPERS)}, or one of their figures, as dp-cmf/figure1.")
    module = import_module(f"fedrec_simulations.papers.{PAPERS[paper]}")
    figures = {
        figure: {"published": module.PUBLISHED.get(figure, {}), "rows": module.figure(figure, data, quick, folder / paper)}
        for figure in ([wanted] if wanted else module.FIGURES)
    }
    words = "data of this run, not the paper's: compare orders, not values"
    return dict(finite({"paper": paper, "data": Path(data).name or "planted", "note": words, "quick": quick, "figures": figures}))
