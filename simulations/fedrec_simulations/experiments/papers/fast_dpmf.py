"""Figures of fast DP matrix factorisation (Liu, Wang, Smola 2015), re-made; `figure(name, ...)` gives rows, `PUBLISHED` the paper's words.

Figure 5 sets the published sampler, whose guarantee is not established, beside its sound sibling (`recipe = "fast-dpmf"`) and beside our
default recipe, at the same epsilons. Hyper-parameters of the sampler are chosen per epsilon on the validation ratings of the first seed;
test is read once per chain, after its last pass. Figures 2 and 4 watch validation. Table 1 counts cache misses with Cachegrind and is
not re-made. Rows of figures 2 and 3 hold seconds of the machine they ran on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.splits import Fold
from fedrec.errors import SettingsError
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.blocked_sgd import Diffusion, Pass, Rows, blocks_of, descend
from fedrec.factorization.model import Model, predict
from fedrec.factorization.posterior import PosteriorSettings, guarantee_for, sample
from fedrec.federation.rounds import train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.registry import require
from fedrec.settings import Scenario
from fedrec.storage import finite
from fedrec_simulations.data.datasets import public_facts
from fedrec_simulations.data.sealed import SealedSplit, load_sealed
from fedrec_simulations.experiments.papers.starts import Start, started
from fedrec_simulations.experiments.rows import Row, folder_of, mean_and_error, row

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

    start: Start
    quick: bool
    folder: Path

    @property
    def seeds(self) -> tuple[int, ...]:
        """Split seeds; settings are chosen on the first."""
        return self.start.seeds(self.quick)

    def row(self, name: str, make: Callable[..., Row], *arguments: Any) -> Row:
        """Kept by name and by what the scenario says."""
        return row(self.folder, f"{name}-{self.start.key}", make, *arguments)


def figure(name: str, data: str, quick: bool, folder: Path, *, overrides: Sequence[str] = ()) -> list[Row]:
    """Rows of one figure of `FIGURES`, from `simulations/fast_dpmf_NAME.toml`; `data` "planted": the small planted set.

    `quick`: one seed, few points; overrides: `table.key=value` of the scenario. Rows are resumed from `folder`. Raises SettingsError on
    another name, on a wrong key, or without data.
    """
    if name not in FIGURES:
        raise SettingsError(f"fast DP matrix factorisation has no {name!r}", f"Use one of: {', '.join(FIGURES)}.")
    work = Work(started(f"fast_dpmf_{name}", data, tuple(overrides)), quick, folder_of(folder, data))
    return [dict(finite({"figure": name, **point})) for point in FIGURES[name](work)]


def _convergence(work: Work) -> Iterator[Row]:
    """Figure 2: validation RMSE against seconds, SGD (epsilon inf) and SGLD at the posterior's own temperature (epsilon = B)."""
    for d, epsilon in product((8,) if work.quick else map(int, work.start.figure.points), work.start.figure.epsilons):
        yield from _watched(work, PosteriorSettings(dimension=d, passes=5 if work.quick else PASSES, rate=0.02, decay=0.1), epsilon)


def _sixteen(work: Work) -> Iterator[Row]:
    """Figure 4: SGLD at d = 16 against its passes, at several temperatures."""
    for epsilon in work.start.figure.epsilons[:1] if work.quick else work.start.figure.epsilons:
        yield from _watched(work, PosteriorSettings(passes=5 if work.quick else PASSES, rate=0.02, decay=0.1), epsilon)


def _watched(work: Work, settings: PosteriorSettings, epsilon: float) -> Iterator[Row]:
    name, seed = f"chain-{settings.dimension}-{settings.passes}-{epsilon:g}-{work.seeds[0]}", work.seeds[0]
    made = work.row(name, watched_row, work.start, settings, epsilon, seed)
    series = f"{'SGD' if epsilon == math.inf else f'SGLD, epsilon {epsilon:g}'}, d = {settings.dimension}"
    for point in made["points"]:
        content = {"metric": "validation rmse", "series": series, "x": point[work.start.figure.x], "seeds": [seed]}
        yield content | {"guarantee": made["guarantee"], **point}


def watched_row(start: Start, settings: PosteriorSettings, epsilon: float, seed: int) -> Row:
    """Validation RMSE after every pass, and the seconds that the passes took."""
    sealed, points, seconds = _sealed(start, seed), list[Row](), 0.0
    chain = sample(sealed.train, settings, epsilon=epsilon, streams=Streams(seed))
    while True:
        started = time.perf_counter()
        found = next(chain, None)
        seconds += time.perf_counter() - started
        if found is None:
            return {"points": points, "guarantee": str(_claim(start, epsilon))}
        points.append({"passes": found.number, "seconds": seconds, "value": _error(sealed.validation, found.model)})


