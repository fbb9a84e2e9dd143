"""RMSE and MAE against hand-computed cases and independent code; buckets of equal size."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.evaluation.controls import rating_verdicts
from fedrec.evaluation.ratings import by_popularity, popularity_buckets, rating_metrics


def ratings(rows: list[tuple[int, int, float]], *, num_users: int, num_items: int) -> Interactions:
    users, items, values = (
        (np.array(column) for column in zip(*rows, strict=True))
        if rows
        else (np.zeros(0, int),) * 2 + (np.zeros(0),)
    )
    return Interactions.from_columns(
        users, items, values, num_users=num_users, num_items=num_items, value_range=(1, 5)
    )


def test_rmse_and_mae_of_four_events_worked_out_by_hand() -> None:
    targets = ratings([(0, 0, 5), (0, 1, 3), (2, 0, 1), (2, 2, 4)], num_users=3, num_items=3)
    metrics = rating_metrics(np.array([4.0, 3.0, 3.0, 4.0]), targets)  # errors -1, 0, 2, 0
    assert metrics.rmse == pytest.approx(math.sqrt(5 / 4))
    assert metrics.mae == pytest.approx(3 / 4)
    assert (metrics.events, metrics.users) == (4, 2)  # user 1 has no events
    # squared errors 1 0 | 4 0, mean 5/4: user sums of deviations -3/2 and 3/2; of 2 users one
    # degree of freedom is left
    assert metrics.rmse_stderr == pytest.approx(
        math.sqrt(2 / 1) * math.sqrt(2 * 1.5**2) / 4 / (2 * math.sqrt(5 / 4))
    )


@pytest.mark.parametrize("users", [2, 3, 5])
def test_the_standard_error_of_few_users_is_that_of_a_mean_of_as_many(users: int) -> None:
    # Users of as many events each: the MSE is the mean of their own, with Bessel's correction.
    rng = np.random.default_rng(users)
    targets = ratings(
        [(k, j, 3.0) for k in range(users) for j in range(4)], num_users=users, num_items=4
    )
    errors = rng.normal(0, 1, (users, 4))
    metrics = rating_metrics(3.0 + errors.ravel(), targets)
    of_mse = float(np.std(np.mean(errors**2, axis=1), ddof=1)) / math.sqrt(users)
    assert metrics.rmse_stderr * 2 * metrics.rmse == pytest.approx(of_mse)


def test_no_events_give_no_number_and_json_null() -> None:
    metrics = rating_metrics(np.zeros(0), ratings([], num_users=2, num_items=2))
    assert math.isnan(metrics.rmse)
    assert json.loads(json.dumps(metrics.as_dict()))["rmse"] is None


def test_of_one_user_the_standard_error_is_unknown_and_nothing_is_clearly_better() -> None:
    targets = ratings([(0, 0, 5), (0, 1, 3)], num_users=2, num_items=3)
    ours, control = (rating_metrics(np.array(p), targets) for p in ([5.0, 3.0], [1.0, 1.0]))
    assert ours.as_dict()["rmse_stderr"] is control.as_dict()["rmse_stderr"] is None
    assert (ours.rmse, rating_verdicts(ours, {"mean": control})[0].outcome) == (
        0.0,
        "not clearly better",
    )


@pytest.mark.parametrize(
    "predictions", [np.zeros(3), np.array([1.0, math.nan]), np.array([[1.0, 2.0]])]
)
def test_predictions_that_do_not_align_or_are_not_finite_are_refused(
    predictions: np.ndarray,
) -> None:
    with pytest.raises(ValueError, match=r"align|finite"):
        rating_metrics(predictions, ratings([(0, 0, 5), (1, 1, 3)], num_users=2, num_items=2))


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=60), buckets=st.integers(1, 8))
def test_buckets_have_equal_sizes_and_never_put_a_rarer_item_above_a_more_frequent_one(
    counts: list[int], buckets: int
) -> None:
    bucket = popularity_buckets(np.array(counts), buckets=buckets)
    sizes = np.bincount(bucket, minlength=buckets)
    assert sizes.max() - sizes.min() <= 1
    for b in range(buckets - 1):
        below = np.array(counts)[bucket <= b]
        above = np.array(counts)[bucket > b]
        assert not len(below) or not len(above) or below.max() <= above.min()


def test_bucket_errors_are_the_errors_of_the_rows_in_the_bucket() -> None:
    rng = np.random.default_rng(5)
    rows = [
        (int(k), int(j), float(rng.integers(1, 6)))
        for k in range(30)
        for j in rng.choice(23, 6, replace=False)
    ]
    targets = ratings(rows, num_users=30, num_items=23)
    counts = rng.integers(0, 9, 23)
    predictions = rng.uniform(1, 5, len(targets))
    rank = {
        j: position for position, j in enumerate(sorted(range(23), key=lambda j: (counts[j], j)))
    }
    slices = by_popularity(predictions, targets, counts)
    for b, metrics in enumerate(slices):
        errors = [
            p - y
            for p, y, j in zip(predictions, targets.values, targets.items, strict=True)
            if rank[int(j)] * 5 // 23 == b
        ]
        assert metrics.rmse == pytest.approx(math.sqrt(sum(e * e for e in errors) / len(errors)))
        assert metrics.mae == pytest.approx(sum(map(abs, errors)) / len(errors))
    assert sum(metrics.events for metrics in slices) == len(targets)


@pytest.mark.slow
def test_standard_error_covers_the_spread_over_redrawn_users() -> None:
    # Users differ in how noisy they are, so an error that took events as independent would be less
    # than half as large.
    # With 300 redraws the ratio's own standard error is 4%; the bounds are 5 of them away.
    rng = np.random.default_rng(1)
    rmse = []
    claimed = []
    for _ in range(300):
        sigma = np.repeat(rng.choice([0.3, 1.5], 100), 40)
        targets = ratings(
            [(k, j, 3.0) for k in range(100) for j in range(40)], num_users=100, num_items=40
        )
        metrics = rating_metrics(3.0 + sigma * rng.standard_normal(4000), targets)
        rmse.append(metrics.rmse)
        claimed.append(metrics.rmse_stderr)
    assert 0.8 < np.std(rmse) / np.mean(claimed) < 1.2
