"""Comparison of the default recipe with simple private methods, to find where it is worse: each on
the same data, split, epsilon and unit.

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
from pathlib import Path

from fedrec.errors import DataError, SettingsError
from fedrec.evaluation.intervals import mean_and_error
from fedrec.factorization.facts import public_facts
from fedrec.registry import BUILT_IN
from fedrec.run.data.datasets import load_dataset, load_split
from fedrec.settings import Scenario, load
from fedrec.storage import finite
from fedrec_research.runner import fitted, on_test
from fedrec_research.sealed import SealedSplit
from fedrec_research.trials import Asked, Row

OURS = "default"
SIMPLE = ("dp-bias", "dp-popularity", "dp-item-item")
EPSILONS = (0.5, 1.0, 5.0, 20.0, math.inf)
QUICK_EPSILONS = (5.0,)
SEEDS = (1, 2, 3)
DELTA = 1e-5
K = 20
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
RMSE_BAR = 0.002
"""How far behind is allowed, in units of the rating."""
NDCG_BAR = 0.01
"""The same as a share of the best simple method's NDCG."""
_METRICS = ("rmse", f"ndcg@{K}")


@dataclass(frozen=True)
class Cut:
    """What is kept of a data set: all of it where both are 0."""

    users: int = 0
    items: int = 0

    @property
    def words(self) -> str:
        """Words for a row's name."""
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
        """Name for people."""
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


Key = tuple[Place, float, str]
"""A place, an epsilon and a recipe."""


def run(asked: Asked) -> Row:
    """All data sets, whole and with each cut, with every row.

    Raises SettingsError where two folders have one name."""
    cuts = [Cut(), *(Cut(users=n) for n in asked.users), *(Cut(items=m) for m in asked.items)]
    places = [
        Place(path, (*asked.overrides, *more), cut, words)
        for given in asked.data or ("",)
        for path, more, words in ([(given, (), "")] if given != PLANTED else planted_places())
        for cut in cuts
    ]
    if len({place.name for place in places}) < len(places):
        raise SettingsError(
            "two of the data folders have the same name, or a size is there twice", "Say each once."
        )
    recipes = [OURS, *(name for name in SIMPLE if name in BUILT_IN)]
    epsilons = asked.epsilons or (QUICK_EPSILONS if asked.quick else EPSILONS)
    grid = list(itertools.product(places, epsilons, recipes))
    rows = asked.by_seed(
        {key: (simple_row, key[0], key[2], key[1]) for key in grid}, asked.seeds_of(SEEDS)
    )
    return dict(finite(summary(rows)))


def planted_places(explained: float = 0.5) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """No folder, overrides, and words of every shape as ratings and as clicks; explained: of what
    items are, by their public sides."""
    for kind, (users, items, each) in itertools.product(("ratings", "clicks"), SHAPES):
        sizes = f"users={users}, items={items}, events={users * each}"
        shape = f"data.planted={{{sizes}, explained={explained}}}"
        yield (
            "",
            (shape, f"data.kind={kind}"),
            f" {kind}, {users:,} x {items:,}, {each} each",
        )


def simple_row(place: Place, recipe: str, epsilon: float, seed: int) -> Row:
    """Test RMSE (of ratings) and NDCG@20 of a recipe trained to its end; of one that refuses the
    data, why."""
    try:
        scenario = place.scenario(recipe, epsilon, seed)
        dataset = load_dataset(scenario)
        divided = any(said.startswith("split.kind") for said in place.overrides)
        if dataset.given_test is not None and not divided:
            split = scenario.split.model_copy(update={"kind": "given", "validation_share": 0.1})
            scenario = scenario.model_copy(update={"split": split})
        sealed = SealedSplit(load_split(scenario, dataset))
        events = sealed.train
        found = fitted(scenario, public_facts(scenario.seed, dataset, sealed), events)
    except (SettingsError, DataError) as refusal:
        if recipe == OURS and place.cut == Cut():
            raise
        return {"refused": refusal.cause}
    row = on_test(found, sealed, cutoffs=(K,), ranking=True)[0]
    sizes = {"users": events.num_users, "items": events.num_items, "train": len(events)}
    metrics = {name: row[name] for name in _METRICS if name in row}
    return metrics | sizes | {"kind": events.kind}


def summary(rows: Mapping[Key, Sequence[Row]]) -> Row:
    """Means by data set, epsilon and metric, the best simple method beside the default, and whether
    the bar holds."""
    values = defaultdict[tuple[str, float, str], dict[str, list[float]]](lambda: defaultdict(list))
    sizes = dict[str, Row]()
    refused = dict[str, str]()
    for (place, epsilon, recipe), found in rows.items():
        for row in found:
            for metric in (name for name in _METRICS if isinstance(row.get(name), float)):
                values[place.name, epsilon, metric][recipe].append(row[metric])
            if "refused" in row:
                refused[f"{place.name}: {recipe}"] = row["refused"]
            elif recipe == OURS:
                shown = ("users", "items", "train", "kind")
                sizes[place.name] = {name: row[name] for name in shown}
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
        "rows": [
            {"data": place.name, "epsilon": epsilon, "recipe": recipe, **row}
            for (place, epsilon, recipe), found in rows.items()
            for row in found
        ],
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
