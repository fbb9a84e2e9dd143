"""Equal scores are listed in an order that says nothing of the items."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.toplists import same_for_everyone
from fedrec.numerics.segments import tie_keys


def second_opinion(row: int) -> int:
    x = row ^ 0x9E3779B9
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return x ^ (x >> 16)


def test_keys_are_those_of_whole_numbers_and_no_two_are_equal() -> None:
    keys = tie_keys(np.arange(100_000))
    assert keys[::997].tolist() == [second_opinion(row) for row in range(0, 100_000, 997)]
    assert len(np.unique(keys)) == len(keys)


def test_the_order_of_the_keys_has_no_trend() -> None:
    """Rank correlation with the rows, of standard deviation 1 / sqrt(m - 1) in random order."""
    for m in (100, 1_000, 10_000, 100_000):
        ranks = np.argsort(np.argsort(tie_keys(np.arange(m))))
        assert abs(np.corrcoef(ranks, np.arange(m))[0, 1]) < 3 / np.sqrt(m - 1)


@pytest.mark.slow
def test_a_constant_scorer_is_worth_no_more_than_random_order() -> None:
    """Small ids are popular here, as on MovieLens. A fixed order is one draw of a random one, whose
    spread is measured over 40 catalogues with the same clicks and other numbers."""
    m = 800
    n = 2_000
    rng = np.random.default_rng(1)
    weights = 1 / (50 + np.arange(m))
    clicked = np.concatenate(
        [rng.choice(m, 10, replace=False, p=weights / weights.sum()) for _ in range(n)]
    )

    def ndcg(names: np.ndarray, scores: np.ndarray) -> float:
        users = np.repeat(np.arange(n), 10)
        targets = Interactions.from_columns(
            users, names[clicked], None, num_users=n, num_items=m, value_range=(0, 1), kind="clicks"
        )
        nothing = targets.select(np.zeros(len(targets), bool))
        counts = np.bincount(targets.items, minlength=m)
        found = evaluate_ranking(
            same_for_everyone(scores),
            history=nothing,
            targets=targets,
            train_counts=counts,
            cutoffs=(10,),
        )
        return found.at[10].ndcg

    constant = ndcg(np.arange(m), np.zeros(m))
    others = np.array([ndcg(rng.permutation(m), np.zeros(m)) for _ in range(40)])
    assert abs(constant - others.mean()) < 3 * others.std()
    assert (
        ndcg(np.arange(m), -np.arange(m, dtype=float)) > others.mean() + 5 * others.std()
    )  # by id
