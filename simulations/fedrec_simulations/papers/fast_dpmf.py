"""Figures of fast DP matrix factorisation (Liu, Wang, Smola 2015), re-made; `figure(name, ...)` gives rows, `PUBLISHED` the paper's words.

Figure 5 sets the published sampler, whose guarantee is not established, beside its sound sibling (`recipe = "fast-dpmf"`) and beside our
default recipe, at the same epsilons. Hyper-parameters of the sampler are chosen per epsilon on the validation ratings of the first seed;
test is read once per chain, after its last pass. Figures 2 and 4 watch validation. Table 1 counts cache misses with Cachegrind and is
not re-made. Rows of figures 2 and 3 hold seconds of the machine they ran on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.checkpoint import finite
from fedrec.data.splits import Split
from fedrec.errors import SettingsError
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.blocked_sgd import Diffusion, Pass, Rows, blocks_of, descend
from fedrec.factorization.model import predict
from fedrec.factorization.posterior import PosteriorSettings, guarantee_for, sample
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.streams import Streams
from fedrec_simulations.bench.quality import DELTA, Method, scenario_of, training_row
from fedrec_simulations.bench.rows import Row, folder_of, mean_and_error, row
from fedrec_simulations.datasets import load_dataset, load_split

SEEDS = (1, 2, 3)
EPSILONS = (1.0, 5.0, 20.0, 50.0, 100.0, 250.0, math.inf)
WIDTHS = (16, 128, 256, 512)
CANDIDATES = tuple({"dimension": d, "prior_std": std, "rate": rate} for d, std, rate in product((8, 16), (0.3, 0.5, 1.0), (0.01, 0.02)))
"""Of the sampler; the paper fixes K = 16 and gives the rest in a supplement."""
PASSES = 40

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "figure2": {"how": "printed in 6.3", "order, fastest first": ("SGD", "SGLD"), "SGD over GraphChi and GraphLab": "2 to 3 times"},
    "figure3": {
        "how": "printed in 6.1, Netflix, 15 passes, 32 virtual cores",
        "seconds by dimension": {128: 48.0, 256: 63.0, 512: 83.0},
        "ratings per pass": 99e6,
    },
    "figure4": {"how": "printed in 6.3", "SGLD at d = 16": "good samples; worse convergence the larger the model"},
    "figure5": {
        "how": "printed in 6.5 and 6.6, Netflix and Yahoo, K = 16, tau = 100 and 200",
        "epsilon 250": "almost no loss of accuracy; a typical user's personal epsilon is a 25th",
    },
}
"""What the paper prints. Its curves were not read off their axes."""


@dataclass(frozen=True)
class Work:
    """Where rows come from and go to."""

    data: str
    seeds: tuple[int, ...]
    quick: bool
    folder: Path


def figure(name: str, data: str, quick: bool, folder: Path) -> list[Row]:
    """Rows of one figure of `FIGURES`, resumed from `folder`; `data` "planted" is the small planted set; `quick`: one seed, few points.

    Raises SettingsError on another name, or without data.
    """
    if name not in FIGURES:
        raise SettingsError(f"fast DP matrix factorisation has no {name!r}", f"Use one of: {', '.join(FIGURES)}.")
    if not data:
        raise SettingsError(f"{name} needs a data folder", "Give one, e.g. --data PATH/ml-1m.")
    work = Work(data, SEEDS[:1] if quick else SEEDS, quick, folder_of(folder, data))
    return [dict(finite({"figure": name, **point})) for point in FIGURES[name](work)]


def _convergence(work: Work) -> Iterator[Row]:
    """Figure 2: validation RMSE against seconds, SGD (epsilon inf) and SGLD at the posterior's own temperature (epsilon = B)."""
    for d, epsilon in product((8,) if work.quick else (16, 128), (math.inf, 2_500.0)):
        yield from _watched(work, PosteriorSettings(dimension=d, passes=5 if work.quick else PASSES, rate=0.02, decay=0.1), epsilon)


def _sixteen(work: Work) -> Iterator[Row]:
    """Figure 4: SGLD at d = 16 against its passes, at several temperatures."""
    for epsilon in (250.0,) if work.quick else (2_500.0, 250.0, 50.0):
        yield from _watched(work, PosteriorSettings(passes=5 if work.quick else PASSES, rate=0.02, decay=0.1), epsilon)


def _watched(work: Work, settings: PosteriorSettings, epsilon: float) -> Iterator[Row]:
    made = row(work.folder, f"chain-{settings.dimension}-{settings.passes}-{epsilon:g}", watched_row, work.data, settings, epsilon, 1)
    series = f"{'SGD' if epsilon == math.inf else f'SGLD, epsilon {epsilon:g}'}, d = {settings.dimension}"
    for point in made["points"]:
        yield {"metric": "validation rmse", "series": series, "guarantee": made["guarantee"], **point}


def watched_row(data: str, settings: PosteriorSettings, epsilon: float, seed: int) -> Row:
    """Validation RMSE after every pass, and the seconds that the passes took."""
    split, points, seconds = _split(data, seed), list[Row](), 0.0
    chain = sample(split.train, settings, epsilon=epsilon, streams=Streams(seed))
    while True:
        started = time.perf_counter()
        found = next(chain, None)
        seconds += time.perf_counter() - started
        if found is None:
            return {"points": points, "guarantee": str(_claim(epsilon))}
        points.append({"passes": found.number, "seconds": seconds, "value": _error(split, found.model, "validation")})


