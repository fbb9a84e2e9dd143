"""Fast DPMF's Figure 5 on a stand-in of Netflix's shape: planted ratings, 69 a user and 1,850 an
item, as what the paper trains on.

    fedrec research measure posterior --users 145000 --items 5400 --epsilons inf,250,1000

One chain for each epsilon and conversion; RMSE on a tenth of the ratings. No finite chain is
private: nothing here is established.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.facts import predict
from fedrec.randomness import Streams
from fedrec.storage import finite
from fedrec_research.fast_dpmf.recipe import Conversion, PosteriorSettings, sample
from fedrec_research.trials import Asked, Row

PER_USER = 69
MOST_TESTED = 400_000
CONVERSIONS: tuple[Conversion, ...] = ("printed", "add/remove")


def run(asked: Asked) -> Row:
    """Rows by epsilon and conversion, beside item means and the global mean."""
    users = 2_000 if asked.quick else (asked.users or (145_000,))[0]
    items = 400 if asked.quick else (asked.items or (5_400,))[0]
    shape = replace(SHAPES["demo"], users=users, items=items, events=users * PER_USER)
    ratings = planted(shape, seed=1).interactions
    rng = np.random.default_rng(1)
    unseen = rng.random(len(ratings)) < 0.1
    train = ratings.select(~unseen)
    test = ratings.select(unseen)
    some = rng.random(len(test)) < MOST_TESTED / max(len(test), 1)
    test = test.select(some)
    counts = np.maximum(np.bincount(train.items, minlength=items), 1)
    means = np.bincount(train.items, train.values, items) / counts
    rows = [
        _row(train, test, epsilon, way, passes=2 if asked.quick else 30)
        for epsilon in asked.epsilons or (math.inf, 250.0)
        for way in CONVERSIONS[: 1 if math.isinf(epsilon) else 2]
    ]
    known = {
        "item mean": means[test.items],
        "global mean": np.full(len(test), np.mean(train.values)),
    }
    beside = {name: rating_metrics(values, test).rmse for name, values in known.items()}
    return dict(finite({"ratings": len(train), "rmse": beside, "rows": rows}))


def _row(
    train: Interactions, test: Interactions, epsilon: float, way: Conversion, *, passes: int
) -> Row:
    chosen = PosteriorSettings(passes=passes, rate=0.02, decay=0.0, forgets=0.05, conversion=way)
    started = time.perf_counter()
    *_, last = sample(train, chosen, epsilon=epsilon, streams=Streams(1))
    rmse = rating_metrics(predict(last.model, train, test), test).rmse
    seconds = time.perf_counter() - started
    return {"epsilon": epsilon, "conversion": way, "rmse": rmse, "seconds": seconds}
