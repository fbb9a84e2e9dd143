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

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

from fedrec.data.dataset import Dataset
from fedrec.data.features import PublicFeatures
from fedrec.data.public_sources import PUBLIC_USERS, SIMILAR_ITEMS
from fedrec.evaluation.ratings import by_popularity, rating_metrics
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.item_similarity import Similarity
from fedrec.factorization.model import Model, predict
from fedrec.public_sides import learned_similar_items
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.run.data.datasets import public_facts
from fedrec.run.data.sealed import PUBLIC_SOURCES, SealedSplit, load_sealed
from fedrec.settings import Scenario
from fedrec.settings_tables.collective import CollectiveSettings
from fedrec_simulations.experiments.ceiling import als_model
from fedrec_simulations.experiments.in_memory import rounds
from fedrec_simulations.experiments.papers.paper import BySeed, Work, by_seed
from fedrec_simulations.experiments.row_queue import Choices, Stage
from fedrec_simulations.experiments.rows import Row, merged
from fedrec_simulations.experiments.trials import Trial

BUCKETS = 4
WEIGHTS, RIDGES = (1.0, 10.0, 100.0, 1000.0), (1.0, 10.0, 100.0)
"""Candidates of alpha and of lambda'."""
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
        """Of the recipe."""
        return tuple(self.collective.get("sides", ()))


PLAIN = Curve("", recipe="default")
"""The private ratings as every curve has them."""


def tested_rows(work: Work, wanted: Sequence[tuple[Curve, float]]) -> BySeed[tuple[str, float]]:
    """One tested training for each seed of these curves and epsilons, by label and epsilon, once
    alpha and lambda' are chosen."""
    chosen = yield from _chosen(work, wanted)
    return (
        yield from by_seed(
            work.seeds,
            {
                (c.label, e): partial(_tested, work, c, e, chosen.get((c.label, e), {}))
                for c, e in wanted
            },
        )
    )


def _tested(work: Work, curve: Curve, epsilon: float, chosen: Row, seed: int) -> Trial:
    return trial(
        work,
        f"{curve.label}-epsilon-{epsilon:g}-{key(work, curve)}-{seed}",
        tested,
        work,
        curve,
        epsilon,
        seed,
        chosen,
    )


def _chosen(
    work: Work, wanted: Sequence[tuple[Curve, float]]
) -> Generator[Stage, dict[Any, Row], dict[tuple[str, float], Row]]:
    """alpha and lambda' of the smallest validation RMSE of the first seed, as [collective]
    settings: first of sides alone, then of several together, metadata and similar items diluted
    beside the public users.
    """
    weighed = [(curve, e) for curve, e in wanted if curve.sides and curve.weighed]
    sides = {
        (curve.label, e, side): _alone(curve, side) for curve, e in weighed for side in curve.sides
    }
    alone = yield Choices(
        {
            at: _choice(work, curve, at[1], list(_one_side(at[2], work.quick)))
            for at, curve in sides.items()
        }
    )
    found = {at: dict(row["collective"]) for at, row in alone.items()}
    single = {
        (curve.label, e): found[curve.label, e, curve.sides[0]]
        for curve, e in weighed
        if len(curve.sides) == 1
    }
    several = [(curve, e) for curve, e in weighed if len(curve.sides) > 1]
    diluted = {
        (c.label, e): list(_diluted(c, [found[c.label, e, side] for side in c.sides], work.quick))
        for c, e in several
    }
    together = yield Choices(
        {(c.label, e): _choice(work, c, e, diluted[c.label, e]) for c, e in several}
    )
    return single | {at: dict(row["collective"]) for at, row in together.items()}


def _alone(curve: Curve, side: str) -> Curve:
    return curve if curve.sides == (side,) else Curve(side, {**curve.collective, "sides": [side]})


def _choice(work: Work, curve: Curve, epsilon: float, candidates: Sequence[Row]) -> Trial:
    plain = replace(curve, start_passes=0)
    name = f"choice-{'-'.join(curve.sides)}-{key(work, plain)}-epsilon-{epsilon:g}-{work.seeds[0]}"
    return trial(work, name, chosen_on_validation, work, plain, epsilon, candidates)


