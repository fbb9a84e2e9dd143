"""Parts of a score: what each event of one person adds to an item's.

A model whose user vector is a sum over clicks, up to factors that the whole history decides, says
what each click adds (`parts`, (n, D)). Of any other, an event's part is the mean of what the score
gains when it joins, over the n turns of the order of events and their reverses, at most `_ORDERS`
of them: each order adds up to the score, and so does the mean."""

from __future__ import annotations

import numpy as np

from fedrec.arrays import Float64s
from fedrec.data.interactions import Interactions
from fedrec.factorization.rankers import Model, ranker_of

_ORDERS = 32
"""Of events; a history of n needs as many times n solves."""


def contributions(model: Model, history: Interactions, item: int) -> tuple[Float64s, float]:
    """(n,) parts of the n events of one user in the score that orders lists, and the rest of it,
    which the score of nobody has."""
    ranker = ranker_of(model)
    v = np.asarray(ranker.item_vectors[item], np.float64)
    score = float(np.asarray(ranker.user_vectors(history), np.float64)[0] @ v)
    parts_of = getattr(ranker, "parts", None)
    if parts_of is not None:
        found = np.asarray(parts_of(history), np.float64) @ v
        return found, score - float(found.sum())
    n = len(history)
    turns = {int(turn) for turn in np.linspace(0, n, min(n, _ORDERS // 2), endpoint=False)}
    orders = [np.roll(np.arange(n), -turn)[::way] for turn in sorted(turns) for way in (1, -1)]
    found = np.zeros(n)
    nobody = float(_scores(ranker, history, [np.arange(0)], v)[0])
    for order in orders:
        reached = _scores(ranker, history, [order[: size + 1] for size in range(n)], v)
        found[order] += np.diff(reached, prepend=nobody) / len(orders)
    return found, score - float(found.sum())


def _scores(
    ranker: Model, history: Interactions, chosen: list[np.ndarray], v: Float64s
) -> Float64s:
    """Scores of people who hold these events of one user, each."""
    rows = np.concatenate([np.sort(own) for own in chosen]).astype(np.int64)
    many = Interactions(
        np.cumsum([0, *map(len, chosen)]).astype(np.int64),
        history.items[rows],
        history.values[rows],
        history.num_items,
        history.value_range,
        history.kind,
    )
    return np.asarray(np.asarray(ranker.user_vectors(many), np.float64) @ v, np.float64)
