"""Is the default recipe anywhere worse than a simple private method? Each on the same data, split,
epsilon and unit.

The simple methods are those recipes of SIMPLE that exist and take the kind of data. Data sets are
folders, or what `--set` plants, whole and cut down (data.keep_users, data.keep_items); "planted" as
a folder stands for ratings and clicks of every shape of SHAPES. User level, delta 1e-5; means over
seeds of split and noise, and of what is planted; test is read once. The bar: at most .002 of RMSE
or 1% of NDCG@20 behind the best simple method.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.errors import DataError, SettingsError
from fedrec.recipes import prepare
from fedrec.registry import BUILT_IN
from fedrec.run.data.datasets import load_dataset, load_split, public_facts
from fedrec.run.data.sealed import SealedSplit
from fedrec.run.outcomes import evaluate
from fedrec.settings import Scenario, load
from fedrec_simulations.experiments.in_memory import rounds
from fedrec_simulations.experiments.progress import Tell
from fedrec_simulations.experiments.row_queue import result_of
from fedrec_simulations.experiments.rows import Row, figure, mean_and_error, table
from fedrec_simulations.experiments.trials import Trial

OURS = "default"
SIMPLE = ("dp-bias", "dp-popularity", "dp-item-item")
EPSILONS, QUICK_EPSILONS, SEEDS, DELTA, K = (0.5, 1.0, 5.0, 20.0, math.inf), (5.0,), 3, 1e-5, 20
SHAPES = (
    (300, 100, 20),
    (1_000, 3_000, 30),
    (2_000, 1_000, 20),
    (2_000, 5_000, 50),
    (3_000, 1_000, 25),
    (5_000, 2_000, 20),
    (10_000, 2_000, 40),
    (20_000, 10_000, 25),
    (50_000, 500, 10),
    (50_000, 20_000, 20),
)
"""Planted users, items, and events of each user, on average."""
PLANTED = "planted"
RMSE_BAR, NDCG_BAR = 0.002, 0.01
"""How far behind is allowed: in units of the rating, and as a share of the best simple method's
NDCG."""
_METRICS = ("rmse", f"ndcg@{K}")


@dataclass(frozen=True)
class Cut:
    """What is kept of a data set: all of it where both are 0."""

    users: int = 0
    items: int = 0

    @property
    def words(self) -> str:
        """For a row's name."""
        return (
            f", {self.users} users"
            if self.users
            else f", {self.items} most rated items"
            if self.items
            else ""
        )


@dataclass(frozen=True)
class Place:
    """A data set: a folder, or none for planted data; overrides of the scenario; what is kept.

    words: of a planted one, beyond that it is."""

    data: str
    overrides: tuple[str, ...]
    cut: Cut
    words: str = ""

    @property
    def name(self) -> str:
        """For people."""
        data = Path(self.data).resolve().name if self.data else f"{PLANTED}{self.words}"
        return f"{data}{self.cut.words}"

    def scenario(self, recipe: str, epsilon: float, seed: int) -> Scenario:
        """Ratings and clicks without test events of their own are divided at random; others as
        given, unless an override says otherwise."""
        path = [f"data.path={self.data}"] if self.data else []
        cut = [f"data.keep_users={self.cut.users}", f"data.keep_items={self.cut.items}"]
        fixed = [
            f"recipe={recipe}",
            f"seed={seed}",
            f"split.seed={seed}",
            f"privacy.epsilon={epsilon}",
            f"privacy.delta={DELTA}",
        ]
        return load(None, [*path, *cut, *fixed, "privacy.noise=seeded", *self.overrides])


def run(
    data: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    users: Sequence[int] = (),
    items: Sequence[int] = (),
    epsilons: Sequence[float] = (),
    seeds: int = SEEDS,
    quick: bool = False,
    jobs: int = 1,
    output: Path | None = None,
    tell: Tell,
) -> dict[str, Any]:
    """All data sets, whole and with each cut, as a JSON-able dict with every row; rows that
    `output` holds already are not made again.

    Raises SettingsError where two folders have one name.
    """
    cuts = [Cut(), *(Cut(users=n) for n in users), *(Cut(items=m) for m in items)]
    places = [
        Place(path, (*overrides, *more), cut, words)
        for given in data or [""]
        for path, more, words in ([(given, (), "")] if given != PLANTED else _planted())
        for cut in cuts
    ]
    if len({place.name for place in places}) < len(places):
        raise SettingsError(
            "two of the data folders have the same name, or a size is there twice", "Say each once."
        )
    recipes = [OURS, *(name for name in SIMPLE if name in BUILT_IN)]
    epsilons = epsilons or (QUICK_EPSILONS if quick else EPSILONS)
    grid = itertools.product(range(1, (1 if quick else seeds) + 1), places, epsilons, recipes)
    tasks = [_Task(place, recipe, epsilon, seed) for seed, place, epsilon, recipe in grid]
    trials = [
        Trial.of(
            task.name,
            simple_row,
            task.place,
            task.recipe,
            task.epsilon,
            task.seed,
            recipes=(task.recipe,),
        )
        for task in tasks
    ]
    return result_of(trials, output=output, jobs=jobs, summary=partial(summary, tasks), tell=tell)


def _planted() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """No folder, overrides, and words of every shape as ratings and as clicks."""
    for kind, (users, items, each) in itertools.product(("ratings", "clicks"), SHAPES):
        shape = f"data.planted={{users={users}, items={items}, events={users * each}}}"
        yield (
            "",
            (shape, f"data.kind={kind}"),
            f" {kind}, {users:,} x {items:,}, {each} each",
        )


@dataclass(frozen=True)
class _Task:
    place: Place
    recipe: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.place.name}: {self.recipe}, epsilon {self.epsilon:g}, seed {self.seed}"


