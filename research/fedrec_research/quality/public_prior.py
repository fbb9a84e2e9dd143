"""Public sides of items as the prior of clicks: the default recipe with and without them, beside
simple recipes at the same epsilon and beside what needs no privacy.

Random 80/10/10 by split seed, user level, delta 1e-5; NDCG@20 over the whole catalogue on
validation and on test, which is read once; means over seeds of split and noise. A folder of
HetRec's Last.fm (`user_artist.dat`, `artist_tag.dat`) has its tags as public sides. Listeners of
the same site gave them: they are public for this measurement alone.

"planted" as a folder stands for ratings and clicks of every shape of `simple.SHAPES`, whose public
sides say nothing, little or much of items: what they gain, and what useless ones cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from fedrec.data.splits import Fold
from fedrec.evaluation.als import ALS, ITEM_ITEM, als_model, item_item
from fedrec.evaluation.intervals import mean_and_error
from fedrec.evaluation.toplists import Scores, same_for_everyone
from fedrec.factorization.default_clicks.model import public_alone
from fedrec.factorization.facts import public_facts
from fedrec.factorization.rankers import Model
from fedrec.recipes.public_directions import public_sources
from fedrec.run.outcomes import evaluate, ranked, ranked_fold
from fedrec.run.ratings import PUBLIC_ALONE
from fedrec.storage import finite
from fedrec_research.quality.simple import (
    DELTA,
    OURS,
    PLANTED,
    Cut,
    Place,
    planted_places,
    simple_row,
)
from fedrec_research.runner import item_counts, on_test, on_validation, sealed_and_fitted
from fedrec_research.sealed import load_sealed
from fedrec_research.trials import Asked, Row

EPSILONS = (1.0, 5.0, 20.0, math.inf)
SEEDS = (1, 2, 3)
K = 20
NDCG = f"ndcg@{K}"
WITHOUT = f"{OURS}, without public sides"
LINES: Mapping[str, tuple[str, ...]] = {
    OURS: (),
    WITHOUT: ("model.encoder=id",),
    "dp-item-item": (),
    "dp-popularity": (),
}
"""Private lines: the recipe, and overrides of its scenario."""
POPULARITY = "popularity"
SAYS = {"nothing": 0.0, "little": 0.3, "much": 0.9}
"""How much of what planted items are their public sides explain, by its name."""
QUICK_SHAPES = 3
"""Of each kind."""
_KEPT: list[TemporaryDirectory[str]] = []
"""Folders of tables that this process has made, until its end."""


def run(asked: Asked) -> Row:
    """The table of one data set; of a small part one epsilon and seed.

    Raises SettingsError without one folder of clicks, DataError on bad data."""
    seeds = asked.seeds_of(SEEDS)
    epsilons = asked.epsilons or (EPSILONS[1:2] if asked.quick else EPSILONS)
    if asked.data == (PLANTED,):
        return planted_table(asked, epsilons, seeds)
    data = asked.path
    private = asked.by_seed(
        {
            (line, e): (private_row, data, asked.overrides, line, e)
            for e in epsilons
            for line in LINES
        },
        seeds,
    )
    controls = asked.by_seed({data: (controls_row, data, asked.overrides)}, seeds)[data]
    names = [name for name in controls[0] if name != "sizes"]
    return dict(
        finite(
            {
                "data": {"name": Path(data).resolve().name, **controls[0]["sizes"]},
                "delta": DELTA,
                "seeds": list(seeds),
                "private": [
                    {"line": line, "epsilon": e, **_means(rows)}
                    for (line, e), rows in private.items()
                ],
                "not private": {
                    name: _means([row[name] for row in controls if name in row]) for name in names
                },
            }
        )
    )


def planted_table(asked: Asked, epsilons: Sequence[float], seeds: Sequence[int]) -> Row:
    """Test NDCG@20 of clicks and RMSE of ratings, with and without public sides; quick: of the
    smallest shapes alone."""
    grid = dict[tuple[str, str, float, str], tuple[object, ...]]()
    for says, explained in SAYS.items():
        for given, more, words in _some(asked, planted_places(explained)):
            for (line, off), e in product(list(LINES.items())[:2], epsilons):
                place = Place(given, (*more, *asked.overrides, *off), Cut(), words)
                grid[words.strip(), says, e, line] = (simple_row, place, OURS, e)
    rows = asked.by_seed(grid, seeds)
    cells = list[Row]()
    for (name, says, e, line), found in rows.items():
        if line != OURS:
            continue
        metric = "rmse" if "rmse" in found[0] else NDCG
        ours, without = (
            [float(row[metric]) for row in some] for some in (found, rows[name, says, e, WITHOUT])
        )
        cells.append(
            {
                "data": name,
                "says": says,
                "epsilon": e,
                "metric": metric,
                "with": mean_and_error(ours),
                "without": mean_and_error(without),
                "gain": mean_and_error(
                    [
                        b - a if metric == "rmse" else a / b - 1
                        for a, b in zip(ours, without, strict=True)
                    ]
                ),
            }
        )
    return dict(finite({"delta": DELTA, "seeds": list(seeds), "cells": cells}))


def _some(
    asked: Asked, places: Iterable[tuple[str, tuple[str, ...], str]]
) -> list[tuple[str, tuple[str, ...], str]]:
    """All places, or the smallest; each kind has its shapes in the same order."""
    every = list(places)
    half = len(every) // 2
    return every[:QUICK_SHAPES] + every[half : half + QUICK_SHAPES] if asked.quick else every


def private_row(data: str, overrides: tuple[str, ...], line: str, epsilon: float, seed: int) -> Row:
    """NDCG@20 of a private line on validation and, once, on test."""
    recipe = line.split(",")[0]
    scenario = _place(data, (*overrides, *LINES[line])).scenario(recipe, epsilon, seed)
    _, sealed, found = sealed_and_fitted(scenario)
    validation = on_validation(found.model, sealed, NDCG)
    return {"validation": validation, "test": on_test(found, sealed)[0][NDCG]}


def controls_row(data: str, overrides: tuple[str, ...], seed: int) -> Row:
    """NDCG@20 of what needs no privacy, and the sizes of the data."""
    scenario = _place(data, overrides).scenario(OURS, math.inf, seed)
    dataset, sealed = load_sealed(scenario)
    train = sealed.train
    validation = sealed.validation
    models: dict[str, Model] = {ALS: als_model(train, validation, seed=seed)}
    if directions := public_sources(scenario, public_facts(scenario.seed, dataset, sealed))[1]:
        models[PUBLIC_ALONE] = public_alone(directions)
    similar = item_item(train, validation)
    popular = same_for_everyone(item_counts(train))
    lists: dict[str, Callable[[Fold], Scores]] = {
        POPULARITY: lambda fold: popular,
        ITEM_ITEM: lambda fold: similar.scores(fold.history),
    }
    test = sealed.open({}).split.test

    def listed(scores: Callable[[Fold], Scores], fold: Fold) -> float:
        some = ranked_fold(fold)
        return ranked(scores(some), some, train, cutoffs=(K,)).at[K].ndcg

    def modelled(model: Model, fold: Fold) -> float:
        found = evaluate(model, fold, train, cutoffs=(K,), ranking=False).metrics()[NDCG]
        return math.nan if found is None else float(found)

    folds = {"validation": validation, "test": test}
    rows = {
        name: {fold: listed(scores, on) for fold, on in folds.items()}
        for name, scores in lists.items()
    }
    rows |= {
        name: {fold: modelled(model, on) for fold, on in folds.items()}
        for name, model in models.items()
    }
    sizes = {"users": train.num_users, "items": train.num_items, "train": len(train)}
    return {"sizes": sizes, **rows}


def _means(rows: Sequence[Row]) -> Row:
    """The mean and its standard error over seeds, of validation and of test."""
    return {fold: mean_and_error([row[fold] for row in rows]) for fold in ("validation", "test")}


def _place(data: str, overrides: tuple[str, ...]) -> Place:
    """Clicks of a folder that fedrec reads, or of HetRec's Last.fm with its tags."""
    clicks = Path(data) / "user_artist.dat"
    if not clicks.exists():
        return Place(data, ("data.kind=clicks", *overrides), Cut())
    table = (
        "data.format=table",
        "data.header=no",
        "data.separator=tab",
        "data.columns={user='1', item='2', rating='3'}",
        "data.click_threshold=1",
    )
    tags = f"data.features_path={_tags(data)}"
    return Place(str(clicks), ("data.kind=clicks", *table, tags, *overrides), Cut())


@cache
def _tags(data: str) -> Path:
    """A table of items and their tags, a row for each."""
    _KEPT.append(TemporaryDirectory())
    path = Path(_KEPT[-1].name) / "tags.csv"
    pairs = pl.read_csv(
        Path(data) / "artist_tag.dat",
        separator="\t",
        has_header=False,
        new_columns=["2", "tag"],
        infer_schema=False,
    )
    pairs.group_by("2", maintain_order=True).agg(pl.col("tag").str.join("|")).write_csv(path)
    return path
