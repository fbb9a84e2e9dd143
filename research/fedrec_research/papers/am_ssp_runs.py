"""Trainings behind the figures of AM-SSP (Krichene et al. 2024): its curves as scenarios, trained
on one split and tested once.

Ratings: random 80/10/10, RMSE. Clicks: ratings of 4 and more, held-out users, Recall@20. Everything
is made sound, users as the unit: exact accounting, counts and mean charged, every resample of SSP1
charged in full. One curve is as printed, with Theorem 2 for its calibration, and says so in its
guarantee. Settings were chosen on validation of the first split; test is read once, after training.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from fedrec.data.interactions import Dataset
from fedrec.data.kinds import KINDS, assumed
from fedrec.factorization.facts import public_facts
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import Scenario
from fedrec_research.papers.ada_dpals_runs import measured, metric_of
from fedrec_research.papers.starts import Start
from fedrec_research.runner import Fitted, on_validation, rounds, sealed_and_fitted
from fedrec_research.sealed import SealedSplit, load_sealed
from fedrec_research.trials import Row

RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Candidates of the learning rate where Figure 4 changes how often noise is drawn."""
STEPS = 16
"""Gradient steps of Figure 4."""
PLAIN = "DP-SGD with biases, trusted curator"
"""No recipe: `dp_sgd.sampled` trains where all ratings lie, and owes its sampling to that."""


@dataclass(frozen=True)
class Curve:
    """One line of a figure: its label, its recipe, and what its scenario says beyond the figure's
    own lines.

    line: the curve whose [figure] settings it takes; empty for those of its label, if there are
    any.
    """

    label: str
    recipe: str = "published"
    line: str = ""
    model: Row = field(default_factory=dict)
    accountant: str = "gdp"
    features: bool = True


LOOPBACK = Curve("DP-ALS (id only)", model={"encoder": "id"}, features=False)
SSP = Curve("AM-SSP")
SSP1 = Curve("AM-SSP by SSP1, 16 resamples", line="AM-SSP", model={"resamples": STEPS})
PRINTED = Curve(
    "AM-SSP as printed (Theorem 2)",
    line="AM-SSP",
    model={"weights": "printed"},
    accountant="am-ssp",
)
DPSGD = Curve("AM-DPSGD with biases, our rewrite", recipe="encoder-descent")
"""With item biases and centred users, which the paper's model, and AM-SSP here, is without; a
linear encoder in full batches."""
CLICK_DPSGD = Curve("AM-DPSGD, our rewrite", recipe="encoder-descent", model={"own_vectors": False})
"""On clicks: without biases, of features alone, as AM-SSP; settings of the study's search on likes
of MovieLens 100K stand in the scenarios."""
OURS = Curve("our default", recipe="default")


def scenario_of(start: Start, curve: Curve, epsilon: float, seed: int) -> Scenario:
    """What `fedrec simulate` would be told."""
    model = {**start.settings(curve.line or curve.label, epsilon).get("model", {}), **curve.model}
    if model.get("resamples", 1) > 1:  # SSP1 needs a step for every release
        model["encoder_steps"] = max(model.get("encoder_steps", 0), model["resamples"])
    privacy = {
        "epsilon": epsilon,
        "accountant": curve.accountant if math.isfinite(epsilon) else "gdp",
    }
    told = {
        "recipe": curve.recipe,
        "seed": seed,
        "split": {"seed": seed},
        "privacy": privacy,
        "data": {"features": curve.features},
    }
    return start.laid_over(told, {"model": model} if model else {}, leave=frozenset({"model"}))


def loaded(start: Start, seed: int) -> tuple[Dataset, SealedSplit]:
    """The data with its features, sealed anew for each caller."""
    return load_sealed(scenario_of(start, SSP, 1.0, seed))


def prepared(start: Start, curve: Curve, epsilon: float, seed: int) -> Prepared:
    """Recipe and plan of one training."""
    scenario = scenario_of(start, curve, epsilon, seed)
    return prepare(scenario, public_facts(scenario.seed, *loaded(start, seed)))


def one_run(start: Start, curve: Curve, epsilon: float, seed: int) -> Row:
    """Train to the end, test once; all curves have the same data in memory."""
    told = scenario_of(start, curve, epsilon, seed)
    _, sealed, found = sealed_and_fitted(told, data=scenario_of(start, SSP, 1.0, seed))
    return measured(found, sealed)


def central_run(start: Start, curve: Curve, epsilon: float, seed: int) -> Row:
    """Plain DP-SGD on the ratings of `curve`'s scenario, tested once."""
    from fedrec_research.dp_sgd.sampled import settings_for, train_dpsgd  # torch and Opacus

    delta = scenario_of(start, curve, epsilon, seed).privacy.delta
    sealed = loaded(start, seed)[1]
    promise = Guarantee(epsilon, delta)
    settings = settings_for(epsilon)
    started = time.perf_counter()
    done = train_dpsgd(sealed.train, promise, settings, streams=Streams(seed))
    seconds = time.perf_counter() - started
    return measured(Fitted(done.model, f"{done.guarantee}; trusted curator", seconds), sealed)


def resampled(resamples: int, share: float) -> Curve:
    """Figure 4: one item update of 16 steps, on noise drawn `resamples` times (1: SSP2, 16: SSP1)
    with `share` of the examples each."""
    once: Row = {"steps": 1, "encoder_steps": STEPS, "resamples": resamples, "example_share": share}
    return Curve(f"AM-SSP, {resamples} resamples of {share:g}", line="AM-SSP", model=once)


def best_rate(start: Start, curve: Curve, epsilon: float, seed: int) -> Row:
    """The best of `RATES` on the validation fold; test is not looked at."""
    found = [_last(start, at_rate(curve, rate), epsilon, seed) for rate in RATES]
    best = (np.argmin if KINDS[assumed(start.scenario.data.kind)].rated else np.argmax)(found)
    return {"learning_rate": RATES[int(best)], "validation": found}


def at_rate(curve: Curve, rate: float) -> Curve:
    """The curve with another learning rate."""
    return replace(curve, model={**curve.model, "learning_rate": rate})


def _last(start: Start, curve: Curve, epsilon: float, seed: int) -> float:
    *_, point = watched(start, curve, epsilon, seed)
    return float(point["value"])


def timed(start: Start, curve: Curve, epsilon: float, seed: int) -> Row:
    """Figures 3 and 8: quality on validation against processor seconds of training.

    A run on planted data compiles first."""
    deque(watched(replace(start, data="planted"), curve, epsilon, seed), maxlen=0)
    guarantee = str(prepared(start, curve, epsilon, seed).plan.guarantee)
    return {"points": list(watched(start, curve, epsilon, seed)), "guarantee": guarantee}


def watched(start: Start, curve: Curve, epsilon: float, seed: int) -> Iterator[Row]:
    """After every round: processor seconds of training so far, of all threads together and without
    those of measuring, and quality on the validation fold."""
    made = prepared(start, curve, epsilon, seed)
    sealed = loaded(start, seed)[1]
    metric = metric_of(assumed(start.scenario.data.kind))
    to_come = rounds(made, sealed.train, seed)
    seconds = 0.0
    while True:
        started = time.process_time()
        done = next(to_come, None)
        seconds += time.process_time() - started
        if done is None:
            return
        value = on_validation(made.recipe.model(done.state), sealed, metric)
        yield {"seconds": seconds, "value": value}
