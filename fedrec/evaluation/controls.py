"""Controls: what a number would be without the thing it is said to show. Every evaluation runs
them.

ratings: global mean, item means, item + user bias. rankings: popularity, item-item similarities and
ALS without privacy. Both: the model with the users exchanged. A model that does as well with
another user's history in the place of the user's own is not personal; for rankings that list still
leaves out the user's own history, so that the task is the same. It may name the other user's
history, which a model has learnt by heart: popularity is usually the harder control, and both are
shown.

Verdicts are paired: model and control are measured on the same users, and what counts is the
standard error of their difference.

Global mean, item means, and item + user bias know no taste: they are the rows every table starts
with.

They are computed from train without noise, so their guarantee is none at all (`NON_PRIVATE`), and
they are for comparison only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrec.evaluation.ranking import RankingMetrics, RankingReport
from fedrec.evaluation.ratings import RatingMetrics

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
_TOLD = "non-private "
"""How names of methods begin that learn from everybody's data and could do what ours does."""
_CLEARLY = 2.0  # standard errors of the difference


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
        name = self.metric
        value = f"{self.value:.4f}"
        control = f"{self.control} ({self.control_value:.4f})"
        match self.outcome:
            case "better":
                return f"{name} {value} is better than {control}."
            case "not clearly better":
                return (
                    f"{name} {value} is not clearly better than {control}: by less than two "
                    "standard errors, which may be chance."
                )
            case "no better":
                return f"{name} {value} is no better than {control}."
            case _:
                return (
                    f"{name} cannot be compared with {self.control}: one of the two has no events."
                )

    def as_dict(self) -> dict[str, float | str | None]:
        """Plain values for JSON, None in the place of what is not a number."""
        numbers = {"value": self.value, "control_value": self.control_value}
        words: dict[str, float | str | None] = {
            "metric": self.metric,
            "control": self.control,
            "outcome": self.outcome,
        }
        return (
            words
            | {name: None if math.isnan(x) else x for name, x in numbers.items()}
            | {"sentence": self.sentence}
        )


@dataclass(frozen=True)
class BucketVerdicts:
    """One metric beside one control in each popularity bucket, rarest items first."""

    metric: str
    control: str
    verdicts: tuple[Verdict, ...]

    @property
    def sentence(self) -> str:
        """In which buckets the metric is not better; of buckets without events nothing is said."""
        places = {
            words: [
                f"{b + 1}" for b, verdict in enumerate(self.verdicts) if verdict.outcome == outcome
            ]
            for outcome, words in (
                ("better", "better"),
                ("not clearly better", "not clearly better"),
                ("no better", "no better"),
            )
        }
        parts = [
            f"{words} than {self.control} in {', '.join(found)}"
            for words, found in places.items()
            if found
        ]
        group = "fifth" if len(self.verdicts) == 5 else f"group of {len(self.verdicts)}"
        return (
            f"{self.metric} by popularity {group}, 1 the rarest items: "
            f"{'; '.join(parts) or 'no events'}."
        )

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        each = [verdict.as_dict() for verdict in self.verdicts]
        columns = {
            name: [row[name] for row in each] for name in ("outcome", "value", "control_value")
        }
        return {
            "metric": self.metric,
            "control": self.control,
            **columns,
            "sentence": self.sentence,
        }


def in_one_line(verdicts: Sequence[Verdict]) -> str:
    """What all verdicts come to, a clause for each metric but recall, which says what NDCG says.

    A method that is told everything and wins is what privacy costs; a simple one that is as good is
    named as such, once.

    >>> found = [("item means", 0.93, "better"), ("non-private ALS", 0.84, "no better")]
    >>> in_one_line([Verdict("RMSE", 0.86, *one) for one in found])
    'RMSE: better than item means; costs 0.0200 beside ALS without privacy.'
    """
    named = dict.fromkeys(one.metric for one in verdicts if not one.metric.startswith("capped"))
    return " ".join(
        f"{metric}: {_clauses([one for one in verdicts if one.metric == metric])}."
        for metric in named
    )


