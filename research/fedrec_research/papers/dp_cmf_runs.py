"""Trainings behind the figures of DP-CMF (Curmei et al. 2023): public sources, settings chosen on
validation, one reading of test.

Protocol, from the figure's scenario: random 80/10/10 by split seed of the private users' ratings,
the noise's seed being the split's; user level. The paper takes its public users from ML-20M. Where
there is no second source, half of the users are made public by the split's seed and leave the
private data, validation and test: the paper's proportion (70,152 beside 69,878). Settings without
sides are those of `recipe = "published"`; alpha and lambda' are chosen per side and epsilon on the
validation ratings of the first seed (4.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from fedrec.data.features import PublicFeatures
from fedrec.data.interactions import Dataset
from fedrec.data.public_sources import PUBLIC_USERS, SIMILAR_ITEMS
from fedrec.evaluation.als import als_model
from fedrec.evaluation.ratings import by_popularity
from fedrec.factorization.facts import PublicFacts, predict, public_facts
from fedrec.public_sides import Similarity, learned_similar_items
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import Scenario
from fedrec.settings_tables.collective import CollectiveSettings
from fedrec_research.papers.paper import Work
from fedrec_research.papers.starts import Start
from fedrec_research.runner import Fitted, fitted, item_counts, on_test, rmse
from fedrec_research.sealed import PUBLIC_SOURCES, SealedSplit, load_sealed
from fedrec_research.trials import Row, merged, trial

BUCKETS = 4
WEIGHTS = (1.0, 10.0, 100.0, 1000.0)
"""Candidates of alpha."""
RIDGES = (1.0, 10.0, 100.0)
"""Candidates of lambda'."""
DILUTIONS = (0.01, 0.1, 1.0)
"""Candidates of what multiplies the alphas of metadata and of similar items where all sides go
together."""
KEYS = {"metadata": "metadata", "similar-items": "similar", "public-users": "users"}
"""Sides, and how their settings begin."""
CATEGORIES = {
    "genre": ("genre", "listed_genre"),
    "topic": ("plot", "word"),
    "cast": ("actor", "director", "writer"),
}
"""What the paper takes from Wikidata, and the features that stand for it here."""


@dataclass(frozen=True)
class Curve:
    """One line of a figure: its label, its [collective] settings, and the recipe.

    The alpha and lambda' of its sides are chosen, without `start_passes` over public data.
    """

    label: str
    collective: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = "dp-cmf"
    start_passes: int = 0
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weighed(self) -> bool:
        """Whether its sides count by weights of ours; other recipes find by themselves what their
        sides say."""
        return self.recipe == "dp-cmf"

    @property
    def sides(self) -> tuple[str, ...]:
        """Sides of the recipe."""
        return tuple(self.collective.get("sides", ()))


PLAIN = Curve("", recipe="default")
"""The private ratings as every curve has them."""


def chosen_settings(
    work: Work, wanted: Sequence[tuple[Curve, float]]
) -> dict[tuple[str, float], Row]:
    """alpha and lambda' of the smallest validation RMSE of the first seed, as [collective] settings
    by label and epsilon: first of sides alone, then of several together, metadata and similar items
    diluted beside the public users.
    """
    start = work.start
    seed = work.seeds[0]
    weighed = [(curve, e) for curve, e in wanted if curve.sides and curve.weighed]
    alone = work.rows(
        {
            (curve.label, e, side): trial(
                chosen_on_validation,
                start,
                _alone(curve, side),
                e,
                tuple(_one_side(side, work.quick)),
                seed,
            )
            for curve, e in weighed
            for side in curve.sides
        }
    )
    found = {at: dict(row["collective"]) for at, row in alone.items()}
    together = work.rows(
        {
            (curve.label, e): trial(
                chosen_on_validation,
                start,
                replace(curve, label="", start_passes=0),
                e,
                tuple(_diluted(curve, [found[curve.label, e, s] for s in curve.sides], work.quick)),
                seed,
            )
            for curve, e in weighed
            if len(curve.sides) > 1
        }
    )
    single = {
        (curve.label, e): found[curve.label, e, curve.sides[0]]
        for curve, e in weighed
        if len(curve.sides) == 1
    }
    return single | {at: dict(row["collective"]) for at, row in together.items()}


def _alone(curve: Curve, side: str) -> Curve:
    of_side = curve if curve.sides == (side,) else Curve("", {**curve.collective, "sides": [side]})
    return replace(of_side, label=side, start_passes=0)


def _diluted(curve: Curve, alone: Sequence[Row], quick: bool) -> Iterator[Row]:
    each = merged(*alone)
    others = [KEYS[side] for side in KEYS if side in curve.sides and side != "public-users"]
    for factors in product(DILUTIONS[1:] if quick else DILUTIONS, repeat=len(others)):
        yield each | {
            f"{side}_weight": each.get(f"{side}_weight", 1.0) * f
            for side, f in zip(others, factors, strict=True)
        }


def _one_side(side: str, quick: bool) -> Iterator[Row]:
    weights = WEIGHTS[1:3] if quick else WEIGHTS
    for weight, ridge in product(weights, RIDGES[2:] if quick else RIDGES):
        yield {f"{KEYS[side]}_weight": weight, f"{KEYS[side]}_ridge": ridge}