def _timing(work: Work) -> Iterator[Row]:
    """Figure 3: seconds of 15 passes of SGD and of SGLD by dimension."""
    for d in (16,) if work.quick else WIDTHS:
        for series, seconds in row(work.folder, f"timing-{d}", timing_row, work.data, d, 1 if work.quick else 15).items():
            yield {"metric": "seconds of 15 passes", "series": series, "x": d, "value": seconds}


def timing_row(data: str, d: int, passes: int) -> Row:
    """Of one split's train ratings; scaled to 15 passes where fewer were run. The first pass, which compiles, is not counted."""
    train, rng, took = _split(data, 1).train, np.random.default_rng(0), dict[str, float]()
    blocks = blocks_of(train, (train.values - sum(train.value_range) / 2).astype(np.float32), stripes=8)
    for series, noise in (("SGD", None), ("SGLD", Diffusion(1.0, 1e-3, key=1))):
        U, V = ((0.1 * rng.standard_normal((n, d))).astype(np.float32) for n in (train.num_users, train.num_items))
        rows, one = Rows.of(U, V, blocks), Pass(0.01, time=0.01)
        descend(rows, blocks, one, noise)
        started = time.perf_counter()
        for _ in range(passes):
            descend(rows, blocks, one, noise)
        took[series] = (time.perf_counter() - started) * 15 / passes
    return took


def _privacy_utility(work: Work) -> Iterator[Row]:
    """Figure 5: test RMSE against epsilon."""
    for epsilon in (5.0, 250.0) if work.quick else EPSILONS:
        for conversion in ("add/remove", "printed"):
            chosen = _chosen(work, epsilon, conversion)
            rows = [
                row(work.folder, f"sample-{conversion[:3]}-{epsilon:g}-{s}", sample_row, work.data, chosen, epsilon, s) for s in work.seeds
            ]
            yield _point(f"SGLD, {conversion} conversion", epsilon, rows, work.seeds) | {"settings": chosen}
        for recipe, features in (("fast-dpmf", False), ("default", False), ("default", True)):
            method = Method(recipe, features, epsilon)
            made = [row(work.folder, f"{method.name}-{s}", training_row, work.data, method, s, work.folder) for s in work.seeds]
            words = str(Guarantee(**made[0]["guarantee"]) if math.isfinite(epsilon) else non_private(DELTA))
            label = f"{'sound sibling' if recipe == 'fast-dpmf' else 'our default'}{', with features' if features else ''}"
            yield _point(label, epsilon, [{**r, "guarantee": words} for r in made], work.seeds)


def _chosen(work: Work, epsilon: float, conversion: str) -> Row:
    """The candidate with the smallest validation RMSE of the first seed."""
    candidates = CANDIDATES[:1] if work.quick else CANDIDATES
    tried = [
        row(
            work.folder,
            f"tuning-{conversion[:3]}-{epsilon:g}-{number}",
            tuning_row,
            work.data,
            {**given, "conversion": conversion},
            epsilon,
        )
        for number, given in enumerate(candidates)
    ]
    return dict(min(tried, key=lambda r: r["validation_rmse"])["settings"])


def tuning_row(data: str, given: Row, epsilon: float) -> Row:
    """Validation RMSE of the last pass on the first split."""
    split = _split(data, SEEDS[0])
    *_, last = sample(split.train, _settings(given), epsilon=epsilon, streams=Streams(SEEDS[0]))
    return {"settings": given, "validation_rmse": _error(split, last.model, "validation")}


def sample_row(data: str, given: Row, epsilon: float, seed: int) -> Row:
    """Test RMSE of the chain's last state, on one split."""
    split = _split(data, seed)
    *_, last = sample(split.train, _settings(given), epsilon=epsilon, streams=Streams(seed))
    return {"rmse": _error(split, last.model, "test"), "guarantee": str(_claim(epsilon)), "settings": asdict(_settings(given))}


def _settings(given: Row) -> PosteriorSettings:
    return replace(PosteriorSettings(passes=PASSES, decay=0.1), **given)


def _claim(epsilon: float) -> Guarantee:
    return guarantee_for(epsilon, DELTA) if math.isfinite(epsilon) else non_private(DELTA)


def _split(data: str, seed: int) -> Split:
    scenario = scenario_of(data, Method("fast-dpmf", False, 1.0), seed)
    return load_split(scenario, load_dataset(scenario))


def _error(split: Split, model: Any, fold: str) -> float:
    asked = split.test if fold == "test" else split.validation
    return rating_metrics(predict(model, asked.history, asked.targets), asked.targets).rmse


def _point(series: str, epsilon: float, rows: list[Row], seeds: tuple[int, ...]) -> Row:
    value, error = mean_and_error([r["rmse"] for r in rows])
    content: Row = {"metric": "rmse", "series": series, "x": epsilon, "value": value, "standard_error": error}
    return content | {"each": [r["rmse"] for r in rows], "seeds": list(seeds), "guarantee": rows[0]["guarantee"]}


FIGURES: Mapping[str, Callable[[Work], Iterator[Row]]] = {
    "figure2": _convergence,
    "figure3": _timing,
    "figure4": _sixteen,
    "figure5": _privacy_utility,
}
"""The paper's figures; 1 shows a property of its data."""
