"""Popularity on a click log, the control of a news model: over the candidates of an impression, and
as a list of ten from the whole catalogue.

    counted     clicks of train, the labels of its impressions: not private
    released    the same counts with noise, (epsilon, delta)-DP per click (replace): one click
                exchanged for another moves two counts by one, so the sensitivity is sqrt(2)

Where the others of an impression are drawn by these counts (`data.clicklog`), popularity is near
chance over candidates by construction. A list of ten has no such others. A model trained against
them learns how much likelier an item is than how often it was shown says, so the log of that
belongs to its score when it ranks the whole catalogue (`news.exposure`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedrec.arrays import Float32s, Float64s, Int64s
from fedrec.data.clicklog import ClickLog
from fedrec.data.impressions import Impressions
from fedrec.data.interactions import Interactions
from fedrec.evaluation.controls import paired
from fedrec.evaluation.impressions import IMPRESSION_METRICS, impression_metrics
from fedrec.evaluation.ranking import metrics_of
from fedrec.evaluation.toplists import Scores, same_for_everyone, top_items
from fedrec.privacy import gaussian
from fedrec.privacy.accounting import mu_for
from fedrec.privacy.guarantee import Guarantee
from fedrec_research.trials import Row

K = 10
SHOWN = ("auc", "mrr", "ndcg@10")
LIST = "list ndcg@10"
BARE = "list without exposure ndcg@10"
_STEP = 2.0**-10
"""Of the grid that noise is drawn on: far below its std."""


@dataclass(frozen=True)
class Measured:
    """A mean, and what each user adds to its error: influences (users,) of norm its standard
    error."""

    mean: float
    influence: Float64s


Metrics = Mapping[str, Measured]


@dataclass(frozen=True)
class Popularity:
    """Counts (m,) of clicks, exact and released, and the test that they are measured on."""

    counted: Float64s
    released: Float64s
    test: Impressions

    @staticmethod
    def of(log: ClickLog, guarantee: Guarantee, *, key: bytes) -> Popularity:
        """From the labels of train. key: 32 bytes, of the noise."""
        counts = np.bincount(log.train.candidates[log.train.clicked], minlength=log.train.num_news)
        return Popularity(counts.astype(np.float64), released(counts, guarantee, key=key), log.test)

    def rows(self) -> dict[str, Metrics]:
        """Metrics of the two."""
        return {
            name: {
                **over_candidates(counts.astype(np.float32)[self.test.candidates], self.test),
                LIST: self._list(same_for_everyone(counts)),
            }
            for name, counts in (("counted", self.counted), ("released", self.released))
        }

    def beside(self, scores: Float32s, exposure: Float64s) -> Metrics:
        """Metrics of a model's scores (users, m), of which these (m,) are for lists from the whole
        catalogue alone; and of a list without them."""
        owners = np.repeat(self.test.users, np.diff(self.test.candidate_ptr))
        bare = scores - exposure.astype(np.float32)
        return {
            **over_candidates(bare[owners, self.test.candidates], self.test),
            LIST: self._list(lambda a, b: scores[a:b]),
            BARE: self._list(lambda a, b: bare[a:b]),
        }

    def _list(self, scores: Scores) -> Measured:
        """NDCG@10 of the user's clicks in its list of ten from all items outside its history."""
        test = self.test
        owners = np.repeat(test.users, np.diff(test.candidate_ptr))[test.clicked]
        known = np.repeat(np.arange(test.num_users), np.diff(test.history_ptr))[test.history >= 0]
        history, targets = (
            Interactions.from_columns(
                users, items, None,
                num_users=test.num_users, num_items=test.num_news,
                value_range=(0.0, 1.0), kind="clicks",
            )
            for users, items in (
                (known, test.history[test.history >= 0]),
                (owners, test.candidates[test.clicked]),
            )
        )  # fmt: skip
        found = metrics_of(top_items(scores, history=history, k=K), targets, cutoffs=(K,))[K]
        return Measured(found.ndcg, np.asarray(found.influence["ndcg"], np.float64))


def released(counts: Int64s, guarantee: Guarantee, *, key: bytes) -> Float64s:
    """Counts (m,) with noise for the guarantee; exact for an infinite one."""
    std = gaussian.noise_std(
        radius=math.sqrt(2), mu=mu_for(guarantee.epsilon, guarantee.delta), coarsest_step=_STEP
    )
    on_grid = np.asarray(counts[None] / _STEP, np.int64)
    return np.asarray(gaussian.add_to_rows(on_grid, step=_STEP, std=std, key=key)[0])


def over_candidates(scores: Float32s, test: Impressions) -> Metrics:
    """AUC, MRR and nDCG@10 of scores (number of candidates,), as means over impressions, with
    influences by user: the impressions of one user err together."""
    values = impression_metrics(scores, test)
    kept = ~np.isnan(values[:, 0])
    users, owner = np.unique(test.users[kept], return_inverse=True)
    n = len(users)
    found = {}
    for name in SHOWN:
        column = values[kept, IMPRESSION_METRICS.index(name)]
        mean = float(column.mean())
        sums = np.bincount(owner, weights=column - mean, minlength=n) / len(column)
        found[name] = Measured(mean, sums * math.sqrt(n / (n - 1)) if n > 1 else sums * math.nan)
    return found


def over_seeds(rows: Sequence[Metrics]) -> Metrics:
    """Means over models tested on the same users."""
    return {
        name: Measured(
            float(np.mean([row[name].mean for row in rows])),
            np.mean([row[name].influence for row in rows], axis=0),
        )
        for name in rows[0]
    }


def above(ours: Metrics, popular: Metrics) -> dict[str, Row]:
    """Each metric, and its difference from popularity's, with the standard error by pairs."""
    found = {}
    for name, one in ours.items():
        other = popular[LIST if name == BARE else name]
        found[name] = {
            "mean": one.mean,
            "above": one.mean - other.mean,
            "above_stderr": paired(one.influence, other.influence),
        }
    return found
