"""What `fedrec bench NAME` runs: a table from names to modules, imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

BENCHES: Mapping[str, tuple[str, bool]] = {
    "ablation": ("bench.ablation", True),
    "quality": ("bench.quality", True),
    "clicks": ("bench.clicks", True),
    "news": ("experiments.news", True),
    "cohorts": ("bench.cohorts", False),
    "sharing": ("bench.sharing", True),
    "serving-basis": ("bench.serving_utility", True),
    "serving-lists": ("bench.serving_lists", True),
    "serving-news": ("bench.serving_news", True),
    "serving-attention": ("bench.serving_attention", True),
    "linkage": ("bench.linkage", True),
}
"""By name: the module whose `run(quick=...)` it is, and whether that takes data first."""

TOLD = {
    "study": "experiments.study.measure",
    "search": "experiments.study.search",
    "news-paper": "experiments.news_paper",
    "sizes": "bench.sizes",
    "simple": "bench.simple",
}
"""By name: modules whose `run(tell=...)` says after every row how far it is."""


def run(what: str, *, data: str, quick: bool) -> dict[str, Any]:
    """One JSON object.

    Raises KeyError on an unknown name, ImportError where the `bench` extra is missing."""
    module, reads = BENCHES[what]
    return dict(
        import_module(f"fedrec_simulations.{module}").run(*([data] if reads else []), quick=quick)
    )


def paper(
    name: str,
    *,
    data: str,
    quick: bool,
    jobs: int = 1,
    overrides: Sequence[str] = (),
    html: Path | None = None,
    silent: bool = True,
) -> dict[str, Any]:
    """`fedrec bench paper NAME`: one JSON object; a page beside it where `html` names a file."""
    from fedrec_simulations.experiments.papers import figures, page
    from fedrec_simulations.experiments.progress import shown

    with shown(silent=silent) as tell:
        result = figures.run(name, data, quick=quick, jobs=jobs, overrides=overrides, tell=tell)
    if html:
        said = [
            *(f"--data {Path(data).name}" for _ in data[:1]),
            *(f"--set {said}" for said in overrides),
            *(["--quick"] if quick else []),
        ]
        page.write(html, result, command=" ".join(["fedrec bench paper", name, *said]))
    return result


def told(what: str, *, silent: bool, **chosen: Any) -> dict[str, Any]:
    """A benchmark that tells of its rows: one JSON object; the rest as the `run` of its module."""
    from fedrec_simulations.experiments.progress import shown

    with shown(silent=silent) as tell:
        return dict(import_module(f"fedrec_simulations.{TOLD[what]}").run(tell=tell, **chosen))