def chosen_on_validation(
    start: Start, curve: Curve, epsilon: float, candidates: Sequence[Row], seed: int
) -> Row:
    """The best candidate on the validation ratings; test is not looked at."""
    errors = list[float]()
    for candidate in candidates:
        found, sealed = _trained(start, curve, epsilon, candidate, seed)
        errors.append(rmse(found.model, sealed.validation))
    best = candidates[int(np.argmin(errors))]
    return {"collective": best, "validation_rmse": min(errors), "tried": len(errors)}


def tested_row(start: Start, curve: Curve, epsilon: float, chosen: Row, seed: int) -> Row:
    """Train, then read the test ratings, once."""
    return {"chosen": chosen, **_measured(*_trained(start, curve, epsilon, chosen, seed))}


def als_row(start: Start, seed: int) -> Row:
    """ALS without privacy on the private users' ratings."""
    sealed = loaded(start, seed)[1]
    model = als_model(sealed.train, sealed.validation, seed=seed)
    return _measured(Fitted(model, "no privacy"), sealed)


def public_alone_row(start: Start, seed: int) -> Row:
    """The raw ratings of public users and nothing else: what costs no privacy at all, because no
    private rating is read."""
    curve = Curve("public users", {"sides": ["public-users"]}, start_passes=30)
    dataset, sealed = loaded(start, seed)
    made = prepare(scenario_of(start, curve, 1.0, seed, {}), facts_of(start, curve, seed))
    mean = dataset.features.bags[PUBLIC_USERS].counts.data.mean(dtype=np.float64)
    model = made.recipe.model({**made.recipe.begin(), "mean": np.array(mean)})
    return _measured(Fitted(model, "nothing private is used"), sealed)


def _measured(found: Fitted, sealed: SealedSplit) -> Row:
    """RMSE on test, over all items and by popularity, the most popular items first as in the
    paper."""
    row, _, split = on_test(found, sealed)
    fold = split.test
    predictions = predict(found.model, fold.history, fold.targets)
    parts = by_popularity(predictions, fold.targets, item_counts(split.train), buckets=BUCKETS)
    return row | {"buckets": [part.rmse for part in parts[::-1]]}


def _trained(
    start: Start, curve: Curve, epsilon: float, chosen: Row, seed: int
) -> tuple[Fitted, SealedSplit]:
    """With the seal that it was trained under."""
    sealed = loaded(start, seed)[1]
    told = scenario_of(start, curve, epsilon, seed, chosen)
    return fitted(told, facts_of(start, curve, seed), sealed.train), sealed


def facts_of(start: Start, curve: Curve, seed: int) -> PublicFacts:
    """What everybody knows; public users only for curves that use them, items' similarities learned
    once."""
    dataset, sealed = loaded(start, seed)
    features = dataset.features
    if "public-users" not in curve.sides and not curve.weighed:
        features = features.only(name for name in features.bags if name != PUBLIC_USERS)
    elif "similar-items" in curve.sides:
        chosen = CollectiveSettings.model_validate(curve.collective)
        features = _with_similar(start, seed, chosen.similarity, chosen.neighbours)
    told = scenario_of(start, PLAIN, 1.0, seed, {})
    return replace(public_facts(told.seed, dataset, sealed), features=features)


@lru_cache(maxsize=4)
def _with_similar(start: Start, seed: int, similarity: Similarity, k: int) -> PublicFeatures:
    """The data's features and the similarities that its public users teach: the same for every
    alpha, lambda' and epsilon."""
    features = loaded(start, seed)[0].features
    asked = CollectiveSettings(similarity=similarity, neighbours=k)
    bag = learned_similar_items(asked, features, Streams(seed))
    return PublicFeatures({**features.bags, SIMILAR_ITEMS: bag})


def loaded(start: Start, seed: int) -> tuple[Dataset, SealedSplit]:
    """Private ratings and all public sources, and the split of the private ratings: the same for
    every curve."""
    people = _people(start)
    if people:
        sides = {"sides": ["public-users"], **people}
        return load_sealed(_told(start, replace(PLAIN, recipe="dp-cmf"), 1.0, seed, sides))
    return load_sealed(_told(start, PLAIN, 1.0, seed, {}))  # Figure 3: everybody is private


def scenario_of(start: Start, curve: Curve, epsilon: float, seed: int, chosen: Row) -> Scenario:
    """What `fedrec simulate` would be told."""
    if curve.sides and not curve.weighed:
        return _told(start, curve, epsilon, seed, {**curve.collective, **_people(start)})
    if not curve.weighed:
        return _told(start, curve, epsilon, seed, {})
    collective = {**curve.collective, **chosen, "start_passes": curve.start_passes}
    if "metadata" in curve.sides:
        there = loaded(start, seed)[0].features.bags
        every = [name for names in CATEGORIES.values() for name in names]
        named = collective.get("categories") or every
        collective["categories"] = [name for name in named if name in there]
    if curve.sides != ("metadata",):
        collective |= _people(start)
    return _told(start, curve, epsilon, seed, collective)


def _told(start: Start, curve: Curve, epsilon: float, seed: int, collective: Row) -> Scenario:
    """The figure's scenario for one curve; of its [collective] only who is public holds for every
    curve."""
    content: Row = {
        "recipe": curve.recipe,
        "seed": seed,
        "split": {"seed": seed},
        "privacy": {"epsilon": epsilon},
    }
    tables: Row = {"model": dict(curve.model), "collective": collective}
    return start.laid_over(content, tables, leave=frozenset({"collective"}))


def _people(start: Start) -> Row:
    return start.scenario.collective.model_dump(include=PUBLIC_SOURCES, exclude_unset=True)
