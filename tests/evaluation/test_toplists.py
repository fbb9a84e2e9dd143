"""Lists are exactly the sorted catalogue without the history, whatever the ties, blocks and
threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.evaluation import toplists
from fedrec.evaluation.toplists import (
    NO_ITEM,
    dot_product,
    of_another_user,
    same_for_everyone,
    top_items,
)
from fedrec.numerics.segments import tie_keys
from tests.histories import clicks_of


def by_sorting(scores: np.ndarray, history: list[set[int]], k: int) -> list[list[int]]:
    keys = tie_keys(np.arange(scores.shape[1]))
    lists = []
    for row, seen in zip(scores, history, strict=True):
        order = [
            j
            for j in sorted(range(len(row)), key=lambda j: (-row[j], keys[j]))
            if j not in seen and row[j] > -np.inf
        ]
        lists.append((order + [NO_ITEM] * k)[:k])
    return lists


@pytest.fixture(params=[0, 1 << 21], ids=["compiled", "sorted"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The selection of many scores, and NumPy's sort of few."""
    monkeypatch.setattr(toplists, "_FEW_NUMBERS", request.param)


@pytest.fixture
def small_blocks(form: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toplists, "_BLOCK_NUMBERS", 64)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 6), m=st.integers(1, 25), k=st.integers(1, 30))
def test_lists_equal_a_full_sort_with_few_distinct_scores_and_any_history(
    data: st.DataObject, n: int, m: int, k: int
) -> None:
    value = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0])
    scores = np.array(
        data.draw(st.lists(st.lists(value, min_size=m, max_size=m), min_size=n, max_size=n)),
        np.float32,
    )
    history = data.draw(st.lists(st.sets(st.integers(0, m - 1)), min_size=n, max_size=n))
    for few in (0, scores.size):  # the selection, and NumPy's sort
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(toplists, "_FEW_NUMBERS", few)
            lists = top_items(lambda a, b: scores[a:b], history=clicks_of(history, m), k=k)
        assert lists.tolist() == by_sorting(scores, history, k)


@pytest.mark.usefixtures("small_blocks")
def test_dot_products_with_item_bias_are_ranked_over_many_blocks() -> None:
    rng = np.random.default_rng(0)
    U = rng.standard_normal((50, 6)).astype(np.float32)
    V = rng.standard_normal((21, 6)).astype(np.float32)
    bias = rng.standard_normal(21).astype(np.float32)
    history = [set(rng.choice(21, rng.integers(0, 21), replace=False).tolist()) for _ in range(50)]
    expected = by_sorting(U.astype(float) @ V.T.astype(float) + bias, history, 10)
    assert (
        top_items(dot_product(U, V, item_bias=bias), history=clicks_of(history, 21), k=10).tolist()
        == expected
    )


@pytest.mark.usefixtures("form")
def test_ascending_scores_that_fill_the_heap_at_every_item_are_ranked() -> None:
    scores = np.arange(5000, dtype=np.float32)[None].repeat(3, axis=0)
    lists = top_items(
        lambda a, b: scores[a:b], history=clicks_of([set(), {4999}, set()], 5000), k=100
    )
    assert lists[0].tolist() == list(range(4999, 4899, -1))
    assert lists[1].tolist() == list(range(4998, 4898, -1))


@pytest.mark.usefixtures("form")
def test_users_who_need_no_list_get_none_and_cost_no_scoring() -> None:
    calls: list[tuple[int, int]] = []

    def scores(start: int, stop: int) -> np.ndarray:
        calls.append((start, stop))
        return np.ones((stop - start, 3), np.float32)

    assert (
        top_items(scores, history=clicks_of([set(), set()], 3), k=2, wanted=np.zeros(2, bool))
        == NO_ITEM
    ).all()
    assert calls == []
    assert top_items(
        scores, history=clicks_of([set(), set()], 3), k=2, wanted=np.array([False, True])
    ).tolist() == [[-1, -1], [0, 2]]  # of equal scores by key


@pytest.mark.usefixtures("form")
def test_a_score_that_is_not_a_number_is_refused_with_its_user() -> None:
    scores = np.zeros((4, 30), np.float32)
    scores[2, 17] = np.nan
    with pytest.raises(ValueError, match="user 2 "):
        top_items(lambda a, b: scores[a:b], history=clicks_of([set()] * 4, 30), k=5)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        top_items(lambda a, b: np.zeros((b - a, 4), np.float32), history=clicks_of([set()], 3), k=1)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        dot_product(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="k must"):
        top_items(same_for_everyone(np.arange(3)), history=clicks_of([set()], 3), k=0)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n", [2, 3, 7, 40])
def test_exchanged_users_get_the_scores_of_the_user_half_way_round_and_nobody_their_own(
    n: int,
) -> None:
    U = np.eye(n, dtype=np.float32)
    V = np.eye(n, dtype=np.float32)  # user k's best item is k
    lists = top_items(of_another_user(dot_product(U, V), n), history=clicks_of([set()] * n, n), k=1)
    assert lists[:, 0].tolist() == [(k + n // 2) % n for k in range(n)]
