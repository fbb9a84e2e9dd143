"""What a model is worth: its errors on test, its controls, and the same numbers for everything it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.evaluation.baselines import global_mean, item_means, item_user_bias
from fedrec.evaluation.controls import Verdict, ranking_controls, ranking_verdicts, rating_controls, rating_verdicts
from fedrec.evaluation.ranking import RankingReport, evaluate_ranking
from fedrec.evaluation.ratings import RatingMetrics, by_popularity, rating_metrics
from fedrec.evaluation.toplists import dot_product, same_for_everyone
from fedrec.factorization.model import Model, predict, predictor, ranker_of


@dataclass(frozen=True)
class Outcome:
    """Errors of ratings and quality of rankings on test, each with its popularity buckets; what does not apply is None."""

    ratings: RatingMetrics | None
    rating_buckets: tuple[RatingMetrics, ...]
    ranking: RankingReport | None
    verdicts: tuple[Verdict, ...]

    def metrics(self) -> dict[str, float | int | None]:
        """Flat names for JSON: rmse, mae, ndcg@20, recall@20 (capped), ..."""
        flat: dict[str, float | int | None] = dict(self.ratings.as_dict()) if self.ratings else {}
        for k, at in (self.ranking.at if self.ranking else {}).items():
            flat |= {f"{name}@{k}": value for name, value in at.as_dict().items() if name not in {"k", "users"}}
            flat |= {f"{name}@{k}": value for name, value in self.ranking.lists[k].as_dict().items() if name != "k"} if self.ranking else {}
        return flat


def evaluate(model: Model, fold: Fold, train: Interactions, *, cutoffs: tuple[int, ...], ranking: bool, controls: bool) -> Outcome:
    """Test a model. Ratings are always predicted, clicks always ranked; ratings are ranked too where `ranking`."""
    counts = np.bincount(train.items, minlength=train.num_items)
    metrics, buckets, verdicts = None, tuple[RatingMetrics, ...](), list[Verdict]()
    if fold.targets.kind == "ratings":
        predictions = predict(model, fold.history, fold.targets)
        metrics, buckets = rating_metrics(predictions, fold.targets), by_popularity(predictions, fold.targets, counts)
        if controls:
            known, targets = _with_fold_users_first(train, fold)
            shuffled = None if known is not train else predictor(model, fold.history)
            verdicts += rating_verdicts(metrics, rating_controls(known, targets, predict=shuffled))
    report = None
    if ranking or fold.targets.kind == "clicks":
        ranker = ranker_of(model)
        scores = dot_product(np.asarray(ranker.user_vectors(fold.history), np.float32), np.asarray(ranker.item_vectors, np.float32))
        report = evaluate_ranking(scores, history=fold.history, targets=fold.targets, train_counts=counts, cutoffs=cutoffs)
        if controls and fold.targets.kind == "clicks":
            rivals = ranking_controls(scores, history=fold.history, targets=fold.targets, train_counts=counts, cutoffs=cutoffs)
            verdicts += ranking_verdicts(report, rivals, k=max(cutoffs))
    return Outcome(metrics, buckets, report, tuple(verdicts))


def baselines(fold: Fold, train: Interactions, *, cutoffs: tuple[int, ...]) -> dict[str, Outcome]:
    """Global mean, item mean, item + user bias for ratings; popularity for clicks. All without privacy."""
    if fold.targets.kind == "clicks":
        counts = np.bincount(train.items, minlength=train.num_items)
        scores = same_for_everyone(counts)
        report = evaluate_ranking(scores, history=fold.history, targets=fold.targets, train_counts=counts, cutoffs=cutoffs)
        return {"popularity": Outcome(None, (), report, ())}
    counts, outcomes = np.bincount(train.items, minlength=train.num_items), dict[str, Outcome]()
    known, _ = _with_fold_users_first(train, fold)
    for baseline in (global_mean(known), item_means(known), item_user_bias(known)):
        predictions = baseline.predict(fold.targets.users, fold.targets.items)
        metrics, buckets = rating_metrics(predictions, fold.targets), by_popularity(predictions, fold.targets, counts)
        outcomes[baseline.name] = Outcome(metrics, buckets, None, ())
    return outcomes


def _with_fold_users_first(train: Interactions, fold: Fold) -> tuple[Interactions, Interactions]:
    """Train and targets over one set of users, the fold's first, so that baselines know held-out users from their history too."""
    if fold.history.num_users == train.num_users and np.array_equal(fold.history.user_ptr, train.user_ptr):
        return train, fold.targets
    history, targets = fold.history, fold.targets
    everybody = Interactions(
        np.concatenate([history.user_ptr, len(history) + train.user_ptr[1:]]),
        np.concatenate([history.items, train.items]),
        np.concatenate([history.values, train.values]),
        train.num_items,
        train.value_range,
        train.kind,
    )
    silent = np.full(train.num_users, len(targets), np.int64)
    padded = Interactions(np.concatenate([targets.user_ptr, silent]), targets.items, targets.values, targets.num_items, targets.value_range)
    return everybody, padded
