"""Figures and tables of Ada-DPALS (Krichene et al. 2023), re-made; `figure(name, ...)` gives rows, `PUBLISHED` what the paper says of them.

A row is one point: figure, metric, series of the legend, x, mean over split seeds (the noise's seed being the split's), its standard error,
every seed's value, and the guarantee. Panels of noisy gradient descent on ratings and clicks (half of Figures 1-3 and 9) are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.errors import SettingsError
from fedrec.storage import finite
from fedrec_simulations.experiments.papers.ada_dpals_runs import BUCKETS, EQ_12, TAIL, UNIFORM, Bench, Kind, ada, item_counts
from fedrec_simulations.experiments.papers.ada_dpals_tasks import figure_5
from fedrec_simulations.experiments.papers.starts import Start, started
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error

ALS, IMPROVEMENT = "ALS (not private)", "least improvement over DPALS (tail)"


PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "figure1": {"how": "printed in Sec. 5; the curves have no printed values", "order, best first": ("Ada-DPALS", TAIL, UNIFORM)},
    "figure2": {"how": "printed in Sec. 5; the curves have no printed values", "order, best first": ("Ada-DPALS", TAIL, UNIFORM)},
    "figure3": {"how": "printed in Sec. 5", "best mu": ("1/4", "1/2"), "mu = 1": "a clear degradation"},
    "figure4": {"how": "printed in Sec. 5", "rare buckets": "better with larger mu", "most frequent bucket": "worse with larger mu"},
    "figure5": {"how": "printed in App. C", "mu = 0": "poor, most at small epsilon", "best mu": "1/2 by theory, varies by case"},
    "figure7": {"how": "printed in Sec. 5, of ML-20M", "share of events of the most frequent tenth": 0.86},
    "figure8": {
        "how": "printed in D.2, of ML-10M at epsilon 1; buckets as numbered there",
        "improvement is at least, by bucket": {0: 0.216, 1: 0.237, 3: 0.228, 4: 0.084},
    },
    "figure9": {"how": "printed in D.2", "best mu": "1/4, and 1/4 to 1/2 stays good"},
    "figure10": {"how": "printed in D.3", "order, most overlap first": (ada("1/3"), TAIL)},
    "tables": {"how": "Tables 3 and 4 of ML-20M", "frequent films": "privacy changes little", "rare films": "Ada-DPALS is closer to ALS"},
}
"""What the paper prints. Its curves were not read off their axes."""


def figure(name: str, data: str, quick: bool, folder: Path, *, overrides: Sequence[str] = ()) -> list[Row]:
    """Rows of one figure of `FIGURES`, from `simulations/ada_dpals_NAME.toml`; `data` "planted": the small planted set.

    Figure 5 needs no data. `quick`: one seed, and one epsilon where there are several; overrides: `table.key=value` of the scenario.
    Finished trainings are kept in `folder` and shared by the figures. Raises SettingsError on another name, on a wrong key, without data.
    """
    if name not in FIGURES:
        raise SettingsError(f"Ada-DPALS has no {name!r}", f"Use one of: {', '.join(FIGURES)}.")
    if name == "figure5":
        return [dict(finite(point)) for point in figure_5(Start("ada_dpals_figure5", overrides=tuple(overrides)), quick, folder)]
    start = started(f"ada_dpals_{name}", data, tuple(overrides))
    asked, (make, kind) = start.figure, FIGURES[name]
    some = [e for e in asked.epsilons if e == 5] or asked.epsilons[:1]
    lines = make(Bench(data, kind, start.seeds(quick), folder_of(folder, data), start), some if quick else asked.epsilons)
    return [dict(finite(_row(name, line, start.seeds(quick)))) for line in lines]


@dataclass(frozen=True)
class _Line:
    """A point before its mean: one value for each seed."""

    metric: str
    series: str
    x: float | str
    each: list[float]
    guarantee: str = ""
    neighbours: tuple[str, ...] = ()


def _row(name: str, line: _Line, seeds: Sequence[int]) -> Row:
    value, error = mean_and_error(line.each)
    content = {"figure": name, "metric": line.metric, "series": line.series, "x": line.x, "value": value, "standard_error": error}
    listed = {"list": list(line.neighbours)} if line.neighbours else {}
    return content | {"each": line.each, "seeds": list(seeds), "guarantee": line.guarantee} | listed


def _privacy_utility(bench: Bench, epsilons: Sequence[float]) -> Iterator[_Line]:
    """Figures 1 and 2: quality against epsilon; Ada-DPALS at mu = 1/4, with weights to the whole budget and as printed."""
    for method in (UNIFORM, TAIL, ada("1/4"), EQ_12):
        yield from (_point(bench, method, method, epsilon, epsilon) for epsilon in epsilons)
    reference = bench.reference()
    yield _Line(bench.metric, ALS, "inf", [r[bench.metric] for r in reference], "no privacy")
    for name in reference[0]["baselines"]:
        yield _Line(bench.metric, f"{name} (not private)", "inf", [r["baselines"][name] for r in reference], "no privacy")


def _exponents(bench: Bench, epsilons: Sequence[float]) -> Iterator[_Line]:
    """Figures 3 and 9: quality against mu."""
    for epsilon, mu in product(epsilons, _points(bench)):
        yield _point(bench, ada(mu), f"epsilon = {epsilon:g}", epsilon, mu)


def _point(bench: Bench, method: str, series: str, epsilon: float, x: float) -> _Line:
    found = bench.rows(method, epsilon)
    return _Line(bench.metric, series, x, [r[bench.metric] for r in found], found[0]["guarantee"])


def _slices(bench: Bench, epsilons: Sequence[float]) -> Iterator[_Line]:
    """Figures 4 and 8: quality against the popularity of items; for ratings also the least improvement over tail sampling."""
    for epsilon in epsilons:
        found = {m: bench.rows(m, epsilon) for m in (UNIFORM, TAIL, *map(ada, _points(bench)))}
        for method, rows in found.items():
            for b in range(BUCKETS):
                yield _Line(bench.metric, f"{method}, epsilon = {epsilon:g}", b, [r["buckets"][b] for r in rows], rows[0]["guarantee"])
        if bench.kind == "ratings":
            yield from (
                _Line("share", f"{IMPROVEMENT}, epsilon = {epsilon:g}", b, _improvement(found, b), found[TAIL][0]["guarantee"])
                for b in range(BUCKETS)
            )


def _points(bench: Bench) -> tuple[float, ...]:
    """Values of mu."""
    return bench.start.figure.points if bench.start else ()


def _improvement(found: Mapping[str, list[Row]], b: int) -> list[float]:
    """1 - RMSE / RMSE of tail sampling, of the worst mu, for each seed."""
    worst = np.max([[r["buckets"][b] for r in rows] for method, rows in found.items() if method not in {UNIFORM, TAIL}], axis=0)
    return [float(1 - w / r["buckets"][b]) for w, r in zip(worst, found[TAIL], strict=True)]


def _skew(bench: Bench, epsilons: Sequence[float]) -> Iterator[_Line]:
    """Figure 7: which share of the training events the most frequent items have, and the size of the item there. Not private."""
    sizes = [np.sort(item_counts(bench, seed))[::-1] for seed in bench.seeds]
    for share in (0.01, 0.05, *np.arange(1, 11) / 10):
        places = [max(round(share * len(s)), 1) for s in sizes]
        yield _Line("share", "share of events", float(share), [float(s[:p].sum() / s.sum()) for s, p in zip(sizes, places, strict=True)])
        yield _Line("count", "events of the item there", float(share), [float(s[p - 1]) for s, p in zip(sizes, places, strict=True)])


def _overlap(bench: Bench, epsilons: Sequence[float]) -> Iterator[_Line]:
    """Figure 10: share of the 20 nearest neighbours by ALS that the private models at epsilon 1 find too."""
    for epsilon, method in product(epsilons, (UNIFORM, TAIL, *map(ada, _points(bench)))):
        rows = bench.rows(method, epsilon)
        yield from (_Line("share", method, b, [r["overlap"][b] for r in rows], rows[0]["guarantee"]) for b in range(BUCKETS))


def _neighbours(bench: Bench, epsilons: Sequence[float]) -> Iterator[_Line]:
    """Tables 3 and 4, of the first seed: x is the query, the value its count in train, `list` its neighbours."""
    methods = (TAIL, *map(ada, _points(bench)))
    first = {ALS: bench.reference()[0], **{m: bench.rows(m, epsilons[0])[0] for m in methods}}
    for series, row in first.items():
        for query in row["neighbours"]:
            frequency = [float(query["frequency"])] * len(bench.seeds)
            yield _Line("count", series, query["item"], frequency, row["guarantee"], tuple(query["list"]))


FIGURES: Mapping[str, tuple[Callable[[Bench, Sequence[float]], Iterator[_Line]], Kind]] = {
    "figure1": (_privacy_utility, "ratings"),
    "figure2": (_privacy_utility, "clicks"),
    "figure3": (_exponents, "ratings"),
    "figure4": (_slices, "ratings"),
    "figure4b": (_slices, "clicks"),
    "figure5": (_exponents, "ratings"),
    "figure7": (_skew, "ratings"),
    "figure8": (_slices, "ratings"),
    "figure8b": (_slices, "clicks"),
    "figure9": (_exponents, "clicks"),
    "figure10": (_overlap, "ratings"),
    "tables": (_neighbours, "ratings"),
}
"""The paper's Figures 1-10 and Tables 3-4, of ratings or clicks; 6 is Figure 2 on another data set. Figure 5 goes its own way."""