def _clauses(verdicts: Sequence[Verdict]) -> str:
    """The verdicts of one metric as one clause for each outcome."""
    came = {
        outcome: [one for one in verdicts if one.outcome == outcome and one.control != SHUFFLED]
        for outcome in ("better", "not clearly better", "no better", "cannot be compared")
    }
    told = [one for one in came["no better"] if one.control.startswith(_TOLD)]
    simple = [one for one in came["no better"] if one not in told]
    words = {
        "better than": came["better"],
        "not clearly better than": came["not clearly better"],
        "no better than": simple,
        "not comparable with": came["cannot be compared"],
    }
    clauses = [f"{how} {_listed(found)}" for how, found in words.items() if found]
    if told:
        most = max(told, key=lambda one: abs(one.control_value - one.value))
        cost = abs(most.control_value - most.value)
        clauses.append(f"costs {cost:.4f} beside {_listed([most])}")
    if any(one.control == SHUFFLED and one.outcome != "better" for one in verdicts):
        clauses.append("not shown to be personal: with another's history it is as good")
    return "; ".join(clauses) or "nothing to compare"


def _listed(verdicts: Sequence[Verdict]) -> str:
    names = [one.control for one in verdicts if not one.control.startswith(_TOLD)]
    told = [one.control.removeprefix(_TOLD) for one in verdicts if one.control.startswith(_TOLD)]
    if told:
        names += [*told[:-1], f"{told[-1]} without privacy"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def rating_verdicts(
    ours: RatingMetrics, controls: Mapping[str, RatingMetrics]
) -> tuple[Verdict, ...]:
    """RMSE beside each control on the same events."""
    return tuple(
        compare(
            "RMSE",
            ours.rmse,
            name,
            other.rmse,
            stderr=paired(ours.influence, other.influence),
            lower_is_better=True,
        )
        for name, other in controls.items()
    )


def ranking_verdicts(
    ours: RankingMetrics,
    controls: Mapping[str, RankingMetrics],
    *,
    metrics: Sequence[str] = ("ndcg", "recall_capped"),
) -> tuple[Verdict, ...]:
    """The named metrics, of `ranking.PAIRED`, beside each control on the same users."""
    return tuple(
        compare(
            f"{_LABELS[metric]}@{ours.k}",
            float(getattr(ours, metric)),
            name,
            float(getattr(other, metric)),
            stderr=paired(ours.influence[metric], other.influence[metric]),
            lower_is_better=False,
        )
        for metric in metrics
        for name, other in controls.items()
    )


def rating_verdicts_by_popularity(
    ours: Sequence[RatingMetrics], controls: Mapping[str, Sequence[RatingMetrics]]
) -> tuple[BucketVerdicts, ...]:
    """RMSE of each popularity bucket."""
    return tuple(
        BucketVerdicts(
            "RMSE",
            name,
            tuple(rating_verdicts(one, {name: of})[0] for one, of in zip(ours, other, strict=True)),
        )
        for name, other in controls.items()
    )


def ranking_verdicts_by_popularity(
    ours: RankingReport, controls: Mapping[str, RankingReport], *, k: int
) -> tuple[BucketVerdicts, ...]:
    """NDCG@k of each popularity bucket."""
    return tuple(
        BucketVerdicts(
            f"{_LABELS['ndcg']}@{k}",
            name,
            tuple(
                ranking_verdicts(one[k], {name: of[k]}, metrics=("ndcg",))[0]
                for one, of in zip(ours.buckets, other.buckets, strict=True)
            ),
        )
        for name, other in controls.items()
    )


def paired(ours: npt.NDArray[np.floating], theirs: npt.NDArray[np.floating]) -> float:
    """Standard error of a difference from two influences of the same users.

    Raises ValueError where their numbers differ."""
    if ours.shape != theirs.shape:
        raise ValueError(
            f"two methods are compared on the same users, found {ours.shape} and {theirs.shape}"
        )
    return float(np.linalg.norm(ours.astype(np.float64) - theirs))


def compare(
    metric: str,
    value: float,
    control: str,
    control_value: float,
    *,
    stderr: float,
    lower_is_better: bool,
) -> Verdict:
    """Clearly better means by two standard errors of the difference; an unknown error counts as
    infinite."""
    gain = (control_value - value) if lower_is_better else (value - control_value)
    if math.isnan(gain):
        return Verdict(metric, value, control, control_value, "cannot be compared")
    if gain <= 0:
        return Verdict(metric, value, control, control_value, "no better")
    return Verdict(
        metric,
        value,
        control,
        control_value,
        "better" if gain > _CLEARLY * stderr else "not clearly better",
    )
