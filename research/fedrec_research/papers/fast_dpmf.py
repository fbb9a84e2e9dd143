"""Figures of fast DP matrix factorisation (Liu, Wang, Smola 2015), re-made; `PAPER` declares them.

Figure 5 sets the published sampler, whose guarantee is not established, beside its sound sibling
(`recipe = "noisy-descent"`) at the same epsilons. Hyper-parameters of
the sampler are chosen per epsilon on the validation ratings of the first seed; test is read once
per chain, after its last pass. Figures 2 and 4 watch validation. Table 1 counts cache misses with
Cachegrind and is not re-made. Rows of figures 2 and 3 hold
processor seconds, of all threads together, of the machine they ran on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np

from fedrec.privacy.guarantee import Guarantee, non_private
from fedrec.randomness import Streams
from fedrec.settings import Scenario
from fedrec_research.fast_dpmf.blocked_sgd import Diffusion, Pass, Rows, blocks_of, descend
from fedrec_research.fast_dpmf.recipe import PosteriorSettings, guarantee_for, sample
from fedrec_research.papers.paper import Line, Paper, Point, Work, joined
from fedrec_research.papers.starts import Start
from fedrec_research.runner import Fitted, on_test, rmse, row_of
from fedrec_research.sealed import SealedSplit, load_sealed
from fedrec_research.trials import Row, trial

CANDIDATES = tuple(
    {"dimension": d, "prior_std": std, "rate": rate}
    for d, std, rate in product((8, 16), (0.1, 0.3, 1.0), (0.01, 0.02))
)
"""Of the sampler; the paper fixes K = 16 and gives the rest in a supplement."""
PASSES = 40
CONVERSIONS = ("add/remove", "printed")
DESCENT = "noisy descent, ours"
"""The series of `recipe = "noisy-descent"`, whose guarantee holds."""


def _convergence(work: Work) -> list[Line]:
    """Figure 2: validation RMSE against seconds, SGD (epsilon inf) and SGLD at the posterior's own
    temperature (epsilon = B)."""
    dimensions = (8,) if work.quick else map(int, work.points)
    return _watched(work, list(product(dimensions, work.start.figure.epsilons)))


def _sixteen(work: Work) -> list[Line]:
    """Figure 4: SGLD at d = 16 against its passes, at several temperatures."""
    epsilons = work.start.figure.epsilons
    some = epsilons[:1] if work.quick else epsilons
    return _watched(work, [(PosteriorSettings.dimension, e) for e in some])


def _watched(work: Work, chains: Sequence[tuple[int, float]]) -> list[Line]:
    how = {"passes": 5 if work.quick else PASSES, "rate": 0.02, "decay": 0.1}
    found = work.by_seed(
        {
            (d, e): (watched_row, work.start, PosteriorSettings(dimension=d, **how), e)  # type: ignore[arg-type]
            for d, e in chains
        }
    )
    return [
        line
        for (d, e), rows in found.items()
        for line in joined([_points_of(work, _series(d, e), row) for row in rows])
    ]


def _points_of(work: Work, series: str, row: Row) -> list[Line]:
    x = work.start.figure.x
    promise = row["guarantee"]
    return [
        Line("validation rmse", series, at[x], [at["value"]], promise, {"passes": at["passes"]})
        for at in row["points"]
    ]


def _series(dimension: int, epsilon: float) -> str:
    return f"{'SGD' if epsilon == math.inf else f'SGLD, epsilon {epsilon:g}'}, d = {dimension}"


def watched_row(start: Start, settings: PosteriorSettings, epsilon: float, seed: int) -> Row:
    """Validation RMSE after every pass, and the processor seconds of all threads that the passes
    took."""
    sealed = _sealed(start, seed)
    points = list[Row]()
    seconds = 0.0
    chain = sample(sealed.train, settings, epsilon=epsilon, streams=Streams(seed))
    while True:
        started = time.process_time()
        found = next(chain, None)
        seconds += time.process_time() - started
        if found is None:
            return {"points": points, "guarantee": str(_claim(start, epsilon))}
        value = rmse(found.model, sealed.validation)
        points.append({"passes": found.number, "processor seconds": seconds, "value": value})


def _timing(work: Work) -> list[Line]:
    """Figure 3: processor seconds of 15 passes of SGD and of SGLD by dimension."""
    passes = 1 if work.quick else 15
    dimensions = (16,) if work.quick else tuple(map(int, work.points))
    metric = "processor seconds of 15 passes"
    return work.lines(
        Point(series, d, timing_row, (work.start, d, passes), {metric: series})
        for d, series in product(dimensions, ("SGD", "SGLD"))
    )


def timing_row(start: Start, d: int, passes: int, seed: int) -> Row:
    """Time passes over one split's train ratings; scaled to 15 passes where fewer were run.

    The first pass, which compiles, is not counted."""
    train = _sealed(start, seed).train
    rng = np.random.default_rng(0)
    took = dict[str, float]()
    centred = (train.values - sum(train.value_range) / 2).astype(np.float32)
    blocks = blocks_of(train, centred, stripes=8)
    for series, noise in (("SGD", None), ("SGLD", Diffusion(1.0, 1e-3, key=1))):
        U, V = (
            (0.1 * rng.standard_normal((n, d))).astype(np.float32)
            for n in (train.num_users, train.num_items)
        )
        rows = Rows.of(U, V, blocks)
        one = Pass(0.01, time=0.01)
        descend(rows, blocks, one, noise)
        started = time.process_time()
        for _ in range(passes):
            descend(rows, blocks, one, noise)
        took[series] = (time.process_time() - started) * 15 / passes
    return took


def _privacy_utility(work: Work) -> list[Line]:
    """Figure 5: test RMSE against epsilon."""
    epsilons = (5.0, 250.0) if work.quick else work.start.figure.epsilons
    candidates = CANDIDATES[:1] if work.quick else CANDIDATES
    tried = work.rows(
        {
            (e, way, n): trial(
                tuning_row, work.start, {**given, "conversion": way}, e, work.seeds[0]
            )
            for e, way in product(epsilons, CONVERSIONS)
            for n, given in enumerate(candidates)
        }
    )
    points = list[Point]()
    for epsilon in epsilons:
        for way in CONVERSIONS:
            best = _best([tried[epsilon, way, n] for n in range(len(candidates))])
            asked = (work.start, best, epsilon)
            series = f"SGLD, {way} conversion"
            more = {"settings": best}
            points.append(Point(series, epsilon, sample_row, asked, {"rmse": "rmse"}, more))
        asked_too = (work.start, epsilon)
        points.append(Point(DESCENT, epsilon, trained_row, asked_too, {"rmse": "rmse"}))
    return work.lines(points)


def _best(tried: Sequence[Row]) -> Row:
    """The settings of smallest validation RMSE; text stands where a chain diverged."""
    errors = [
        math.inf if isinstance(error := row["validation_rmse"], str) else error for row in tried
    ]
    return dict(tried[int(np.argmin(errors))]["settings"])


def tuning_row(start: Start, given: Row, epsilon: float, seed: int) -> Row:
    """Validation RMSE of the last pass."""
    found, sealed = _sampled(start, given, epsilon, seed)
    return {"settings": given, "validation_rmse": rmse(found.model, sealed.validation)}


def sample_row(start: Start, given: Row, epsilon: float, seed: int) -> Row:
    """Test RMSE of the chain's last state, on one split."""
    row = on_test(*_sampled(start, given, epsilon, seed))[0]
    return row | {"settings": asdict(_settings(given))}