def simple_row(place: Place, recipe: str, epsilon: float, seed: int) -> Row:
    """Test RMSE (of ratings) and NDCG@20 of a recipe trained to its end; of one that refuses the
    data, why."""
    try:
        scenario = place.scenario(recipe, epsilon, seed)
    except SettingsError as refusal:
        if recipe == OURS:
            raise
        return {"refused": refusal.cause}  # a kind of data that it does not take
    try:
        dataset = load_dataset(scenario)
    except DataError as failure:
        if place.cut == Cut():
            raise
        return {"refused": failure.cause}  # fewer users or items than the cut asks for
    if dataset.given_test is not None and not any(
        said.startswith("split.kind") for said in place.overrides
    ):
        scenario = scenario.model_copy(
            update={
                "split": scenario.split.model_copy(
                    update={"kind": "given", "validation_share": 0.1}
                )
            }
        )
    sealed = SealedSplit(load_split(scenario, dataset))
    events, facts = sealed.train, public_facts(scenario, dataset, sealed)
    try:
        prepared = prepare(scenario, facts)
    except (SettingsError, DataError) as refusal:
        return {"refused": refusal.cause}
    *_, last = rounds(prepared, events, seed)
    model = prepared.recipe.model(last.state)
    outcome = evaluate(
        model, sealed.open(model.arrays()).split.test, events, cutoffs=(K,), ranking=True
    )
    metrics = {name: value for name, value in outcome.metrics().items() if name in _METRICS}
    return {
        **metrics,
        "users": events.num_users,
        "items": events.num_items,
        "train": len(events),
        "kind": events.kind,
    }


def summary(tasks: Sequence[_Task], rows: Mapping[str, Row]) -> Row:
    """Means by data set, epsilon and metric, the best simple method beside the default, and whether
    the bar holds."""
    values = defaultdict[tuple[str, float, str], dict[str, list[float]]](lambda: defaultdict(list))
    sizes, refused = dict[str, Row](), dict[str, str]()
    for task in tasks:
        row = rows.get(task.name, {})
        for metric in (name for name in _METRICS if isinstance(row.get(name), float)):
            values[task.place.name, task.epsilon, metric][task.recipe].append(row[metric])
        if "refused" in row:
            refused[f"{task.place.name}: {task.recipe}"] = row["refused"]
        elif row and task.recipe == OURS:
            sizes[task.place.name] = {
                name: row[name] for name in ("users", "items", "train", "kind")
            }
    cells = list(_cells(values))
    return {
        "protocol": {
            "delta": DELTA,
            "read": "test, once",
            "bar": {"rmse": RMSE_BAR, f"ndcg@{K}": NDCG_BAR},
        },
        "data": sizes,
        "refused": refused,
        "cells": cells,
        "behind": sum(cell["behind"] for cell in cells if cell["behind"] is not None),
    }


def _cells(values: Mapping[tuple[str, float, str], Mapping[str, Sequence[float]]]) -> Iterator[Row]:
    for (name, epsilon, metric), of_recipes in values.items():
        means = {recipe: mean_and_error(found) for recipe, found in of_recipes.items()}
        if OURS not in means:
            continue
        better = min if metric == "rmse" else max
        rivals = {recipe: mean for recipe, (mean, _) in means.items() if recipe != OURS}
        best = better(rivals, key=rivals.__getitem__) if rivals else None
        pairs = list(zip(of_recipes[OURS], of_recipes[best], strict=False)) if best else []
        yield {
            "data": name,
            "epsilon": epsilon,
            "metric": metric,
            "means": {recipe: mean for recipe, (mean, _) in means.items()},
            "standard_errors": {recipe: error for recipe, (_, error) in means.items()},
            "seeds": len(of_recipes[OURS]),
            "best_simple": best,
            "difference_error": mean_and_error([ours - simple for ours, simple in pairs])[1]
            if pairs
            else math.nan,
            "behind": None if best is None else _behind(metric, means[OURS][0], rivals[best]),
        }


def _behind(metric: str, ours: float, theirs: float) -> bool:
    """By more than the bar allows."""
    return ours > theirs + RMSE_BAR if metric == "rmse" else ours < theirs * (1 - NDCG_BAR)


def markdown(result: Row) -> str:
    """The result of `run` as a table for docs."""
    recipes = [
        OURS,
        *(name for name in SIMPLE if any(name in cell["means"] for cell in result["cells"])),
    ]
    lines = []
    for cell in result["cells"]:
        verdict = "–" if cell["behind"] is None else "**BEHIND**" if cell["behind"] else "holds"
        metric = "RMSE" if cell["metric"] == "rmse" else f"NDCG@{K}"
        lines.append(
            [
                cell["data"],
                f"{float(cell['epsilon']):g}",
                metric,
                *(figure(cell["means"].get(r)) for r in recipes),
                _difference(cell),
                verdict,
            ]
        )
    judged = [cell for cell in result["cells"] if cell["behind"] is not None]
    holds = len(judged) - result["behind"]
    words = (
        f"The bar holds in {holds} of {len(judged)} lines: at most {RMSE_BAR:g} of RMSE or "
        f"{NDCG_BAR:.0%} of NDCG behind."
    )
    return (
        f"{table(('data', 'ε per user (add/remove)', 'metric', *recipes, _LESS, 'bar'), lines)}"
        f"\n\n{words}"
    )


_LESS = f"{OURS} less the best simple one, ± s.e."


def _difference(cell: Row) -> str:
    """Of the means, and the standard error over paired seeds, where there are several."""
    if cell["best_simple"] is None:
        return "–"
    found = cell["means"][OURS] - cell["means"][cell["best_simple"]]
    error = figure(cell.get("difference_error"))
    return f"{found:+.4f}" + ("" if error == "–" else f" ± {error}")
