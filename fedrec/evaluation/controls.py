"""Controls: what a number would be without the thing it is said to show. Every evaluation runs them.

ratings: global mean, item means, item + user bias, and the model with the users exchanged. rankings: popularity, and the model
with the users exchanged. A model that does as well with another user's history in the place of the user's own is not personal;
for rankings that list still leaves out the user's own history, so that the task is the same. It may name the other user's
history, which a model has learnt by heart: popularity is usually the harder control, and both are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.data.interactions import Interactions
from fedrec.evaluation.baselines import global_mean, item_means, item_user_bias
from fedrec.evaluation.ranking import RankingMetrics, RankingReport, evaluate_ranking
from fedrec.evaluation.ratings import RatingMetrics, rating_metrics
from fedrec.evaluation.toplists import Scores, of_another_user, same_for_everyone

Predict = Callable[[npt.NDArray[np.int32], npt.NDArray[np.int32]], npt.NDArray[np.floating]]
"""`predict(users, items)`: (n,) predicted ratings of parallel ids."""

SHUFFLED = "shuffled history"
_LABELS = {
    "recall_capped": "capped recall",
    "recall": "recall",
    "ndcg": "NDCG",
    "mrr": "MRR",
    "hit_rate": "hit rate",
    "precision": "precision",
    "average_precision": "MAP",
}
_CLEARLY = 2.0  # standard errors of the difference


@dataclass(frozen=True)
class RatingControl:
    """A named comparison and its metrics on the same target events."""

    name: str
    metrics: RatingMetrics


@dataclass(frozen=True)
class RankingControl:
    """A named comparison and its report on the same users and targets."""

    name: str
    report: RankingReport


@dataclass(frozen=True)
class Verdict:
    """One number beside one control, and what to make of it in words."""

    metric: str
    value: float
    control: str
    control_value: float
    outcome: Literal["better", "not clearly better", "no better", "cannot be compared"]

    @property
    def sentence(self) -> str:
        """One sentence for a page or a terminal."""
        name, value, control = self.metric, f"{self.value:.4f}", f"{self.control} ({self.control_value:.4f})"
        match self.outcome:
            case "better":
                return f"{name} {value} is better than {control}."
            case "not clearly better":
                return f"{name} {value} is not clearly better than {control}: by less than two standard errors, which may be chance."
            case "no better":
                meaning = " The model is not shown to be personal." if self.control == SHUFFLED else ""
                return f"{name} {value} is NO BETTER than {control}.{meaning}"
            case _:
                return f"{name} cannot be compared with {self.control}: one of the two has no events."

    def as_dict(self) -> dict[str, float | str | None]:
        """Plain values for JSON, None in the place of what is not a number."""
        numbers = {"value": self.value, "control_value": self.control_value}
        words: dict[str, float | str | None] = {"metric": self.metric, "control": self.control, "outcome": self.outcome}
        return words | {name: None if math.isnan(x) else x for name, x in numbers.items()} | {"sentence": self.sentence}


def rating_controls(train: Interactions, targets: Interactions, *, predict: Predict | None = None) -> tuple[RatingControl, ...]:
    """The three baselines of train, and `predict` with user k + n/2 (mod n) in the place of user k, on the target events."""
    users, items = targets.users, targets.items
    controls = [
        RatingControl(baseline.name, rating_metrics(baseline.predict(users, items), targets))
        for baseline in (global_mean(train), item_means(train), item_user_bias(train))
    ]
    n = targets.num_users
    if predict is not None and n > 1:
        others = ((users.astype(np.int64) + n // 2) % n).astype(np.int32)
        controls.append(RatingControl(SHUFFLED, rating_metrics(predict(others, items), targets)))
    return tuple(controls)


def ranking_controls(
    scores: Scores,
    *,
    history: Interactions,
    targets: Interactions,
    train_counts: npt.NDArray[np.integer],
    cutoffs: Sequence[int] = (10, 20, 50, 100),
    buckets: int = 5,
) -> tuple[RankingControl, ...]:
    """Popularity in train, and `scores` with user k + n/2 (mod n) in the place of user k; arguments as `evaluate_ranking`."""
    n = history.num_users
    rivals = {"popularity": same_for_everyone(train_counts)} | ({SHUFFLED: of_another_user(scores, n)} if n > 1 else {})
    return tuple(
        RankingControl(
            name,
            evaluate_ranking(rival, history=history, targets=targets, train_counts=train_counts, cutoffs=cutoffs, buckets=buckets),
        )
        for name, rival in rivals.items()
    )


def rating_verdicts(metrics: RatingMetrics, controls: Sequence[RatingControl]) -> tuple[Verdict, ...]:
    """RMSE beside each control."""
    named = [(control.name, control.metrics) for control in controls]
    return tuple(
        compare("RMSE", metrics.rmse, metrics.rmse_stderr, name, other.rmse, other.rmse_stderr, lower_is_better=True)
        for name, other in named
    )


def ranking_verdicts(
    report: RankingReport, controls: Sequence[RankingControl], *, k: int, metrics: Sequence[str] = ("ndcg", "recall_capped")
) -> tuple[Verdict, ...]:
    """The named metrics at cutoff k beside each control."""
    return tuple(_ranking_verdict(metric, report.at[k], control.name, control.report.at[k]) for metric in metrics for control in controls)


def compare(
    metric: str, value: float, stderr: float, control: str, control_value: float, control_stderr: float, *, lower_is_better: bool
) -> Verdict:
    """Clearly better means by two standard errors of the difference, as if the two were independent.

    They share users and events, so the true error is smaller: this errs towards "not clearly". An unknown error is infinite.
    """
    gain = (control_value - value) if lower_is_better else (value - control_value)
    margin = _CLEARLY * math.hypot(stderr, control_stderr)
    if math.isnan(gain):
        return Verdict(metric, value, control, control_value, "cannot be compared")
    if gain <= 0:
        return Verdict(metric, value, control, control_value, "no better")
    return Verdict(metric, value, control, control_value, "better" if gain > margin else "not clearly better")


def _ranking_verdict(metric: str, ours: RankingMetrics, control: str, theirs: RankingMetrics) -> Verdict:
    value, other = float(getattr(ours, metric)), float(getattr(theirs, metric))
    label = f"{_LABELS[metric]}@{ours.k}"
    return compare(label, value, ours.stderr[metric], control, other, theirs.stderr[metric], lower_is_better=False)
