"""Outcome of a model on test (its errors, its controls, and the same numbers for everything it is
compared with), and a finished run of ratings or clicks: everything that its result and its report
are views of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrec import __version__
from fedrec.arrays import Float64s, Floats
from fedrec.data.interactions import Dataset, Interactions
from fedrec.data.kinds import KINDS
from fedrec.data.splits import Fold, Split
from fedrec.evaluation.bias_baselines import global_mean, item_means, item_user_bias
from fedrec.evaluation.controls import (
    SHUFFLED,
    BucketVerdicts,
    Verdict,
    ranking_verdicts,
    ranking_verdicts_by_popularity,
    rating_verdicts,
    rating_verdicts_by_popularity,
)
from fedrec.evaluation.estimates import Estimate
from fedrec.evaluation.ranking import RankingReport, evaluate_ranking
from fedrec.evaluation.ratings import RatingMetrics, by_popularity, rating_metrics
from fedrec.evaluation.toplists import (
    Scores,
    among,
    dot_product,
    of_another_user,
    same_for_everyone,
)
from fedrec.factorization.facts import list_vectors
from fedrec.factorization.held_out import evaluation_of
from fedrec.factorization.rankers import Model, predictor_of, ranker_of
from fedrec.federation.coding import deflated
from fedrec.federation.protocol import Terms
from fedrec.federation.wire import pack_terms
from fedrec.privacy.guarantee import Guarantee
from fedrec.recipes import client_recipe
from fedrec.run.data.budget import DataBudget
from fedrec.run.data.datasets import words_of_data
from fedrec.run.job import RuntimeChoice
from fedrec.run.training import Trained
from fedrec.settings import Scenario

MOST_SCORES = {"ratings": 300_000_000, "clicks": 5_000_000_000}
"""Users times items that one ranking evaluates; with more, an even sample of users stands for all.
Lists are what clicks are for, so only very large data sets of clicks are sampled."""
MOST_COMPARED = 2_000
"""People whose vectors say by what items differ."""
BY_RULE = "published recipe, settings by rule"
"""What tables call the line of `compare.published`: AM-SSP, or Ada-DPALS without features, with
`fedrec.recipes.published.steady`, item biases and users' own means."""


@dataclass(frozen=True)
class Outcome:
    """Errors of ratings and quality of rankings on test, each with its popularity buckets; what
    does not apply is None.

    verdicts: beside each control, on all of test. by_popularity: the headline metric in each
    popularity bucket. spread: `spread_of` the lists' user vectors where train is their history.
    """

    ratings: RatingMetrics | None
    rating_buckets: tuple[RatingMetrics, ...]
    ranking: RankingReport | None
    verdicts: tuple[Verdict, ...] = ()
    by_popularity: tuple[BucketVerdicts, ...] = ()
    spread: Float64s | None = None

    def metrics(self) -> dict[str, float | int | None]:
        """Flat names for JSON: rmse, mae, ndcg@20, recall@20 (capped), ..., and ranked_users, whose
        lists were measured."""
        flat: dict[str, float | int | None] = dict(self.ratings.as_dict()) if self.ratings else {}
        for k, at in (self.ranking.at if self.ranking else {}).items():
            flat |= {
                f"{name}@{k}": value
                for name, value in at.as_dict().items()
                if name not in {"k", "users"}
            }
            flat |= (
                {
                    f"{name}@{k}": value
                    for name, value in self.ranking.lists[k].as_dict().items()
                    if name != "k"
                }
                if self.ranking
                else {}
            )
        return flat | ({"ranked_users": self.ranking.users} if self.ranking else {})


