"""What three aggregators cost: bytes and CPU of a user, by stage, and the model's error beside one
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

from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.model import predict
from fedrec.federation.checked_grid import on_checked_grid
from fedrec.federation.hostile_clients import opening_mu
from fedrec.federation.messages import Question, ReleaseSpec
from fedrec.federation.reports import RealBlock, block, bounded
from fedrec.federation.rounds import train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.calibration import among_three, calibrate
from fedrec.privacy.guarantee import Guarantee
from fedrec.privacy.ledger import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.settings import validated
from fedrec.sharing.checks import opening, projection
from fedrec.sharing.layout import checked_layout, layout, plain_numbers, with_own_noise
from fedrec.sharing.record import upload_bytes
from fedrec.sharing.servers import ShareSums
from fedrec.sharing.shares import Shares, fresh_seeds, share
from fedrec.storage import finite
from fedrec_simulations.experiments.rows import table

SHAPES = ((3_883, 9, 8), (3_883, 33, 8), (10_677, 33, 8), (40_000, 33, 8))
"""Items, width of a vector, folds: MovieLens 1M's steps, and larger ones."""
EPSILONS = (1.0, 5.0, 20.0)
MODES = {
    "trusted": {},
    "one-corrupt": {"aggregation": "three-party"},
    "one-corrupt, checked": {"aggregation": "three-party", "hostile_clients": "checked"},
    "outsiders": {"aggregation": "three-party", "calibrate_for": "outsiders"},
}
_USERS, _ITEMS_HELD = 256, 150


def run(data: str = "", *, quick: bool = False, seeds: Sequence[int] = (1, 2, 3)) -> dict[str, Any]:
    """A JSON-able dict of `costs` and `errors`. data: a folder of ratings; "" plants some.

    `quick`: one small shape, one training each."""
    shapes, epsilons = (((200, 9, 8),), (5.0,)) if quick else (SHAPES, EPSILONS)
    errors = [
        _errors(data, epsilon, seeds[:1] if quick else seeds, quick=quick) for epsilon in epsilons
    ]
    return dict(
        finite(
            {
                "costs": [_cost(*shape) for shape in shapes],
                "errors": errors,
                "seeds": len(seeds),
                "data": Path(data).name if data else "planted",
            }
        )
    )