def _diluted(curve: Curve, alone: Sequence[Row], quick: bool) -> Iterator[Row]:
    each, others = (
        merged(*alone),
        [KEYS[side] for side in KEYS if side in curve.sides and side != "public-users"],
    )
    for factors in product(DILUTIONS[1:] if quick else DILUTIONS, repeat=len(others)):
        yield each | {
            f"{side}_weight": each.get(f"{side}_weight", 1.0) * f
            for side, f in zip(others, factors, strict=True)
        }


def trial(work: Work, name: str, make: Callable[..., Row], *arguments: Any) -> Trial:
    """Rows of a small part of a figure are kept apart: they choose among fewer candidates."""
    return Trial.of(f"{'quick-' if work.quick else ''}{name}", make, *arguments)


def key(work: Work, curve: Curve) -> str:
    """Eight letters of all that the scenario says of a curve, and of who is public beside it: equal
    ones choose once, other ones are other rows. Figure 3 has everybody private."""
    said = scenario_of(work, curve, 1.0, work.seeds[0], {})
    content = said.model_dump_json(
        exclude={"run": True, "figure": True, "seed": True, "split": {"seed"}}
    )
    return hashlib.sha256(f"{_people(work)}{content}".encode()).hexdigest()[:8]


def _one_side(side: str, quick: bool) -> Iterator[Row]:
    for weight, ridge in product(
        WEIGHTS[1:3] if quick else WEIGHTS, RIDGES[2:] if quick else RIDGES
    ):
        yield {f"{KEYS[side]}_weight": weight, f"{KEYS[side]}_ridge": ridge}


def chosen_on_validation(
    work: Work, curve: Curve, epsilon: float, candidates: Sequence[Row]
) -> Row:
    """The best candidate on the validation ratings of the first seed; test is not looked at."""
    seed, errors = work.seeds[0], list[float]()
    fold = loaded(work, seed)[1].validation
    for candidate in candidates:
        model = trained(work, curve, epsilon, seed, candidate)[0]
        errors.append(rating_metrics(predict(model, fold.history, fold.targets), fold.targets).rmse)
    return {
        "collective": candidates[int(np.argmin(errors))],
        "validation_rmse": min(errors),
        "tried": len(errors),
    }


def tested(work: Work, curve: Curve, epsilon: float, seed: int, chosen: Row) -> Row:
    """Train, then read the test ratings, once."""
    model, made, sealed = trained(work, curve, epsilon, seed, chosen)
    return {"guarantee": str(made.plan.guarantee), "chosen": chosen, **measured(model, sealed)}


def als_row(work: Work, seed: int) -> Row:
    """ALS without privacy on the private users' ratings."""
    sealed = loaded(work, seed)[1]
    return {
        "guarantee": "no privacy",
        **measured(als_model(sealed, scenario_of(work, PLAIN, 1.0, seed, {})), sealed),
    }


def public_alone_row(work: Work, seed: int) -> Row:
    """The raw ratings of public users and nothing else: what costs no privacy at all, because no
    private rating is read."""
    curve = Curve("public users", {"sides": ["public-users"]}, start_passes=30)
    (dataset, sealed), made = loaded(work, seed), prepared(work, curve, 1.0, seed, {})
    counts = dataset.features.bags[PUBLIC_USERS].counts
    model = made.recipe.model(
        {**made.recipe.begin(), "mean": np.array(counts.data.mean(dtype=np.float64))}
    )
    return {"guarantee": "nothing private is used", **measured(model, sealed)}


def measured(model: Model, sealed: SealedSplit) -> Row:
    """RMSE on test, over all items and by popularity, the most popular items first as in the
    paper."""
    opened = sealed.open(model.arrays())
    split, fold = opened.split, opened.split.test
    predictions = predict(model, fold.history, fold.targets)
    counts = np.bincount(split.train.items, minlength=split.train.num_items)
    slices = by_popularity(predictions, fold.targets, counts, buckets=BUCKETS)
    found = {
        "rmse": rating_metrics(predictions, fold.targets).rmse,
        "buckets": [part.rmse for part in slices[::-1]],
    }
    return found | {"model_sha256": opened.model_sha256}


