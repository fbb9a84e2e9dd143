"""Public rows of news of which no text is known, from what their readers click besides.

    f_j = sum_i z_ij (a_i - mean a) / (n_j + k),    z_ij = [j in S_i] - |S_i| / C_i

over the n_j impressions that showed news j, each with the reader's decoded coefficients a_i and the
set S_i that was reported of its C_i candidates. Of news with a text the row s_j is known, and the
ridge regression of their rows on f (`numerics.segments.regressed`) says what to expect of the
others; k is the best of a few on held-out news with a text. Where f tells nothing of these, news
without text keep rows of zeros.

Guarantee: post-processing of what was reported. Nothing is asked for it, and nothing is charged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from fedrec.arrays import Float64s
from fedrec.news.prior import shown_counts
from fedrec.news.reports_training import Collected, Decoder, Trained
from fedrec.numerics.segments import regressed
from fedrec.privacy.bounded_mean import topic_table

_PRIORS = 4.0 ** np.arange(1, 7)
"""Values of k, in impressions."""
_FEWEST = 50
"""News with a text and clicks, below which nothing is learned of others."""


def with_untold(trained: Trained, collected: Collected) -> Trained:
    """The model with rows and prior fits of news that had none; as it is where nothing is learned
    of these.

    The model itself was trained without them: rows that its labels have made would tell it these
    labels. A row is no longer than 1, and shorter the less is known of it."""
    table = trained.topics
    told: npt.NDArray[np.bool_] = np.any(table.rows, axis=1)
    if told.all() or table.open_items is not None:
        return trained
    sums, shown = clicked_together(collected, len(told))
    taught = np.flatnonzero(told & (shown > 0))
    new = np.flatnonzero(~told & (shown > 0))
    if len(taught) < _FEWEST or not len(new):
        return trained
    S = table.weights[taught]
    S = S - S.mean(axis=0)
    halves = np.arange(len(taught)) % 2 == 0

    def left_over(k: float) -> float:
        """Share of the variance of rows that is not told, of news held out in turn."""
        F = sums[taught] / (shown[taught] + k)[:, None]
        errors = [
            np.sum((regressed(S[~half], F[~half], F[half]) - S[half]) ** 2)
            for half in (halves, ~halves)
        ]
        return float(sum(errors) / np.sum(S**2))

    k = min(_PRIORS, key=left_over)
    if left_over(k) >= 1:
        return trained
    F = sums / (shown + k)[:, None]
    rows = table.weights.copy()
    rows[new] = regressed(S, F[taught], F[new])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    fits = trained.model.prior.numpy().astype(np.float64)
    fits[new] = regressed(fits[taught], F[taught], F[new])
    trained.model.prior = torch.from_numpy(fits.astype(np.float32))
    return replace(trained, topics=topic_table(rows))


def clicked_together(collected: Collected, news: int) -> tuple[Float64s, npt.NDArray[np.int64]]:
    """(m, B) sum of z_ij (a_i - mean a), and (m,) how many impressions showed each news."""
    A = Decoder.of(collected.coefficients)(collected.coefficients).astype(np.float64)
    shown = collected.candidates >= 0
    sizes = shown.sum(axis=1)
    z = np.zeros(shown.shape)
    z[shown] = collected.labels.reported
    z -= z.sum(axis=1, keepdims=True) / np.maximum(sizes, 1)[:, None]
    sums = np.zeros((news, A.shape[1]))
    for column in range(shown.shape[1]):
        here = shown[:, column]
        weighed = z[here, column, None] * A[collected.users[here]]
        np.add.at(sums, collected.candidates[here, column], weighed)
    return sums, shown_counts(collected.candidates, items=news)