def trained_row(start: Start, epsilon: float, seed: int) -> Row:
    """Test RMSE of noisy descent, trained on one split."""
    return row_of(_scenario(start, epsilon, seed))


def _sampled(start: Start, given: Row, epsilon: float, seed: int) -> tuple[Fitted, SealedSplit]:
    sealed = _sealed(start, seed)
    *_, last = sample(sealed.train, _settings(given), epsilon=epsilon, streams=Streams(seed))
    return Fitted(last.model, _claim(start, epsilon)), sealed


def _settings(given: Row) -> PosteriorSettings:
    return replace(PosteriorSettings(passes=PASSES, decay=0.0, forgets=0.05), **given)


def _claim(start: Start, epsilon: float) -> Guarantee:
    delta = start.scenario.privacy.delta
    return guarantee_for(epsilon, delta) if math.isfinite(epsilon) else non_private(delta)


def _scenario(start: Start, epsilon: float, seed: int) -> Scenario:
    return start.laid_over(
        {
            "recipe": "noisy-descent",
            "seed": seed,
            "split": {"seed": seed},
            "privacy": {"epsilon": epsilon},
            "data": {"features": False},
        }
    )


def _sealed(start: Start, seed: int) -> SealedSplit:
    return load_sealed(_scenario(start, 1.0, seed))[1]


PAPER = Paper(
    name="fast DP matrix factorisation",
    prefix="fast_dpmf",
    figures={
        "figure2": _convergence,
        "figure3": _timing,
        "figure4": _sixteen,
        "figure5": _privacy_utility,
    },
    timed=("figure2", "figure3"),
)
"""The paper's figures; 1 shows a property of its data."""
