"""Ranking of the clicked candidates of each impression: AUC, MRR, nDCG@5 and nDCG@10 as in MIND's
official evaluation.

For one impression with clicks C among its candidates, r(c) the rank of a click by score, best
first:

    auc     share of the pairs (click, other) with the click above; an equal score counts half
    mrr     sum over c of 1 / r(c), over |C|                       all clicks count, not only the
        first
    ndcg@k  sum over c with r(c) <= k of 1 / log2(1 + r(c)), over its value for the best order

Each is averaged over impressions (Wu et al. 2020, MIND, and its `evaluate.py`). That script is
given ranks, so it knows no ties; where scores tie, we take the mean over all orders of the tied
candidates, so that a constant score gets no more than chance whatever the candidates' order.
Impressions without a click, or with nothing but clicks, cannot be ranked: they are skipped and
counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedrec.arrays import Float64s, Int64s
from fedrec.data.impressions import Impressions
from fedrec.numerics import compiled
from fedrec.numerics.threads import map_ranges

Score = Callable[[Impressions], npt.NDArray[np.floating]]
"""`score(impressions)`: one number for each of `impressions.candidates`, higher is better."""

IMPRESSION_METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10")
"""In the order of the kernel's columns; the names are those of results."""


@dataclass(frozen=True)
class ImpressionMetrics:
    """Means over `impressions` impressions, each in [0, 1]; not a number where there are none.
    `stderr` by name, over impressions.

    influence: (impressions,) of the AUC, as in `ranking.RankingMetrics`: for comparisons impression
    by impression.
    """

    auc: float
    mrr: float
    ndcg5: float
    ndcg10: float
    impressions: int
    skipped: int
    stderr: dict[str, float]
    influence: Float64s = field(default_factory=lambda: np.zeros(0), compare=False, repr=False)

    def means(self) -> dict[str, float]:
        """By the names of results: auc, mrr, ndcg@5, ndcg@10."""
        return dict(
            zip(IMPRESSION_METRICS, (self.auc, self.mrr, self.ndcg5, self.ndcg10), strict=True)
        )

    def as_dict(self) -> dict[str, float | int | None]:
        """Plain values for JSON, None in the place of what is not a number."""
        numbers = self.means() | {f"{name}_stderr": value for name, value in self.stderr.items()}
        counts: dict[str, float | int | None] = {
            "impressions": self.impressions,
            "skipped": self.skipped,
        }
        return {
            name: None if math.isnan(value) else value for name, value in numbers.items()
        } | counts


def evaluate_impressions(
    scores: npt.NDArray[np.floating], impressions: Impressions
) -> ImpressionMetrics:
    """The four metrics of `scores`, (number of candidates,) aligned with `impressions.candidates`.

    Raises ValueError on another shape or a score that is not a number (infinite ones are ranks like
    any other).
    """
    values = impression_metrics(scores, impressions)
    kept = values[~np.isnan(values[:, 0])]
    n = len(kept)
    mean = kept.mean(axis=0) if n else np.full(len(IMPRESSION_METRICS), np.nan)
    error = (
        kept.std(axis=0, ddof=1) / math.sqrt(n)
        if n > 1
        else np.full(len(IMPRESSION_METRICS), np.nan)
    )
    stderr = {name: float(x) for name, x in zip(IMPRESSION_METRICS, error, strict=True)}
    auc, mrr, ndcg5, ndcg10 = mean.tolist()
    influence = (kept[:, 0] - auc) / math.sqrt(n * (n - 1)) if n > 1 else np.full(n, np.nan)
    return ImpressionMetrics(
        auc,
        mrr,
        ndcg5,
        ndcg10,
        impressions=n,
        skipped=len(values) - n,
        stderr=stderr,
        influence=influence,
    )


def impression_metrics(scores: npt.NDArray[np.floating], impressions: Impressions) -> Float64s:
    """(n, 4) float64: the metrics of each impression in the order of `IMPRESSION_METRICS`, NaN
    where it cannot be ranked."""
    if scores.shape != impressions.candidates.shape:
        raise ValueError(
            f"scores must have shape {impressions.candidates.shape}, found {scores.shape}"
        )
    if np.isnan(scores).any():
        raise ValueError(f"{int(np.isnan(scores).sum())} scores are not numbers")
    longest = int(np.diff(impressions.candidate_ptr).max(initial=0))
    places = np.arange(1, longest + 1)
    credits = np.column_stack(
        [
            1 / places,
            np.where(places <= 5, 1, 0) / np.log2(places + 1),
            np.where(places <= 10, 1, 0) / np.log2(places + 1),
        ]
    )
    # earned[b] - earned[a]: sum over ranks a + 1 .. b
    earned = np.concatenate([np.zeros((1, 3)), np.cumsum(credits, axis=0)])
    values = np.full((len(impressions), len(IMPRESSION_METRICS)), np.nan)
    ptr = impressions.candidate_ptr
    clicked = impressions.clicked
    map_ranges(lambda a, b: _measure(scores, clicked, ptr, earned, values, a, b), len(impressions))
    return values


def history_swap(
    score: Score, impressions: Impressions, *, rng: np.random.Generator
) -> ImpressionMetrics:
    """The metrics of `score` with another user's history in the place of each user's own: chance,
    for a purely personal model.

    A model that does as well here as with the right histories ignores them. Raises ValueError with
    fewer than two users.
    """
    swapped = with_swapped_histories(impressions, rng=rng)
    return evaluate_impressions(score(swapped), swapped)


def with_swapped_histories(impressions: Impressions, *, rng: np.random.Generator) -> Impressions:
    """These impressions, with histories passed on along one random cycle through all users, so that
    nobody keeps its own.

    Candidates stay, so that the task is the same; the other history may hold one of them. Raises
    ValueError with fewer than two users.
    """
    n = impressions.num_users
    if n < 2:
        raise ValueError(f"a swap of histories needs at least 2 users, found {n}")
    cycle = rng.permutation(n)
    giver = np.empty(n, np.int64)
    giver[cycle] = np.roll(cycle, 1)
    starts = impressions.history_ptr[giver]
    lengths = np.diff(impressions.history_ptr)[giver]
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    history = impressions.history[np.repeat(starts - ptr[:-1], lengths) + np.arange(ptr[-1])]
    return replace(impressions, history_ptr=ptr, history=history)


@compiled()
def _measure(
    scores: npt.NDArray[np.floating],
    clicked: npt.NDArray[np.bool_],
    ptr: Int64s,
    earned: Float64s,
    values: Float64s,
    start: int,
    stop: int,
) -> None:
    """Below `above` candidates and tied with `ties`, itself included, a click has ranks above + 1
    .. above + ties equally often."""
    for i in range(start, stop):
        a = ptr[i]
        b = ptr[i + 1]
        clicks = 0
        for e in range(a, b):
            clicks += clicked[e]
        if clicks == 0 or clicks == b - a:
            continue
        pairs = 0.0
        gains = np.zeros(3)
        for c in range(a, b):
            if not clicked[c]:
                continue
            above = 0
            ties = 0
            others_below = 0.0
            for e in range(a, b):
                above += scores[e] > scores[c]
                ties += scores[e] == scores[c]
                if not clicked[e]:
                    others_below += (
                        1.0 if scores[e] < scores[c] else 0.5 if scores[e] == scores[c] else 0.0
                    )
            pairs += others_below
            gains += (earned[above + ties] - earned[above]) / ties
        values[i, 0] = pairs / (clicks * (b - a - clicks))
        values[i, 1] = gains[0] / clicks
        values[i, 2:] = gains[1:] / earned[clicks, 1:]
