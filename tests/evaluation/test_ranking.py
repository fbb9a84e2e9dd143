"""Ranking metrics against formulas written out a second time, and against lists worked out by
hand."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.evaluation.ranking import (
    METRICS,
    ListStatistics,
    evaluate_ranking,
    gini,
    list_statistics,
    metrics_of,
)
from fedrec.evaluation.toplists import dot_product
from tests.histories import clicks_of


def second_opinion(ranked: list[int], wanted: set[int], k: int) -> dict[str, float]:
    hits = [item in wanted for item in ranked[:k]]
    reachable = min(k, len(wanted))
    return {
        "recall_capped": sum(hits) / reachable,
        "recall": sum(hits) / len(wanted),
        "ndcg": sum(h / math.log2(r + 2) for r, h in enumerate(hits))
        / sum(1 / math.log2(r + 2) for r in range(reachable)),
        "mrr": next((1 / (r + 1) for r, h in enumerate(hits) if h), 0.0),
        "hit_rate": float(any(hits)),
        "precision": sum(hits) / k,
        "average_precision": sum(sum(hits[: r + 1]) / (r + 1) for r, h in enumerate(hits) if h)
        / reachable,
    }


def test_one_list_worked_out_by_hand() -> None:
    # Ranks 1..4 hold items 7 3 5 1; targets are 3, 1 and 9: hits at ranks 2 and 4.
    metrics = metrics_of(
        np.array([[7, 3, 5, 1]], np.int32), clicks_of([{3, 1, 9}], 10), cutoffs=(2, 4)
    )
    at2 = metrics[2]
    at4 = metrics[4]
    assert (at2.recall_capped, at2.recall, at2.precision) == (1 / 2, pytest.approx(1 / 3), 1 / 2)
    assert at2.ndcg == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    assert (at4.recall_capped, at4.precision, at4.mrr, at4.hit_rate) == (
        pytest.approx(2 / 3),
        1 / 2,
        1 / 2,
        1,
    )
    assert at4.average_precision == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert at4.ndcg == pytest.approx(
        (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 1 / 2)
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 5), m=st.integers(6, 15))
def test_every_metric_at_every_cutoff_equals_its_formula_and_users_without_targets_do_not_count(
    data: st.DataObject, n: int, m: int
) -> None:
    lists = [data.draw(st.permutations(range(m)))[:6] for _ in range(n)]
    wanted = data.draw(st.lists(st.sets(st.integers(0, m - 1)), min_size=n, max_size=n))
    metrics = metrics_of(np.array(lists, np.int32), clicks_of(wanted, m), cutoffs=(1, 3, 6))
    for k in (1, 3, 6):
        each = [
            second_opinion(ranked, targets, k)
            for ranked, targets in zip(lists, wanted, strict=True)
            if targets
        ]
        assert metrics[k].users == len(each)
        for name in METRICS:
            if not each:
                assert math.isnan(getattr(metrics[k], name))
                continue
            assert getattr(metrics[k], name) == pytest.approx(
                np.mean([user[name] for user in each])
            )
            if len(each) > 1:
                assert metrics[k].stderr[name] == pytest.approx(
                    np.std([user[name] for user in each], ddof=1) / math.sqrt(len(each))
                )


def test_whole_evaluation_equals_sorting_with_buckets_and_skipped_users_counted() -> None:
    rng = np.random.default_rng(3)
    n = 60
    m = 47
    U = rng.standard_normal((n, 5)).astype(np.float32)
    V = rng.standard_normal((m, 5)).astype(np.float32)
    history = []
    targets = []
    for k in range(n):
        chosen = rng.permutation(m)[: rng.integers(0, 20)].tolist()
        # every seventh user has no targets, some no history
        cut = len(chosen) // 2 if k % 7 else len(chosen)
        history.append(set(chosen[:cut]))
        targets.append(set(chosen[cut:]))
    counts = rng.integers(0, 12, m)
    report = evaluate_ranking(
        dot_product(U, V),
        history=clicks_of(history, m),
        targets=clicks_of(targets, m),
        train_counts=counts,
        cutoffs=(5, 20),
    )
    scores = U.astype(float) @ V.T.astype(float)
    ranked = [[j for j in np.argsort(-scores[k]).tolist() if j not in history[k]] for k in range(n)]
    place = {
        j: position for position, j in enumerate(sorted(range(m), key=lambda j: (counts[j], j)))
    }
    assert report.users == sum(map(bool, targets))
    assert report.skipped_users == n - report.users > 0
    for b in (None, 0, 4):
        cut_targets = (
            targets if b is None else [{j for j in T if place[j] * 5 // m == b} for T in targets]
        )
        each = [second_opinion(ranked[k], T, 20) for k, T in enumerate(cut_targets) if T]
        metrics = report.at[20] if b is None else report.buckets[b][20]
        assert metrics.users == len(each)
        for name in METRICS:
            assert getattr(metrics, name) == pytest.approx(np.mean([user[name] for user in each]))
    shown = [j for k in range(n) if targets[k] for j in ranked[k][:5]]
    assert report.lists[5].coverage == pytest.approx(len(set(shown)) / m)
    assert report.lists[5].mean_popularity == pytest.approx(np.mean([counts[j] for j in shown]))
    assert json.loads(json.dumps(report.as_dict()))["at"]["20"]["ndcg"] == pytest.approx(
        report.at[20].ndcg
    )


def test_users_with_everything_in_their_history_get_an_empty_list_and_score_zero() -> None:
    report = evaluate_ranking(
        dot_product(np.ones((1, 1), np.float32), np.ones((3, 1), np.float32)),
        history=clicks_of([{0, 1, 2}], 3),
        targets=clicks_of([{1}], 3),
        train_counts=np.ones(3, int),
        cutoffs=(2,),
    )
    assert report.at[2].recall == 0
    assert math.isnan(report.lists[2].coverage)
    assert report.as_dict()["lists"] == {
        "2": {f.name: 2 if f.name == "k" else None for f in fields(ListStatistics)}
    }


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any))
def test_gini_is_the_mean_absolute_difference_over_twice_the_mean(amounts: list[int]) -> None:
    x = np.array(amounts, float)
    assert gini(x) == pytest.approx(np.abs(x[:, None] - x[None]).mean() / (2 * x.mean()))


def test_lists_of_the_same_two_items_cover_and_concentrate_as_they_should() -> None:
    statistics = list_statistics(
        np.array([[0, 1], [1, 0], [0, -1]], np.int32), np.array([10, 4, 0, 0]), k=2
    )
    assert statistics.coverage == 1 / 2
    assert statistics.mean_popularity == pytest.approx((3 * 10 + 2 * 4) / 5)
    assert statistics.train_popularity == pytest.approx((10 * 10 + 4 * 4) / 14)
    assert statistics.gini == pytest.approx(
        np.abs(np.subtract.outer([3, 2, 0, 0], [3, 2, 0, 0])).mean() / (2 * 5 / 4)
    )


def test_novelty_and_diversity_are_those_of_the_listed_items_and_pairs_of_lists() -> None:
    lists = np.array([[0, 1], [1, 2], [3, 1], [0, 1]], np.int32)
    counts = np.array([10, 4, 0, 6])
    statistics = list_statistics(lists, counts, k=2)
    shares = {item: max(counts[item], 1) / 20 for item in range(4)}
    assert statistics.novelty == pytest.approx(
        np.mean([-math.log2(shares[int(item)]) for own in lists for item in own])
    )
    apart = [1 - len({*a} & {*b}) / 2 for a, b in combinations(lists.tolist(), 2)]
    assert statistics.diversity == pytest.approx(np.mean(apart))
    assert math.isnan(list_statistics(lists[:1], counts, k=2).diversity)


def test_bad_arguments_are_refused_with_their_value() -> None:
    one = clicks_of([{0}], 3)
    other = clicks_of([{0}], 4)
    scores = dot_product(np.ones((1, 1), np.float32), np.ones((3, 1), np.float32))
    with pytest.raises(ValueError, match="same users and items"):
        evaluate_ranking(scores, history=one, targets=other, train_counts=np.ones(3, int))
    with pytest.raises(ValueError, match=r"\[20, 5\]"):
        evaluate_ranking(
            scores, history=one, targets=one, train_counts=np.ones(3, int), cutoffs=(20, 5)
        )
    twice = Interactions.from_columns(
        np.array([0, 0]), np.array([1, 1]), None, num_users=1, num_items=3, value_range=(0, 1)
    )
    with pytest.raises(ValueError, match="twice"):
        evaluate_ranking(scores, history=one, targets=twice, train_counts=np.ones(3, int))
