"""Trainings behind the figures of DP-CMF (Curmei et al. 2023): public sources, settings chosen on validation, one reading of test.

Protocol, from the figure's scenario: random 80/10/10 by split seed of the private users' ratings, the noise's seed being the split's; user
level. The paper takes its public users from ML-20M. Where there is no second source, half of the users are made public by the split's seed
and leave the private data, validation and test: the paper's proportion (70,152 beside 69,878). Settings without sides are those of
`recipe = "published"`; alpha and lambda' are chosen per side and epsilon on the validation ratings of the first seed (4.1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data.dataset import Dataset
from fedrec.data.features import PublicFeatures
from fedrec.data.public_sources import PUBLIC_USERS, SIMILAR_ITEMS
from fedrec.evaluation.ratings import by_popularity, rating_metrics
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.item_similarity import Similarity
from fedrec.factorization.model import Model, predict
from fedrec.federation.rounds import train
from fedrec.in_process.loopback import Loopback
from fedrec.privacy.ledger import Ledger
from fedrec.public_sides import learned_similar_items
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import Scenario
from fedrec.settings_tables import CollectiveSettings
from fedrec_simulations.data.datasets import public_facts
from fedrec_simulations.data.sealed import PUBLIC_SOURCES, SealedSplit, load_sealed
from fedrec_simulations.experiments.ceiling import als_model
from fedrec_simulations.experiments.papers.starts import Start
from fedrec_simulations.experiments.rows import Row, merged, row

BUCKETS = 4
WEIGHTS, RIDGES = (1.0, 10.0, 100.0, 1000.0), (1.0, 10.0, 100.0)
"""Candidates of alpha and of lambda'."""
DILUTIONS = (0.01, 0.1, 1.0)
"""Candidates of what multiplies the alphas of metadata and of similar items where all sides go together."""
KEYS = {"metadata": "metadata", "similar-items": "similar", "public-users": "users"}
"""Sides, and how their settings begin."""
CATEGORIES = {"genre": ("genre", "listed_genre"), "topic": ("plot", "word"), "cast": ("actor", "director", "writer")}
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
        """Whether its sides count by weights of ours; other recipes find by themselves what their sides say."""
        return self.recipe == "dp-cmf"

    @property
    def sides(self) -> tuple[str, ...]:
        """Of the recipe."""
        return tuple(self.collective.get("sides", ()))


PLAIN = Curve("", recipe="default")
"""The private ratings as every curve has them."""


@dataclass(frozen=True)
class Bench:
    """Where rows come from and go to; the scenario says who is public."""

    start: Start
    seeds: tuple[int, ...]
    quick: bool
    folder: Path

    def rows(self, curve: Curve, epsilon: float) -> list[Row]:
        """One training for each seed, tested."""
        chosen = self.choice(curve, epsilon)
        name = f"{curve.label}-epsilon-{epsilon:g}-{self.key(curve)}"
        return [self.row(f"{name}-{seed}", tested, self, curve, epsilon, seed, chosen) for seed in self.seeds]

    def key(self, curve: Curve) -> str:
        """Eight letters of all that the scenario says of a curve: equal ones choose once, other ones are other rows."""
        said = scenario_of(self, curve, 1.0, self.seeds[0], {})
        content = said.model_dump_json(exclude={"run": True, "figure": True, "seed": True, "split": {"seed"}})
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def choice(self, curve: Curve, epsilon: float) -> Row:
        """alpha and lambda' of the smallest validation RMSE of the first seed, as [collective] settings."""
        if not (curve.sides and curve.weighed):
            return {}
        candidates = list(_one_side(curve.sides[0], self.quick) if len(curve.sides) == 1 else self._all_sides(curve, epsilon))
        plain = replace(curve, start_passes=0)
        name = f"choice-{'-'.join(curve.sides)}-{self.key(plain)}-epsilon-{epsilon:g}-{self.seeds[0]}"
        return dict(self.row(name, chosen_on_validation, self, plain, epsilon, candidates)["collective"])

    def row(self, name: str, make: Any, *arguments: Any) -> Row:
        """Kept in the folder; quick rows apart."""
        letters = "".join(c if c.isalnum() or c == "." else "-" for c in name)
        return row(self.folder / ("quick" if self.quick else "rows"), letters, make, *arguments)

    def _all_sides(self, curve: Curve, epsilon: float) -> Iterator[Row]:
        """What each side chooses alone, metadata and similar items diluted beside the public users."""
        alone = merged(*(self.choice(Curve(side, {**curve.collective, "sides": [side]}), epsilon) for side in curve.sides))
        diluted = [key for side, key in KEYS.items() if side in curve.sides and side != "public-users"]
        for factors in product(DILUTIONS[1:] if self.quick else DILUTIONS, repeat=len(diluted)):
            yield alone | {f"{key}_weight": alone.get(f"{key}_weight", 1.0) * f for key, f in zip(diluted, factors, strict=True)}


