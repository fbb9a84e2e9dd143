"""MIND's metrics against its official formulas written out a second time, ties against all orders
of the tied candidates."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data.impressions import Impressions
from fedrec.evaluation.impressions import (
    evaluate_impressions,
    history_swap,
    impression_metrics,
    with_swapped_histories,
)


def shown(clicks: list[list[int]], histories: list[list[int]] | None = None) -> Impressions:
    """One user an impression; candidate c of impression i is news c."""
    histories = histories or [[] for _ in clicks]
    ptr = [0, *np.cumsum([len(row) for row in clicks])]
    return Impressions(
        num_news=100,
        history_ptr=np.array([0, *np.cumsum([len(row) for row in histories])], np.int64),
        history=np.array([j for row in histories for j in row], np.int32),
        users=np.arange(len(clicks), dtype=np.int32),
        candidate_ptr=np.array(ptr, np.int64),
        candidates=np.concatenate([np.arange(len(row)) for row in clicks] or [[]]).astype(np.int32),
        clicked=np.array([y for row in clicks for y in row], np.bool_),
    )


def official(y_true: list[int], order: list[int]) -> list[float]:
    """`evaluate.py` of MIND for one order of the candidates, best first: AUC, MRR, nDCG@5,
    nDCG@10."""
    y = [y_true[c] for c in order]
    pairs = [(a, b) for a, b in itertools.combinations(range(len(y)), 2) if y[a] != y[b]]
    auc = sum(y[a] for a, _ in pairs) / len(pairs)
    mrr = sum(label / (rank + 1) for rank, label in enumerate(y)) / sum(y)

    def dcg(labels: list[int], k: int) -> float:
        return sum((2**label - 1) / math.log2(rank + 2) for rank, label in enumerate(labels[:k]))

    return [auc, mrr, *(dcg(y, k) / dcg(sorted(y, reverse=True), k) for k in (5, 10))]


def over_all_orders(y_true: list[int], scores: list[float]) -> list[float]:
    """The official metrics averaged over every order that the scores allow."""
    orders = [
        o
        for o in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(o))
    ]
    return list(np.mean([official(y_true, list(order)) for order in orders], axis=0))


def test_one_impression_worked_out_by_hand() -> None:
    # Clicks at ranks 2 and 4 of 5: three of six pairs are right; (1/2 + 1/4) / 2; DCG over 1 + 1 /
    # log2 3.
    metrics = evaluate_impressions(np.array([5.0, 4, 3, 2, 1]), shown([[0, 1, 0, 1, 0]]))
    assert metrics.auc == pytest.approx(3 / 6)
    assert metrics.mrr == pytest.approx(0.375)
    assert (
        metrics.ndcg5
        == metrics.ndcg10
        == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3)))
    )


@given(st.integers(0, 2**32))
@settings(max_examples=40)
def test_without_ties_the_metrics_are_those_of_the_official_script(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clicks = [[1, 0, *rng.integers(0, 2, rng.integers(0, 40)).tolist()] for _ in range(5)]
    impressions = shown(clicks)
    scores = rng.permutation(len(impressions.candidates)).astype(np.float32)
    ours = impression_metrics(scores, impressions)
    for i, row in enumerate(clicks):
        mine = scores[impressions.candidate_ptr[i] : impressions.candidate_ptr[i + 1]]
        np.testing.assert_allclose(
            ours[i], official(row, np.argsort(mine)[::-1].tolist()), atol=1e-12
        )


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=5))
@settings(max_examples=60)
def test_tied_candidates_score_the_mean_over_all_their_orders(rest: list[tuple[int, int]]) -> None:
    rows = [(1, 1), (0, 1), *rest]
    ours = impression_metrics(np.array([float(s) for _, s in rows]), shown([[y for y, _ in rows]]))[
        0
    ]
    np.testing.assert_allclose(
        ours, over_all_orders([y for y, _ in rows], [s for _, s in rows]), atol=1e-12
    )


def test_a_constant_score_is_chance_wherever_the_click_stands() -> None:
    first = [1] + [0] * 36
    last = [0] * 36 + [1]
    ours = impression_metrics(np.zeros(74), shown([first, last]))
    np.testing.assert_array_equal(ours[0], ours[1])
    assert ours[0, 0] == 0.5
    assert ours[0, 1] == pytest.approx(sum(1 / r for r in range(1, 38)) / 37)


def test_the_mean_is_over_impressions_and_those_that_cannot_be_ranked_are_counted() -> None:
    impressions = shown([[1, 0], [0, 0, 0], [1], [0, 1]])
    metrics = evaluate_impressions(np.array([1.0, 0, 1, 2, 3, 7, 1, 0]), impressions)
    assert (metrics.impressions, metrics.skipped, metrics.auc) == (2, 2, 0.5)
    assert metrics.stderr["auc"] == pytest.approx(0.5)
    assert json.loads(json.dumps(metrics.as_dict(), allow_nan=False))["ndcg@5"] == pytest.approx(
        metrics.ndcg5
    )


def test_nothing_to_rank_is_not_a_number_and_null_in_json() -> None:
    metrics = evaluate_impressions(np.zeros(0), shown([]))
    assert math.isnan(metrics.auc)
    assert metrics.as_dict()["auc"] is None


def test_scores_of_another_shape_or_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        evaluate_impressions(np.zeros(3), shown([[1, 0]]))
    with pytest.raises(ValueError, match="1 scores are not numbers"):
        evaluate_impressions(np.array([np.nan, 0]), shown([[1, 0]]))


def test_swapping_gives_every_user_exactly_one_other_users_history() -> None:
    histories = [[k] * (k % 4) + [k] for k in range(50)]
    impressions = shown([[1, 0]] * 50, histories)
    swapped = with_swapped_histories(impressions, rng=np.random.default_rng(1))
    received = [swapped.history[a:b].tolist() for a, b in itertools.pairwise(swapped.history_ptr)]
    assert sorted(received) == sorted(histories)
    assert all(mine != theirs for mine, theirs in zip(histories, received, strict=True))
    assert swapped.candidates is impressions.candidates


def test_a_model_that_reads_the_history_falls_to_chance_when_swapped_and_one_that_does_not_stays() -> None:  # fmt: skip
    rng = np.random.default_rng(0)
    n = 400
    impressions = shown(
        [[1, *[0] * 9] if k % 2 else [*[0] * 9, 1] for k in range(n)], [[k % 2] for k in range(n)]
    )

    def personal(x: Impressions) -> np.ndarray:
        last = x.last_clicks(1)[x.users, 0]
        return np.where(np.repeat(last, 10) == 1, -x.candidates, x.candidates).astype(float)

    def popular(x: Impressions) -> np.ndarray:
        return -x.candidates.astype(float)

    assert evaluate_impressions(personal(impressions), impressions).auc == 1.0
    # Who gives to whom is fair: n pairs of two kinds, a share of right ones of standard deviation
    # about .025; 5 of them (p < 1e-6).
    assert history_swap(personal, impressions, rng=rng).auc == pytest.approx(0.5, abs=0.125)
    assert history_swap(popular, impressions, rng=rng) == evaluate_impressions(
        popular(impressions), impressions
    )


def test_one_user_alone_cannot_be_swapped() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        with_swapped_histories(shown([[1, 0]]), rng=np.random.default_rng(0))
