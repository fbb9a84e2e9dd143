"""Lists of three readers of different taste: how many of ten titles each two of them share.

A reader likes one genre. Its history is that genre's most rated items of train, of which the first
five are left out, so that a list may name them; an item of two of the three genres belongs to
nobody, so that histories do not overlap. Several threes are measured, since some genres lie nearer
than others; the first one, and the numbers, are those of `docs/examples/three_readers.py`. Where
the data lacks these genres, its first three by name are one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from fedrec.arrays import Int32s, Int64s
from fedrec.data.features import FeatureBag, PublicFeatures
from fedrec.data.interactions import Interactions
from fedrec_research.trials import Row

THREES: tuple[tuple[str, ...], ...] = (
    ("Children's", "Film-Noir", "Horror"),
    ("Children's", "Horror", "Western"),
    ("Children's", "Horror", "War"),
)
LEFT_OUT = 5
LIKES = 12
DRAWS = 100
MOST = 3
"""MOST: titles that two lists may share and still count as different."""
_BAGS = ("listed_genre", "genre")


def threes(features: PublicFeatures, train: Interactions) -> list[dict[str, Int64s]]:
    """Return, for each three readers, items by genre, most rated first; none where the data has no
    three genres with items."""
    bag = next((features.bags[name] for name in _BAGS if name in features.bags), None)
    if bag is None:
        return []
    known = [three for three in THREES if {*three} <= {*bag.vocabulary}]
    found = [_histories(bag, three, train) for three in known or [bag.vocabulary[:3]]]
    return [one for one in found if len(one) == 3 and all(map(len, one.values()))]


def _histories(bag: FeatureBag, genres: Sequence[str], train: Interactions) -> dict[str, Int64s]:
    has = bag.counts[:, [bag.vocabulary.index(genre) for genre in genres]].toarray() > 0
    counts = np.bincount(train.items, minlength=train.num_items)
    known = np.lexsort((np.arange(len(counts)), -counts))
    alone = has[known].sum(1) == 1
    return {
        genre: known[has[known, place] & alone][LEFT_OUT : LEFT_OUT + LIKES]
        for place, genre in enumerate(genres)
    }


def events(known: Mapping[str, Int64s], train: Interactions, *, draws: int) -> Interactions:
    """What the readers like, at the top of train's scale: draw 0 of each reader, then draw 1."""
    items = np.concatenate(list(known.values()))
    readers = np.repeat(np.arange(len(known)), [len(own) for own in known.values()])
    users = (np.arange(draws)[:, None] * len(known) + readers).ravel()
    return Interactions.from_columns(
        users,
        np.tile(items, draws),
        np.full(len(users), train.value_range[1]) if train.rated else None,
        num_users=draws * len(known),
        num_items=train.num_items,
        value_range=train.value_range,
        kind=train.kind,
        item_words=train.item_words,
    )


def shared(lists: Int32s) -> Row:
    """Compare lists (draws, readers, k): titles that two readers share, as mean over pairs and
    draws and as the most of any; the share of draws where no pair shares more than `MOST`; and the
    mean that two draws of one reader share, None of one draw."""
    pairs = list(itertools.combinations(range(lists.shape[1]), 2))
    counts = np.array([[_common(draw[a], draw[b]) for a, b in pairs] for draw in lists])
    own = [
        _common(one, other)
        for draw, following in itertools.pairwise(lists)
        for one, other in zip(draw, following, strict=True)
    ]
    return {
        "mean": float(counts.mean()),
        "most": int(counts.max()),
        "each_pair": counts.mean(0).tolist(),
        "draws_of_few": float((counts.max(1) <= MOST).mean()),
        "same_reader": float(np.mean(own)) if own else None,
    }


def _common(one: Int32s, other: Int32s) -> int:
    return len(np.intersect1d(one[one >= 0], other[other >= 0]))