def _one_side(side: str, quick: bool) -> Iterator[Row]:
    for weight, ridge in product(WEIGHTS[1:3] if quick else WEIGHTS, RIDGES[2:] if quick else RIDGES):
        yield {f"{KEYS[side]}_weight": weight, f"{KEYS[side]}_ridge": ridge}


def chosen_on_validation(bench: Bench, curve: Curve, epsilon: float, candidates: Sequence[Row]) -> Row:
    """The best candidate on the validation ratings of the first seed; test is not looked at."""
    seed, errors = bench.seeds[0], list[float]()
    fold = loaded(bench, seed)[1].validation
    for candidate in candidates:
        model = trained(bench, curve, epsilon, seed, candidate)[0]
        errors.append(rating_metrics(predict(model, fold.history, fold.targets), fold.targets).rmse)
    return {"collective": candidates[int(np.argmin(errors))], "validation_rmse": min(errors), "tried": len(errors)}


def tested(bench: Bench, curve: Curve, epsilon: float, seed: int, chosen: Row) -> Row:
    """Train, then read the test ratings, once."""
    model, made, sealed = trained(bench, curve, epsilon, seed, chosen)
    return {"guarantee": str(made.plan.guarantee), "chosen": chosen, **measured(model, sealed)}


def als_row(bench: Bench, seed: int) -> Row:
    """ALS without privacy on the private users' ratings."""
    sealed = loaded(bench, seed)[1]
    return {"guarantee": "no privacy", **measured(als_model(sealed, scenario_of(bench, PLAIN, 1.0, seed, {})), sealed)}


def public_alone_row(bench: Bench, seed: int) -> Row:
    """The raw ratings of public users and nothing else: what costs no privacy at all, because no private rating is read."""
    curve = Curve("public users", {"sides": ["public-users"]}, start_passes=30)
    (dataset, sealed), made = loaded(bench, seed), prepared(bench, curve, 1.0, seed, {})
    counts = dataset.features.bags[PUBLIC_USERS].counts
    model = made.recipe.model({**made.recipe.begin(), "mean": np.array(counts.data.mean(dtype=np.float64))})
    return {"guarantee": "nothing private is used", **measured(model, sealed)}


def measured(model: Model, sealed: SealedSplit) -> Row:
    """RMSE on test, over all items and by popularity, the most popular items first as in the paper."""
    opened = sealed.open(model.arrays())
    split, fold = opened.split, opened.split.test
    predictions = predict(model, fold.history, fold.targets)
    counts = np.bincount(split.train.items, minlength=split.train.num_items)
    slices = by_popularity(predictions, fold.targets, counts, buckets=BUCKETS)
    found = {"rmse": rating_metrics(predictions, fold.targets).rmse, "buckets": [part.rmse for part in slices[::-1]]}
    return found | {"model_sha256": opened.model_sha256}


