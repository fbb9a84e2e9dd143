"""PyTorch modules of docs/torch.md beside statistics.

NDCG@20 of planted clicks (1,000 items, 60 clicks a person), by number of people and epsilon, of the
two modules of docs/examples, of popularity, item-item and the default. Half of what items are is in
their public features. Times of clicks are not planted, so that a sequence has nothing of its own to
tell. Rounds and learning rates are those of the estimator, tuned nowhere.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fedrec
from benchmarks.results import Row, Tables

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
EPSILONS = (1.0, 5.0, 20.0, math.inf)


def run(*, quick: bool, users: Sequence[int] = ()) -> Tables:
    """A row for each method, size and epsilon."""
    sizes = [300] if quick else list(users) or [2_000, 20_000]
    return {"modules of one's own": [row for n in sizes for row in _rows(n, quick)]}


def _rows(users: int, quick: bool) -> list[Row]:
    items = 120 if quick else 1_000
    shape = {"users": users, "items": items, "events": users * (20 if quick else 60)}
    train, test = fedrec.Dataset.planted(kind="clicks", planted=shape).split()
    rows = []
    for epsilon in EPSILONS[1:2] if quick else EPSILONS:
        for name, make in _methods(quick).items():
            begun = time.process_time()
            model = make(epsilon=epsilon, noise="seeded").fit(train)
            seconds = time.process_time() - begun
            found = fedrec.evaluate(model, test, k=(20,), controls=False).headline["ndcg@20"]
            rows.append(
                {
                    "people": users,
                    "epsilon": epsilon,
                    "method": name,
                    "ndcg@20": round(found, 4),
                    "processor_seconds": round(seconds, 1),
                }
            )
    return rows


def _methods(quick: bool) -> dict[str, Callable[..., Any]]:
    rounds = 2 if quick else 20
    return {
        "popularity": fedrec.Popularity,
        "item-item": fedrec.ItemItem,
        "default": fedrec.MatrixFactorization,
        "two towers": _own("torch_two_tower", "TwoTower", rounds),
        "self-attention": _own("torch_sequence", "Sequence", rounds),
    }


def _own(file: str, name: str, rounds: int) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(file, EXAMPLES / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file] = module  # its source is read from there
    spec.loader.exec_module(module)
    own = getattr(module, name)
    return lambda **given: fedrec.TorchRecommender(own, rounds=rounds, **given)