def _cost(items: int, width: int, folds: int) -> dict[str, Any]:
    spec = ReleaseSpec("step", (block("step", "linear", rows=items, width=width, folds=folds),))
    question, rng = Question(0, "step", {}, (spec,)), np.random.default_rng(1)
    held = [
        np.sort(rng.choice(items, min(_ITEMS_HELD, items // 2), replace=False))
        for _ in range(_USERS)
    ]
    ptr = np.concatenate([[0], np.cumsum([len(each) for each in held])]).astype(np.int64)
    real = [RealBlock(rng.normal(size=int(ptr[-1])), rng.normal(size=(_USERS * folds, width)))]
    reports, shape = (
        bounded(ptr, np.concatenate(held).astype(np.int32), real, question.releases),
        layout(question),
    )
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
    """The same where clients are checked, at epsilon 5 in seven such steps."""
    plan = among_three(
        calibrate(Guarantee(5.0, 1e-5), {"step": 1.0, "others": 6.0}),
        calibrated_for="one-corrupt",
        hostile_clients="checked",
    )
    asked = on_checked_grid(question, plan)
    shape, keys = checked_layout(asked), [bytes([i]) * 32 for i in range(3)]
    checked = shape.checked
    assert checked is not None
    reports = bounded(ptr, np.concatenate(held).astype(np.int32), real, asked.releases)
    own_keys = [bytes([i % 256]) * 32 for i in range(_USERS)]

    def client() -> Shares:
        return share(
            with_own_noise(plain_numbers(reports, shape), shape, own_keys), fresh_seeds(_USERS)
        )

    sent, sums = client(), ShareSums(shape)
    pair, C = sent.held_by(0), projection([b"a", b"b", b"c"], checked.data.stop)
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


def _errors(data: str, epsilon: float, seeds: Sequence[int], *, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: [_rmse(data, epsilon, seed, mode, quick=quick) for seed in seeds]
        for name, mode in MODES.items()
    }
    cells = {name: {"rmse": _mean([rmse for rmse, *_ in rows])} for name, rows in found.items()}
    for name, rows in found.items():
        _, outsiders, one, upload = rows[0]
        cells[name] |= {"outsiders": outsiders, "one_aggregator": one, "upload_bytes": upload}
    return {"epsilon": epsilon, "modes": cells}


def _rmse(
    data: str, epsilon: float, seed: int, mode: dict[str, str], *, quick: bool
) -> tuple[float, float, float, float]:
    """On test, and the two epsilons and bytes a user of the training; the split is the same for
    all, noise is the seed's."""
    users, items = (300, 80) if quick else (6_000, 1_000)
    source: dict[str, Any] = (
        {"path": data}
        if data
        else {"planted": {"users": users, "items": items, "events": 20 * users}}
    )
    content = {
        "data": source,
        "split": {"seed": 1},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "noise": "seeded", **mode},
    }
    scenario = validated(content, source="fedrec bench sharing")
    dataset = load_dataset(scenario)
    split = load_split(scenario, dataset)
    made = prepare(scenario, public_facts(scenario, dataset, split))
    link = Loopback(split.train, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    rmse = rating_metrics(
        predict(made.recipe.model(last.state), split.test.history, split.test.targets),
        split.test.targets,
    ).rmse
    one = math.inf if not mode else made.plan.guarantee.epsilon
    return rmse, made.plan.for_outsiders.epsilon, one, link.bytes_up / split.train.num_users


def _mean(values: Sequence[float]) -> dict[str, float]:
    stderr = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return {"mean": float(np.mean(values)), "stderr": stderr}


def markdown(result: dict[str, Any]) -> str:
    """For docs/benchmarks.md."""
    costs = [
        [
            f"{cost['items']:,} items, {cost['folds']} vectors of {cost['width']}",
            f"{cost['upload_bytes'] / 1000:.1f} kB",
            *(f"{cost['cpu_ms'][stage]:.3f} ms" for stage in ("client", "expand", "fold")),
        ]
        for cost in result["costs"]
    ]
    errors = [
        [
            f"{cell['epsilon']:g}",
            name,
            _eps(mode["outsiders"]),
            _eps(mode["one_aggregator"]),
            *_measured(mode),
        ]
        for cell in result["errors"]
        for name, mode in cell["modes"].items()
    ]
    stages = ("client", "expand", "check", "fold")
    checked = [
        [
            f"{cost['items']:,} items, {cost['folds']} vectors of {cost['width']}",
            f"{cost['checked']['upload_bytes'] / 1000:.1f} kB",
            *(f"{cost['checked']['cpu_ms'][stage]:.3f} ms" for stage in stages),
            str(cost["checked"]["bits"]),
        ]
        for cost in result["costs"]
        if "checked" in cost
    ]
    by_stage = table(
        ("a user, a round", "sent", "client CPU", "an aggregator: expand", "an aggregator: add"),
        costs,
    )
    if checked:
        names = (
            "clients checked",
            "sent",
            "client CPU",
            "an aggregator: expand",
            "check",
            "add",
            "bits of a vector",
        )
        by_stage = f"{by_stage}\n\n{table(names, checked)}"
    head = (
        "ε asked for",
        "aggregation",
        "ε for outsiders",
        "ε for server and one aggregator",
        "test RMSE",
        "sent a user",
    )
    words = (
        f"Trainings: noise of {result['seeds']} seeds. ε for outsiders, and of a trusted "
        "aggregator, is per user (add/remove, number of users public); ε for the server and one "
        "aggregator is per user (report replaced by the empty one)."
    )
    return f"{by_stage}\n\n{words}\n\n{table(head, errors)}"


def _eps(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) and math.isfinite(value) else "none"


def _measured(mode: dict[str, Any]) -> tuple[str, str]:
    rmse = mode["rmse"]
    spread = (
        f" ± {rmse['stderr']:.4f}"
        if isinstance(rmse["stderr"], float) and math.isfinite(rmse["stderr"])
        else ""
    )
    return f"{rmse['mean']:.4f}{spread}", f"{mode['upload_bytes'] / 1000:.1f} kB"