def trained(
    work: Work, curve: Curve, epsilon: float, seed: int, chosen: Row
) -> tuple[Model, Prepared, SealedSplit]:
    """All rounds in this process; with the seal that it was trained under."""
    made, sealed = prepared(work, curve, epsilon, seed, chosen), loaded(work, seed)[1]
    *_, last = rounds(made, sealed.train, seed)
    return made.recipe.model(last.state), made, sealed


def prepared(work: Work, curve: Curve, epsilon: float, seed: int, chosen: Row) -> Prepared:
    """Recipe and plan of one training."""
    return prepare(scenario_of(work, curve, epsilon, seed, chosen), facts_of(work, curve, seed))


def facts_of(work: Work, curve: Curve, seed: int) -> PublicFacts:
    """What everybody knows; public users only for curves that use them, items' similarities learned
    once."""
    dataset, sealed = loaded(work, seed)
    features = dataset.features
    if "public-users" not in curve.sides and not curve.weighed:
        features = features.only(name for name in features.bags if name != PUBLIC_USERS)
    elif "similar-items" in curve.sides:
        chosen = CollectiveSettings.model_validate(curve.collective)
        features = with_similar(work, seed, chosen.similarity, chosen.neighbours)
    return replace(
        public_facts(scenario_of(work, PLAIN, 1.0, seed, {}), dataset, sealed), features=features
    )


@lru_cache(maxsize=4)
def with_similar(work: Work, seed: int, similarity: Similarity, k: int) -> PublicFeatures:
    """The data's features and the similarities that its public users teach: the same for every
    alpha, lambda' and epsilon."""
    features = loaded(work, seed)[0].features
    bag = learned_similar_items(
        CollectiveSettings(similarity=similarity, neighbours=k), features, Streams(seed)
    )
    return PublicFeatures({**features.bags, SIMILAR_ITEMS: bag})


def loaded(work: Work, seed: int) -> tuple[Dataset, SealedSplit]:
    """Private ratings and all public sources, and the split of the private ratings: the same for
    every curve."""
    if people := _people(work):
        return load_sealed(
            _told(work, PLAIN, 1.0, seed, {"sides": ["public-users"], **people}, recipe="dp-cmf")
        )
    # Figure 3: metadata alone, and everybody private
    return load_sealed(_told(work, PLAIN, 1.0, seed, {}))


def scenario_of(work: Work, curve: Curve, epsilon: float, seed: int, chosen: Row) -> Scenario:
    """What `fedrec simulate` would be told."""
    if curve.sides and not curve.weighed:
        return _told(work, curve, epsilon, seed, {**curve.collective, **_people(work)})
    if not curve.weighed:
        return _told(work, curve, epsilon, seed, {})
    collective = {**curve.collective, **chosen, "start_passes": curve.start_passes}
    if "metadata" in curve.sides:
        there = loaded(work, seed)[0].features.bags
        named = collective.get("categories") or [
            name for names in CATEGORIES.values() for name in names
        ]
        collective["categories"] = [name for name in named if name in there]
    if curve.sides != ("metadata",):
        collective |= _people(work)
    return _told(work, curve, epsilon, seed, collective)


def _told(
    work: Work, curve: Curve, epsilon: float, seed: int, collective: Row, *, recipe: str = ""
) -> Scenario:
    """The figure's scenario for one curve; of its [collective] only who is public holds for every
    curve."""
    content: Row = {
        "recipe": recipe or curve.recipe,
        "seed": seed,
        "split": {"seed": seed},
        "privacy": {"epsilon": epsilon},
    }
    return work.start.laid_over(
        content,
        {"model": dict(curve.model)},
        {"collective": collective},
        leave=frozenset({"collective"}),
    )


def _people(work: Work) -> Row:
    return work.start.scenario.collective.model_dump(include=PUBLIC_SOURCES, exclude_unset=True)