def trained(bench: Bench, curve: Curve, epsilon: float, seed: int, chosen: Row) -> tuple[Model, Prepared, SealedSplit]:
    """All rounds in this process; with the seal that it was trained under."""
    made, sealed = prepared(bench, curve, epsilon, seed, chosen), loaded(bench, seed)[1]
    link = Loopback(sealed.train, made.steps, made.plan, Streams(seed), Ledger(made.plan.guarantee))
    *_, last = train(made.recipe, link, made.recipe.begin())
    return made.recipe.model(last.state), made, sealed


def prepared(bench: Bench, curve: Curve, epsilon: float, seed: int, chosen: Row) -> Prepared:
    """Recipe and plan of one training."""
    return prepare(scenario_of(bench, curve, epsilon, seed, chosen), facts_of(bench, curve, seed))


def facts_of(bench: Bench, curve: Curve, seed: int) -> PublicFacts:
    """What everybody knows; public users only for curves that use them, items' similarities learned once."""
    dataset, sealed = loaded(bench, seed)
    features = dataset.features
    if "public-users" not in curve.sides and not curve.weighed:
        features = features.only(name for name in features.bags if name != PUBLIC_USERS)
    elif "similar-items" in curve.sides:
        chosen = CollectiveSettings.model_validate(curve.collective)
        features = with_similar(bench, seed, chosen.similarity, chosen.neighbours)
    return replace(public_facts(scenario_of(bench, PLAIN, 1.0, seed, {}), dataset, sealed), features=features)


@lru_cache(maxsize=4)
def with_similar(bench: Bench, seed: int, similarity: Similarity, k: int) -> PublicFeatures:
    """The data's features and the similarities that its public users teach: the same for every alpha, lambda' and epsilon."""
    features = loaded(bench, seed)[0].features
    bag = learned_similar_items(CollectiveSettings(similarity=similarity, neighbours=k), features, Streams(seed))
    return PublicFeatures({**features.bags, SIMILAR_ITEMS: bag})


def loaded(bench: Bench, seed: int) -> tuple[Dataset, SealedSplit]:
    """Private ratings and all public sources, and the split of the private ratings: the same for every curve."""
    if people := _people(bench):
        return load_sealed(_told(bench, PLAIN, 1.0, seed, {"sides": ["public-users"], **people}, recipe="dp-cmf"))
    return load_sealed(_told(bench, PLAIN, 1.0, seed, {}))  # Figure 3: metadata alone, and everybody private


def scenario_of(bench: Bench, curve: Curve, epsilon: float, seed: int, chosen: Row) -> Scenario:
    """What `fedrec simulate` would be told."""
    if curve.sides and not curve.weighed:
        return _told(bench, curve, epsilon, seed, {**curve.collective, **_people(bench)})
    if not curve.weighed:
        return _told(bench, curve, epsilon, seed, {})
    collective = {**curve.collective, **chosen, "start_passes": curve.start_passes}
    if "metadata" in curve.sides:
        there = loaded(bench, seed)[0].features.bags
        named = collective.get("categories") or [name for names in CATEGORIES.values() for name in names]
        collective["categories"] = [name for name in named if name in there]
    if curve.sides != ("metadata",):
        collective |= _people(bench)
    return _told(bench, curve, epsilon, seed, collective)


def _told(bench: Bench, curve: Curve, epsilon: float, seed: int, collective: Row, *, recipe: str = "") -> Scenario:
    """The figure's scenario for one curve; of its [collective] only who is public holds for every curve."""
    content: Row = {"recipe": recipe or curve.recipe, "seed": seed, "split": {"seed": seed}, "privacy": {"epsilon": epsilon}}
    return bench.start.laid_over(content, {"model": dict(curve.model)}, {"collective": collective}, leave=frozenset({"collective"}))


def _people(bench: Bench) -> Row:
    return bench.start.scenario.collective.model_dump(include=PUBLIC_SOURCES, exclude_unset=True)