def evaluate(
    model: Model,
    fold: Fold,
    train: Interactions,
    *,
    cutoffs: tuple[int, ...],
    ranking: bool,
    rivals: Mapping[str, Outcome] | None = None,
) -> Outcome:
    """Test a model. Ratings are always predicted, clicks always ranked; ratings are ranked too
    where `ranking`.

    rivals: measured on the same fold, for verdicts; None for no verdicts, and no exchanged users.
    """
    metrics = None
    buckets = tuple[RatingMetrics, ...]()
    judged = Outcome(None, (), None)
    U = None
    if fold.targets.rated:
        U = model.user_vectors(fold.history)
        predict = predictor_of(model, U, fold.history)
        metrics, buckets = _rated(
            predict(fold.targets.users, fold.targets.items), fold.targets, train
        )
        # as everybody's history is known
        if rivals is not None and fold.history.num_users == train.num_users > 1:
            n = train.num_users
            others = ((fold.targets.users.astype(np.int64) + n // 2) % n).astype(np.int32)
            judged = Outcome(
                *_rated(predict(others, fold.targets.items), fold.targets, train), None
            )
    report = None
    swapped = None
    spread = None
    if KINDS[fold.targets.kind].ranked(ranking):
        listed = ranked_fold(fold)
        U = list_vectors(model, listed.history, U if listed is fold else None)
        spread = spread_of(U) if listed.history is train and train.num_users > 1 else None
        scores = dot_product(
            np.asarray(U, np.float32), np.asarray(ranker_of(model).item_vectors, np.float32)
        )
        report = ranked(scores, listed, train, cutoffs=cutoffs)
        if rivals is not None and listed.history.num_users > 1:
            swapped = ranked(
                of_another_user(scores, listed.history.num_users), listed, train, cutoffs=cutoffs
            )
    found = Outcome(metrics, buckets, report, spread=spread)
    if rivals is None:
        return found
    everything = {**rivals, SHUFFLED: Outcome(judged.ratings, judged.rating_buckets, swapped)}
    return judged_by(found, everything, k=max(cutoffs))


def judged_by(found: Outcome, rivals: Mapping[str, Outcome], *, k: int) -> Outcome:
    """Return the outcome with verdicts beside every rival; lists by their first k."""
    verdicts, by_popularity = _verdicts(found, rivals, k=k)
    return replace(found, verdicts=verdicts, by_popularity=by_popularity)


def spread_of(U: Floats) -> Float64s:
    """(D, D) covariance of the first `MOST_COMPARED` rows of (n, D), n > 1."""
    return np.atleast_2d(np.cov(np.asarray(U[:MOST_COMPARED], np.float64), rowvar=False))


def ranked(
    scores: Scores, fold: Fold, train: Interactions, *, cutoffs: tuple[int, ...]
) -> RankingReport:
    """Lists over the whole catalogue, or what the fold's are made of, for a `ranked_fold`."""
    counts = np.bincount(train.items, minlength=train.num_items)
    return evaluate_ranking(
        among(scores, fold.among),
        history=fold.history,
        targets=fold.targets,
        train_counts=counts,
        cutoffs=cutoffs,
    )


def ranked_fold(fold: Fold) -> Fold:
    """The users whose lists are measured: all, or of many an even sample of those with targets, the
    same for every method."""
    most = MOST_SCORES[fold.targets.kind] // fold.targets.num_items
    if fold.targets.num_users <= most:
        return fold
    able = np.flatnonzero(np.diff(fold.targets.user_ptr) > 0)
    some = able[np.linspace(0, len(able) - 1, min(len(able), most)).astype(np.int64)]
    return Fold(fold.history.users_subset(some), fold.targets.users_subset(some), among=fold.among)


def baselines(
    fold: Fold, train: Interactions, *, cutoffs: tuple[int, ...], ranking: bool = False
) -> dict[str, Outcome]:
    """Global mean, item mean, item + user bias for ratings; popularity for clicks and where
    `ranking`. All without privacy."""
    outcomes = dict[str, Outcome]()
    if fold.targets.rated:
        known = _with_fold_users_first(train, fold)
        for baseline in (global_mean(known), item_means(known), item_user_bias(known)):
            predictions = baseline.predict(fold.targets.users, fold.targets.items)
            outcomes[baseline.name] = Outcome(*_rated(predictions, fold.targets, train), None)
    if KINDS[fold.targets.kind].ranked(ranking):
        scores = same_for_everyone(np.bincount(train.items, minlength=train.num_items))
        outcomes["popularity"] = Outcome(
            None, (), ranked(scores, ranked_fold(fold), train, cutoffs=cutoffs)
        )
    return outcomes


def _rated(
    predictions: npt.NDArray[np.floating], targets: Interactions, train: Interactions
) -> tuple[RatingMetrics, tuple[RatingMetrics, ...]]:
    counts = np.bincount(train.items, minlength=train.num_items)
    return rating_metrics(predictions, targets), by_popularity(predictions, targets, counts)


def _verdicts(
    ours: Outcome, rivals: Mapping[str, Outcome], *, k: int
) -> tuple[tuple[Verdict, ...], tuple[BucketVerdicts, ...]]:
    """On all of test, and by popularity."""
    whole = list[Verdict]()
    parts = list[BucketVerdicts]()
    if ours.ratings is not None:
        rated = {name: other for name, other in rivals.items() if other.ratings is not None}
        whole += rating_verdicts(
            ours.ratings, {name: other.ratings for name, other in rated.items() if other.ratings}
        )
        parts += rating_verdicts_by_popularity(
            ours.rating_buckets, {name: other.rating_buckets for name, other in rated.items()}
        )
    if ours.ranking is not None:
        reports = {
            name: other.ranking for name, other in rivals.items() if other.ranking is not None
        }
        whole += ranking_verdicts(
            ours.ranking.at[k], {name: report.at[k] for name, report in reports.items()}
        )
        parts += ranking_verdicts_by_popularity(ours.ranking, reports, k=k)
    return tuple(whole), tuple(parts)


def _with_fold_users_first(train: Interactions, fold: Fold) -> Interactions:
    """Train with the fold's users first, so that baselines know held-out users from their history
    too."""
    history = fold.history
    if history.num_users == train.num_users and np.array_equal(history.user_ptr, train.user_ptr):
        return train
    return Interactions(
        np.concatenate([history.user_ptr, len(history) + train.user_ptr[1:]]),
        np.concatenate([history.items, train.items]),
        np.concatenate([history.values, train.values]),
        train.num_items,
        train.value_range,
        train.kind,
    )


@dataclass(frozen=True)
class RunSizes:
    """users, events, counts (m,) of items: of train. tests: events of test. able: users with test
    events. parts: 0 where not divided."""

    users: int
    events: int
    tests: int
    able: int
    counts: npt.NDArray[np.int64]
    parts: int = 0


@dataclass(frozen=True)
class Run:
    """Everything a finished run knows; the report and the result are views of it."""

    scenario: Scenario
    choice: RuntimeChoice
    folder: Path
    dataset: Dataset
    split: Split
    trained: dict[float, Trained]
    outcomes: dict[float, Outcome]
    rivals: dict[str, Outcome]
    rival_models: dict[str, Model]
    published: dict[float, tuple[Trained, Outcome]]
    budget: DataBudget | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    """Of a rival, what of the data it was not given."""
    partitioned: RunSizes | None = None
    """Of partitioned data, of which `split` holds some users only."""
    simple: Mapping[str, tuple[Guarantee, Outcome]] = field(default_factory=dict)
    """Simple private recipes at the scenario's epsilon, measured and dropped."""

    @cached_property
    def sizes(self) -> RunSizes:
        """Sizes of all of the data."""
        if self.partitioned is not None:
            return self.partitioned
        train = self.split.train
        test = self.split.test.targets
        counts = np.bincount(train.items, minlength=train.num_items)
        return RunSizes(
            train.num_users,
            len(train),
            len(test),
            int(np.count_nonzero(np.diff(test.user_ptr))),
            counts,
        )

    @cached_property
    def evaluation(self) -> dict[str, Estimate]:
        """What people said of the main model, and what they would say without noise; empty where
        nobody was asked. Of partitions no process has all that is exact."""
        recipe = self.main.prepared.recipe
        said = evaluation_of(recipe, self.main.state)
        if said is None:
            return {}
        if self.partitioned is not None:
            return {"released": said}
        exact: Estimate = recipe.exactly(self.main.state, self.split.train)  # type: ignore[attr-defined]  # `evaluation_of` found it
        return {"released": said, "exact": exact}

    @property
    def words_of_data(self) -> list[str]:
        """What a person should know of how the data was read and divided."""
        words = words_of_data(self.dataset, self.split)
        return (
            words
            if self.partitioned is None
            else [f"in {self.partitioned.parts} partitions", *words]
        )

    @property
    def main(self) -> Trained:
        """The training that the scenario is about."""
        return self.trained[self.scenario.privacy.epsilon]

    @property
    def outcome(self) -> Outcome:
        """What that training is worth on test."""
        return self.outcomes[self.scenario.privacy.epsilon]

    @cached_property
    def terms_bytes(self) -> int:
        """What a client downloads before the first question: the run's terms, most of which are the
        ids of the items."""
        data = self.split.train
        recipe = client_recipe(self.scenario)
        run = self.scenario.run_id()
        return len(
            deflated(
                pack_terms(
                    Terms(run, recipe, data.kind, data.value_range, self.dataset.catalogue.item_ids)
                )
            )
        )


def versions() -> dict[str, str]:
    """Return the versions of fedrec and of what decides its numbers."""
    return {"fedrec": __version__} | {
        name: metadata.version(name)
        for name in ("numpy", "scipy", "numba", "dp-accounting", "polars")
    }