def _timing(work: Work) -> Iterator[Row]:
    """Figure 3: seconds of 15 passes of SGD and of SGLD by dimension."""
    passes, seed = (1 if work.quick else 15), work.seeds[0]
    for d in (16,) if work.quick else map(int, work.start.figure.points):
        for series, seconds in work.row(f"timing-{d}-{passes}-{seed}", timing_row, work.start, d, passes, seed).items():
            yield {"metric": "seconds of 15 passes", "series": series, "x": d, "value": seconds, "seeds": [seed]}


def timing_row(start: Start, d: int, passes: int, seed: int) -> Row:
    """Of one split's train ratings; scaled to 15 passes where fewer were run. The first pass, which compiles, is not counted."""
    train, rng, took = _sealed(start, seed).train, np.random.default_rng(0), dict[str, float]()
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
    for epsilon in (5.0, 250.0) if work.quick else work.start.figure.epsilons:
        for conversion in ("add/remove", "printed"):
            chosen = _chosen(work, epsilon, conversion)
            name = f"sample-{conversion[:3]}-{epsilon:g}"
            rows = [work.row(f"{name}-{work.seeds[0]}-{s}", sample_row, work.start, chosen, epsilon, s) for s in work.seeds]
            yield _point(f"SGLD, {conversion} conversion", epsilon, rows, work.seeds) | {"settings": chosen}
        plain = (("noisy descent, ours", "fast-dpmf", False), ("our default", "default", False))
        for label, recipe, features in (*plain, ("our default, with features", "default", True)):
            name = f"{recipe}-{'features' if features else 'plain'}-epsilon-{epsilon:g}"
            made = [work.row(f"{name}-{s}", trained_row, work.start, recipe, features, epsilon, s) for s in work.seeds]
            yield _point(label, epsilon, made, work.seeds)


def _chosen(work: Work, epsilon: float, conversion: str) -> Row:
    """The candidate with the smallest validation RMSE of the first seed."""
    candidates, seed = CANDIDATES[:1] if work.quick else CANDIDATES, work.seeds[0]
    name = f"tuning-{conversion[:3]}-{epsilon:g}-{seed}"
    tried = [
        work.row(f"{name}-{number}", tuning_row, work.start, {**given, "conversion": conversion}, epsilon, seed)
        for number, given in enumerate(candidates)
    ]
    errors = [math.inf if isinstance(error := r["validation_rmse"], str) else error for r in tried]  # text: it diverged
    return dict(tried[int(np.argmin(errors))]["settings"])  # the nan of a row that is not there wins: nothing is chosen from a part


def tuning_row(start: Start, given: Row, epsilon: float, seed: int) -> Row:
    """Validation RMSE of the last pass."""
    sealed = _sealed(start, seed)
    *_, last = sample(sealed.train, _settings(given), epsilon=epsilon, streams=Streams(seed))
    return {"settings": given, "validation_rmse": _error(sealed.validation, last.model)}


def sample_row(start: Start, given: Row, epsilon: float, seed: int) -> Row:
    """Test RMSE of the chain's last state, on one split."""
    sealed = _sealed(start, seed)
    *_, last = sample(sealed.train, _settings(given), epsilon=epsilon, streams=Streams(seed))
    return {"settings": asdict(_settings(given)), "guarantee": str(_claim(start, epsilon)), **_tested(last.model, sealed)}


def trained_row(start: Start, recipe: str, features: bool, epsilon: float, seed: int) -> Row:
    """Test RMSE of a recipe whose guarantee holds, trained on one split."""
    scenario = _scenario(start, recipe, features, epsilon, seed)
    dataset, sealed = load_sealed(scenario)
    made = prepare(scenario, public_facts(scenario, dataset, sealed))
    *_, last = train(
        made.recipe, Loopback(sealed.train, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee)), made.recipe.begin()
    )
    return {"guarantee": str(made.plan.guarantee), **_tested(made.recipe.model(last.state), sealed)}


def _settings(given: Row) -> PosteriorSettings:
    return replace(PosteriorSettings(passes=PASSES, decay=0.1), **given)


def _claim(start: Start, epsilon: float) -> Guarantee:
    delta = start.scenario.privacy.delta
    return guarantee_for(epsilon, delta) if math.isfinite(epsilon) else non_private(delta)


def _scenario(start: Start, recipe: str, features: bool, epsilon: float, seed: int) -> Scenario:
    told = {"recipe": recipe, "seed": seed, "split": {"seed": seed}, "privacy": {"epsilon": epsilon}, "data": {"features": features}}
    return start.laid_over(told, leave=frozenset() if "dimension" in require(recipe).keys else frozenset({"model"}))


def _sealed(start: Start, seed: int) -> SealedSplit:
    return load_sealed(_scenario(start, "fast-dpmf", False, 1.0, seed))[1]


def _tested(model: Model, sealed: SealedSplit) -> Row:
    opened = sealed.open(model.arrays())
    return {"rmse": _error(opened.split.test, model), "model_sha256": opened.model_sha256}


def _error(fold: Fold, model: Model) -> float:
    return rating_metrics(predict(model, fold.history, fold.targets), fold.targets).rmse


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
