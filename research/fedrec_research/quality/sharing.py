"""Cost of three aggregators: bytes and CPU of a user, by stage, and the model's error beside one
trusted aggregator's.

CPU is that of the process, with one thread; compare stages with each other, not with another
machine. Errors are on test rows; nothing was chosen by them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.evaluation.intervals import mean_and_error
from fedrec.factorization.facts import public_facts
from fedrec.federation.hostile_clients import on_checked_grid, opening_mu
from fedrec.federation.messages import Question, ReleaseSpec, train
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import among_three, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import validated
from fedrec.sharing.layout import checked_layout, layout, plain_numbers, with_own_noise
from fedrec.sharing.record import upload_bytes
from fedrec.sharing.servers import ShareSums, opening, projection
from fedrec.sharing.shares import Shares, fresh_seeds, share
from fedrec.storage import finite
from fedrec_research.runner import rmse
from fedrec_research.sealed import load_sealed
from fedrec_research.trials import Asked, Row

SHAPES = ((3_883, 9, 8), (3_883, 33, 8), (10_677, 33, 8), (40_000, 33, 8))
"""Items, width of a vector, folds: MovieLens 1M's steps, and larger ones."""
EPSILONS = (1.0, 5.0, 20.0)
MODES = {
    "trusted": {},
    "one-corrupt": {"aggregation": "three-party"},
    "one-corrupt, checked": {"aggregation": "three-party", "hostile_clients": "checked"},
    "outsiders": {"aggregation": "three-party", "calibrate_for": "outsiders"},
}
_USERS = 256
_ITEMS_HELD = 150


def run(asked: Asked) -> Row:
    """`costs` and `errors`; without data of planted ratings; of a small part one small shape and
    one training each."""
    shapes, epsilons = (((200, 9, 8),), (5.0,)) if asked.quick else (SHAPES, EPSILONS)
    data = "".join(asked.data[:1])
    seeds = asked.seeds_of((1, 2, 3))
    told = {(e, mode): (error_row, data, e, mode, asked.quick) for e in epsilons for mode in MODES}
    rows = asked.by_seed(told, seeds)
    errors = [
        {"epsilon": e, "modes": {mode: _summary(rows[e, mode]) for mode in MODES}} for e in epsilons
    ]
    about = {"seeds": len(seeds), "data": Path(data).name if data else "planted"}
    return dict(finite({"costs": [_cost(*shape) for shape in shapes], "errors": errors} | about))


def _cost(items: int, width: int, folds: int) -> dict[str, Any]:
    spec = ReleaseSpec("step", (block("step", "linear", rows=items, width=width, folds=folds),))
    question = Question(0, "step", {}, (spec,))
    rng = np.random.default_rng(1)
    held = [
        np.sort(rng.choice(items, min(_ITEMS_HELD, items // 2), replace=False))
        for _ in range(_USERS)
    ]
    ptr = np.concatenate([[0], np.cumsum([len(each) for each in held])]).astype(np.int64)
    real = [RealBlock(rng.normal(size=int(ptr[-1])), rng.normal(size=(_USERS * folds, width)))]
    reports = bounded(ptr, np.concatenate(held).astype(np.int32), real, question.releases)
    shape = layout(question)
    sums = ShareSums(shape)
    sent = share(plain_numbers(reports, shape), fresh_seeds(_USERS))
    sums.add(*sent.held_by(0))  # compiles
    pair = sent.held_by(0)
    stages = {
        "client": lambda: share(plain_numbers(reports, shape), fresh_seeds(_USERS)),
        "expand": lambda: sent.held_by(0),
        "fold": lambda: sums.add(*pair),
    }
    cpu = {name: _milliseconds(stage) / _USERS for name, stage in stages.items()}
    sizes = {"items": items, "width": width, "folds": folds}
    return {
        **sizes,
        "upload_bytes": upload_bytes(shape.length),
        "cpu_ms": cpu,
        "checked": _checked_cost(question, ptr, held, real),
    }


def _checked_cost(
    question: Question, ptr: Any, held: Any, real: Sequence[RealBlock]
) -> dict[str, Any]:
    """Measure the cost where clients are checked, at epsilon 5 in seven such steps."""
    plan = among_three(
        calibrate(Guarantee(5.0, 1e-5), {"step": 1.0, "others": 6.0}),
        calibrated_for="one-corrupt",
        hostile_clients="checked",
    )
    asked = on_checked_grid(question, plan)
    shape = checked_layout(asked)
    keys = [bytes([i]) * 32 for i in range(3)]
    checked = shape.checked
    assert checked is not None
    reports = bounded(ptr, np.concatenate(held).astype(np.int32), real, asked.releases)
    own_keys = [bytes([i % 256]) * 32 for i in range(_USERS)]

    def client() -> Shares:
        return share(
            with_own_noise(plain_numbers(reports, shape), shape, own_keys), fresh_seeds(_USERS)
        )

    sent = client()
    sums = ShareSums(shape)
    pair = sent.held_by(0)
    C = projection([b"a", b"b", b"c"], checked.data.stop)
    stages: dict[str, Callable[[], object]] = {
        "client": client,
        "expand": lambda: sent.held_by(0),
        "check": lambda: opening(*pair, checked, C, 0, (keys[0], keys[1]), b"x"),
        "fold": lambda: sums.add(*pair),
    }
    for stage in stages.values():
        stage()  # compiles
    cpu = {name: _milliseconds(stage) / _USERS for name, stage in stages.items()}
    bits = round(-math.log2(asked.blocks[0].vector_step))
    return {
        "upload_bytes": upload_bytes(shape.length),
        "cpu_ms": cpu,
        "bits": bits,
        "opening_mu": opening_mu(asked)["step"],
    }


def _milliseconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The least of a few: what else the machine does only adds."""
    found = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        found.append(1e3 * (time.process_time() - started))
    return min(found)


def error_row(data: str, epsilon: float, mode: str, quick: bool, seed: int) -> Row:
    """On test, and the two epsilons and bytes a user of the training; the split is the same for
    all, noise is the seed's."""
    users, items = (300, 80) if quick else (6_000, 1_000)
    planted = {"planted": {"users": users, "items": items, "events": 20 * users}}
    content = {
        "data": {"path": data} if data else planted,
        "split": {"seed": 1},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "noise": "seeded", **MODES[mode]},
    }
    scenario = validated(content, source="the measurement of sharing")
    dataset, sealed = load_sealed(scenario)
    made = prepare(scenario, public_facts(scenario.seed, dataset, sealed))
    events = sealed.train
    ledger = Ledger(made.plan.guarantee)
    link = Loopback(events, made.steps, made.plan, Streams(seed), ledger)
    *_, last = train(made.recipe, link, made.recipe.begin())
    model = made.recipe.model(last.state)
    return {
        "rmse": rmse(model, sealed.open(model.arrays()).split.test),
        "outsiders": made.plan.for_outsiders.epsilon,
        "one_aggregator": math.inf if mode == "trusted" else made.plan.guarantee.epsilon,
        "upload_bytes": link.bytes_up / events.num_users,
    }


def _summary(rows: Sequence[Row]) -> Row:
    mean, error = mean_and_error([row["rmse"] for row in rows])
    return {**rows[0], "rmse": {"mean": mean, "stderr": error}}
