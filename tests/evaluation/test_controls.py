"""Controls tell a personal model from one that is not, in words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.evaluation.controls import (
    SHUFFLED,
    BucketVerdicts,
    Verdict,
    compare,
    in_one_line,
    paired,
    ranking_verdicts,
    ranking_verdicts_by_popularity,
    rating_verdicts,
    rating_verdicts_by_popularity,
)
from fedrec.evaluation.ranking import RankingReport, evaluate_ranking
from fedrec.evaluation.ratings import by_popularity, rating_metrics
from fedrec.evaluation.toplists import Scores, dot_product, of_another_user, same_for_everyone


def two_tastes(
    rng: np.random.Generator, *, n: int = 200, m: int = 40
) -> tuple[np.ndarray, Interactions, Interactions, np.ndarray]:
    """Users love one half of the catalogue; returns U with V = the halves, history, targets,
    counts."""
    taste = rng.permutation(np.arange(n) % 2)
    halves = (np.arange(m) % 2).astype(int)
    rows = [
        (k, j, rng.random() < 0.5)
        for k in range(n)
        for j in rng.permutation(np.flatnonzero(halves == taste[k]))[:8]
    ]
    users, items, held = (np.array(column) for column in zip(*rows, strict=True))
    both = [
        Interactions.from_columns(
            users[held == h],
            items[held == h],
            None,
            num_users=n,
            num_items=m,
            value_range=(0, 1),
            kind="clicks",
        )
        for h in (False, True)
    ]
    return np.eye(2, dtype=np.float32)[taste], both[0], both[1], np.eye(2, dtype=np.float32)[halves]


def reports(
    scores: Scores, history: Interactions, targets: Interactions
) -> tuple[RankingReport, dict[str, RankingReport]]:
    """Of the scores, and of popularity and exchanged users."""
    counts = np.bincount(history.items, minlength=history.num_items)
    rivals = {
        "popularity": same_for_everyone(counts),
        SHUFFLED: of_another_user(scores, history.num_users),
    }
    ours, *others = (
        evaluate_ranking(s, history=history, targets=targets, train_counts=counts, cutoffs=(5,))
        for s in (scores, *rivals.values())
    )
    return ours, dict(zip(rivals, others, strict=True))


def test_a_personal_ranking_beats_popularity_and_exchanged_users() -> None:
    U, history, targets, V = two_tastes(np.random.default_rng(0))
    ours, others = reports(dot_product(U, V), history, targets)
    verdicts = ranking_verdicts(ours.at[5], {name: report.at[5] for name, report in others.items()})
    assert [(v.metric, v.control) for v in verdicts][:2] == [
        ("NDCG@5", "popularity"),
        ("NDCG@5", SHUFFLED),
    ]
    assert {verdict.outcome for verdict in verdicts} == {"better"}


def test_a_ranking_that_ignores_the_user_is_no_better_than_its_controls_and_says_so() -> None:
    _, history, targets, _ = two_tastes(np.random.default_rng(0))
    ours, others = reports(
        same_for_everyone(np.bincount(history.items, minlength=40)), history, targets
    )
    verdicts = ranking_verdicts(
        ours.at[5], {name: report.at[5] for name, report in others.items()}, metrics=("ndcg",)
    )
    assert [verdict.outcome for verdict in verdicts] == ["no better", "no better"]
    assert "no better than popularity" in verdicts[0].sentence
    assert in_one_line(verdicts) == (
        "NDCG@5: no better than popularity; not shown to be personal: with another's history it is "
        "as good."
    )
    (beside, _) = ranking_verdicts_by_popularity(ours, others, k=5)
    assert "no better than popularity in 1, 2, 3, 4, 5" in beside.sentence


def test_errors_of_ratings_are_compared_with_each_control_whole_and_by_popularity() -> None:
    rng = np.random.default_rng(4)
    n = 100
    m = 30
    bias = rng.normal(0, 1, n)
    truth = np.clip(3 + bias[:, None] + rng.normal(0, 0.1, (n, m)), 1, 5)
    users, items = np.divmod(np.arange(n * m), m)
    test = Interactions.from_columns(
        users, items, truth.ravel(), num_users=n, num_items=m, value_range=(1, 5)
    )
    personal = np.clip(3 + bias[test.users], 1, 5)
    constant = np.full(len(test), 3.0)
    ours, other = (rating_metrics(p, test) for p in (personal, constant))
    assert [v.outcome for v in rating_verdicts(ours, {"mean": other, "itself": ours})] == [
        "better",
        "no better",
    ]
    by = [by_popularity(p, test, np.arange(m)) for p in (personal, constant)]
    (beside,) = rating_verdicts_by_popularity(by[0], {"mean": by[1]})
    assert (
        beside.sentence
        == "RMSE by popularity fifth, 1 the rarest items: better than mean in 1, 2, 3, 4, 5."
    )
    assert beside.as_dict()["outcome"] == ["better"] * 5


def test_a_small_gain_that_all_users_share_is_clear_when_paired() -> None:
    """Users differ by far more than the two methods do."""
    rng = np.random.default_rng(7)
    n = 200
    m = 20
    level = rng.uniform(0.2, 2, n)[:, None]
    noise = level * rng.normal(size=(n, m))
    users, items = np.divmod(np.arange(n * m), m)
    test = Interactions.from_columns(
        users, items, np.zeros(n * m), num_users=n, num_items=m, value_range=(-9, 9)
    )
    ours, other = (rating_metrics(factor * noise.ravel(), test) for factor in (0.98, 1.0))
    unpaired = math.hypot(ours.rmse_stderr, other.rmse_stderr)
    assert (
        compare(
            "RMSE", ours.rmse, "same", other.rmse, stderr=unpaired, lower_is_better=True
        ).outcome
        == "not clearly better"
    )
    assert rating_verdicts(ours, {"same": other})[0].outcome == "better"
    # the delta method against the spread over resamples of the users
    sums = [np.bincount(users, weights=(f * noise.ravel()) ** 2) for f in (0.98, 1.0)]
    drawn = [rng.integers(0, n, n) for _ in range(400)]
    spread = np.std(
        [math.sqrt(sums[0][d].sum() / n / m) - math.sqrt(sums[1][d].sum() / n / m) for d in drawn]
    )
    # 400 draws: 4% standard error
    assert paired(ours.influence, other.influence) == pytest.approx(float(spread), rel=0.2)


def test_methods_on_different_users_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same users"):
        paired(np.zeros(3), np.zeros(4))


def test_the_standard_error_of_a_ranking_is_the_norm_of_its_influence() -> None:
    U, history, targets, V = two_tastes(np.random.default_rng(0))
    ours, others = reports(dot_product(U, V), history, targets)
    for report in (ours, *others.values()):
        for name, influence in report.at[5].influence.items():
            assert np.linalg.norm(influence) == pytest.approx(report.at[5].stderr[name], rel=1e-5)


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
def test_direction_and_margin_of_a_verdict(
    metric: str, value: float, control: float, outcome: str
) -> None:
    verdict = compare(
        metric, value, "control", control, stderr=0.01, lower_is_better=metric == "RMSE"
    )
    assert verdict.outcome == outcome
    assert outcome.upper() in verdict.sentence.upper()


def test_an_unknown_error_never_makes_a_clear_win() -> None:
    verdict = compare("RMSE", 0.5, "control", 0.9, stderr=math.nan, lower_is_better=True)
    assert verdict.outcome == "not clearly better"
    assert verdict.as_dict()["value"] == 0.5


def test_buckets_say_each_outcome_where_it_holds() -> None:
    made = [
        compare("NDCG@20", value, "popularity", 0.1, stderr=0.01, lower_is_better=False)
        for value in (0.05, 0.11, 0.2, math.nan, 0.1)
    ]
    found = BucketVerdicts("NDCG@20", "popularity", tuple(made))
    assert found.sentence == (
        "NDCG@20 by popularity fifth, 1 the rarest items: better than popularity in 3; "
        "not clearly better than popularity in 2; no better than popularity in 1, 5."
    )


def test_one_line_says_what_is_better_what_privacy_costs_and_what_simple_method_is_as_good() -> (
    None
):
    def beside(
        control: str, value: float, *, metric: str = "RMSE", stderr: float = 0.001
    ) -> Verdict:
        lower = metric == "RMSE"
        return compare(metric, 0.866, control, value, stderr=stderr, lower_is_better=lower)

    both = [beside("item mean", 0.95), beside("item + user bias", 0.91)]
    told = [beside("non-private ALS", 0.84), beside("non-private item-item", 0.85)]
    assert in_one_line([*both, *told]) == (
        "RMSE: better than item mean and item + user bias; costs 0.0260 beside ALS without privacy."
    )
    near = beside("item + user bias", 0.867, stderr=0.002)
    same = beside("item mean", 0.866)
    assert in_one_line([near, same]) == (
        "RMSE: not clearly better than item + user bias; no better than item mean."
    )
    lists = [
        beside("popularity", 0.1, metric="NDCG@20"),
        beside("popularity", 0.1, metric="capped recall@20"),
        beside("shuffled history", 0.1, metric="NDCG@20"),
    ]
    assert in_one_line(lists) == "NDCG@20: better than popularity."
    assert in_one_line([]) == ""
