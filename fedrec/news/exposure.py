"""Exposure of items, how often each was shown, as a part of scores for whole catalogues.

A model of impressions learns which of the candidates shown is clicked: its scores tell p(click)
over q(shown) up to a factor, whichever q chose the candidates. Over the candidates of an impression
that is what counts. For a list from the whole catalogue log q belongs to the score again: the
correction of sampled softmax (Bengio and Senecal 2008; Yi et al. 2019 for recommenders). q is
counted from the candidates of training, which are public, so it costs nothing. A bundle tells it
to everybody, exactly.
"""

from __future__ import annotations

import numpy as np

from fedrec.arrays import Float64s, Int64s


def shown_counts(candidates: Int64s, *, items: int) -> Int64s:
    """(items,) how many impressions showed each item. candidates: of any shape, -1 for none."""
    return np.bincount(candidates[candidates >= 0], minlength=items).astype(np.int64)


def log_exposure(shown: Int64s) -> Float64s:
    """(m,) log q up to a constant. An item that was never shown is taken for as likely as the
    others on average: nothing is known of how it would be chosen."""
    logs = np.log(np.maximum(shown, 1))
    return np.where(shown > 0, logs, logs[shown > 0].mean() if shown.any() else 0.0)
