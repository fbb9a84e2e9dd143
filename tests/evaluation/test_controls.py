"""Controls tell a personal model from one that is not, in words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.evaluation.controls import SHUFFLED, compare, ranking_controls, ranking_verdicts, rating_controls, rating_verdicts
from fedrec.evaluation.ranking import evaluate_ranking
from fedrec.evaluation.ratings import rating_metrics
from fedrec.evaluation.toplists import dot_product, same_for_everyone


def two_tastes(rng: np.random.Generator, *, n: int = 200, m: int = 40) -> tuple[np.ndarray, Interactions, Interactions, np.ndarray]:
    """Users love one half of the catalogue; returns U with V = the halves, history, targets, counts."""
    taste = rng.permutation(np.arange(n) % 2)
    halves = (np.arange(m) % 2).astype(int)
    rows = [(k, j, rng.random() < 0.5) for k in range(n) for j in rng.permutation(np.flatnonzero(halves == taste[k]))[:8]]
    users, items, held = (np.array(column) for column in zip(*rows, strict=True))
    both = [
        Interactions.from_columns(users[held == h], items[held == h], None, num_users=n, num_items=m, value_range=(0, 1), kind="clicks")
        for h in (False, True)
    ]
    return np.eye(2, dtype=np.float32)[taste], both[0], both[1], np.eye(2, dtype=np.float32)[halves]


def test_a_personal_ranking_beats_popularity_and_exchanged_users() -> None:
    U, history, targets, V = two_tastes(np.random.default_rng(0))
    counts = np.bincount(history.items, minlength=40)
    scores = dot_product(U, V)
    report = evaluate_ranking(scores, history=history, targets=targets, train_counts=counts, cutoffs=(5,))
    controls = ranking_controls(scores, history=history, targets=targets, train_counts=counts, cutoffs=(5,))
    assert [control.name for control in controls] == ["popularity", SHUFFLED]
    assert {verdict.outcome for verdict in ranking_verdicts(report, controls, k=5)} == {"better"}


def test_a_ranking_that_ignores_the_user_is_no_better_than_its_controls_and_says_so() -> None:
    _, history, targets, _ = two_tastes(np.random.default_rng(0))
    counts = np.bincount(history.items, minlength=40)
    scores = same_for_everyone(counts)
    report = evaluate_ranking(scores, history=history, targets=targets, train_counts=counts, cutoffs=(5,))
    verdicts = ranking_verdicts(
        report, ranking_controls(scores, history=history, targets=targets, train_counts=counts, cutoffs=(5,)), k=5, metrics=("ndcg",)
    )
    assert [verdict.outcome for verdict in verdicts] == ["no better", "no better"]
    assert "NO BETTER than popularity" in verdicts[0].sentence
    assert "not shown to be personal" in verdicts[1].sentence


def test_rating_controls_are_the_baselines_and_exchanged_users() -> None:
    rng = np.random.default_rng(4)
    n, m = 100, 30
    bias = rng.normal(0, 1, n)
    truth = np.clip(3 + bias[:, None] + rng.normal(0, 0.1, (n, m)), 1, 5)
    users, items = np.divmod(np.arange(n * m), m)
    held = rng.random(n * m) < 0.3
    train, test = (
        Interactions.from_columns(users[h], items[h], truth.ravel()[h], num_users=n, num_items=m, value_range=(1, 5)) for h in (~held, held)
    )

    def predict(k: np.ndarray, j: np.ndarray) -> np.ndarray:
        return np.clip(3 + bias[k], 1, 5)

    controls = rating_controls(train, test, predict=predict)
    verdicts = rating_verdicts(rating_metrics(predict(test.users, test.items), test), controls)
    outcome = {verdict.control: verdict.outcome for verdict in verdicts}
    assert list(outcome) == ["global mean", "item mean", "item + user bias", SHUFFLED]
    assert outcome["global mean"] == outcome["item mean"] == outcome[SHUFFLED] == "better"
    constant = np.full(len(test), train.values.mean(dtype=np.float64))
    assert rating_verdicts(rating_metrics(constant, test), controls)[0].outcome == "no better"


@pytest.mark.parametrize(
    ("metric", "value", "control", "outcome"),
    [
        ("RMSE", 0.80, 0.90, "better"),
        ("RMSE", 0.90, 0.90, "no better"),
        ("RMSE", 0.899, 0.90, "not clearly better"),
        ("NDCG@20", 0.80, 0.90, "no better"),
        ("NDCG@20", 0.90, 0.80, "better"),
        ("NDCG@20", math.nan, 0.80, "cannot be compared"),
    ],
)
def test_direction_and_margin_of_a_verdict(metric: str, value: float, control: float, outcome: str) -> None:
    verdict = compare(metric, value, 0.01, "control", control, 0.01, lower_is_better=metric == "RMSE")
    assert verdict.outcome == outcome
    assert outcome.upper() in verdict.sentence.upper()


def test_an_unknown_error_never_makes_a_clear_win() -> None:
    verdict = compare("RMSE", 0.5, math.nan, "control", 0.9, 0.01, lower_is_better=True)
    assert verdict.outcome == "not clearly better"
    assert verdict.as_dict()["value"] == 0.5


def test_a_single_user_has_nobody_to_be_exchanged_with() -> None:
    one = Interactions.from_columns(np.array([0]), np.array([0]), None, num_users=1, num_items=2, value_range=(0, 1), kind="clicks")
    empty = one.select(np.array([False]))
    controls = ranking_controls(same_for_everyone(np.arange(2)), history=empty, targets=one, train_counts=np.arange(2), cutoffs=(1,))
    assert [control.name for control in controls] == ["popularity"]
