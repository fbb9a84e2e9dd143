"""Check that what is given as public was not counted from the private data itself.

A column of items that orders them as their own counts do, or pairs whose weights do as people have
both, says of private rows what no noise hides. The check reads the private rows, so it is made only
where they are already: by whoever loads them. What it says stays there.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedrec.arrays import Float64s
from fedrec.data.dataset import Dataset
from fedrec.data.delimited import is_number
from fedrec.data.features import FeatureBag
from fedrec.data.public_sources import SIMILAR_ITEMS, SOURCES
from fedrec.errors import PrivacyError

ALIKE = 0.9
"""Rank correlation from which on a column is taken for a count of the same data. Years of MovieLens
1M have .2 with how often films are rated."""
LEAST = 30
"""Items or pairs, below which chance may do as much."""
_PAIRS = 20_000
_REMEDY = (
    "Leave it out: it is not public, and would tell what the noise hides. Counts of other people "
    "are public only where nobody here is among them."
)


def require_public(dataset: Dataset) -> Dataset:
    """The data set. Raises PrivacyError on a column of items, or on similar items, that look like
    counts of its own events."""
    events = dataset.interactions
    counts = np.bincount(events.items, minlength=events.num_items).astype(np.float64)
    for name, bag in dataset.features.bags.items():
        numbers = None if name in SOURCES else _numbers(bag)
        if numbers is not None and _alike(numbers, counts):
            raise PrivacyError(
                f"the column {name!r} of items orders them as the data's own counts do", _REMEDY
            )
    pairs = dataset.features.bags.get(SIMILAR_ITEMS)
    if pairs is not None and _looks_counted(dataset, pairs):
        raise PrivacyError(
            "the weights of similar items are ordered as the data's own pairs of clicks are",
            _REMEDY,
        )
    return dataset


def _numbers(bag: FeatureBag) -> Float64s | None:
    """(m,) the number that each item carries, NaN where it has none; None where values are not
    numbers, or items have several."""
    words = [value.removeprefix("up to ") for value in bag.vocabulary]
    if len(words) < 2 or not all(map(is_number, words)):
        return None
    each = np.diff(bag.counts.indptr)
    if each.max(initial=0) > 1:
        return None
    numbers = np.full(len(each), np.nan)
    numbers[each == 1] = np.array([float(word) for word in words])[bag.counts.indices]
    return numbers


def _looks_counted(dataset: Dataset, bag: FeatureBag) -> bool:
    events = dataset.interactions
    pairs = bag.counts.tocoo()
    step = max(pairs.nnz // _PAIRS, 1)
    X = sparse.csr_matrix(
        (np.ones(len(events)), events.items, events.user_ptr),
        shape=(events.num_users, events.num_items),
    ).T.tocsr()
    both = X[pairs.row[::step]].multiply(X[pairs.col[::step]]).sum(axis=1)
    return _alike(pairs.data[::step].astype(np.float64), np.asarray(both, np.float64).ravel())


def _alike(given: Float64s, counted: Float64s) -> bool:
    known = np.isfinite(given)
    if np.count_nonzero(known) < LEAST or np.ptp(given[known]) == 0 or np.ptp(counted[known]) == 0:
        return False
    return bool(abs(np.corrcoef(_ranks(given[known]), _ranks(counted[known]))[0, 1]) > ALIKE)


def _ranks(values: Float64s) -> Float64s:
    """Positions in order, equal values sharing their mean position: Spearman's correlation is
    Pearson's of these."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - counts / 2)[place], np.float64)
