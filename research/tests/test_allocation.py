"""Every way to divide a budget keeps within it, and does what its name says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.factorization import weights
from fedrec_research.papers.allocation import Adaptive, Allocation

ALLOCATIONS = (Adaptive(0.0), Adaptive(0.5), Adaptive(1.0))


def some_events(seed: int, users: int = 12, items: int = 30) -> Interactions:
    rng = np.random.default_rng(seed)
    ids, own = np.nonzero(rng.random((users, items)) < rng.random((users, 1)))
    return Interactions.from_columns(
        ids, own, None, num_users=users, num_items=items, value_range=(0.0, 1.0), kind="clicks"
    )


def allotted(
    allocation: Allocation, mine: Interactions, counts: np.ndarray, *, budget: float = 1.0
) -> np.ndarray:
    return allocation(mine, counts, budget=budget, num_users=12, key=b"key").values


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=str)
@given(seed=st.integers(0, 2**32), user=st.integers(0, 11), budget=st.floats(1e-6, 1e6))
def test_no_user_passes_its_budget_and_no_other_user_matters(
    allocation: Allocation, seed: int, user: int, budget: float
) -> None:
    mine = some_events(seed)
    counts = np.maximum(np.random.default_rng(seed).normal(20, 30, 30), 1)
    found = allotted(allocation, mine, counts, budget=budget)
    own = slice(mine.user_ptr[user], mine.user_ptr[user + 1])
    assert math.fsum(w * w for w in found[own]) <= budget * (1 + 1e-12)
    alone = allotted(allocation, mine.users_subset(np.array([user])), counts, budget=budget)
    np.testing.assert_array_equal(found[own], alone)


def test_mu_zero_is_the_same_weight_on_all_of_a_user_and_needs_no_counts() -> None:
    mine = some_events(2)
    np.testing.assert_array_equal(
        allotted(Adaptive(0.0), mine, np.arange(1.0, 31.0)),
        weights.uniform(mine, budget=1.0).values,
    )


def test_a_constant_weight_refuses_users_that_were_not_sampled() -> None:
    with pytest.raises(ValueError, match="sample first"):
        weights.constant(some_events(1), limit=2, budget=1.0)
