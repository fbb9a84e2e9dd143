"""A year of weekly sums under one guarantee: who reports what and when, its bound, its noise, its
one charge, and what is found. The mechanism alone is in `tests/privacy/test_correlated.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from fedrec.api.datasets import Dataset
from fedrec.api.running import simulate
from fedrec.data.interactions import Interactions
from fedrec.errors import PrivacyError, SettingsError
from fedrec.factorization.default_clicks import stream
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.rankers import ranker_of
from fedrec.federation.messages import Question, Release, State, train
from fedrec.federation.releases import noise_stds, release
from fedrec.federation.reports import ExactSums, within_radius
from fedrec.in_process import Loopback
from fedrec.preparing import Prepared, prepare
from fedrec.privacy.accounting import Ledger
from fedrec.privacy.calibration import Plan
from fedrec.privacy.correlated import column_norm, prefix_norms
from fedrec.randomness import SecretStreams, Streams, SystemStreams
from fedrec.run.job import stream_secret
from fedrec.settings import validated

T = 6
ITEMS = 24
WEEK = 100
SECRET = SecretStreams(b"k" * 32)


def year(users: int = 40, *, seed: int = 1) -> Interactions:
    """Two groups of people, each of which clicks the even or the odd items, at any time; and first
    one who is there in the first week alone, one who comes in the last, one of every week, one with
    a history before. Items from 18 on are clicked from the fourth week on alone."""
    rng = np.random.default_rng(seed)
    rows = [(0, j, 5) for j in range(6)]
    rows += [(1, j, T * WEEK - 1) for j in range(0, 12, 2)]
    rows += [(2, j, j % T * WEEK) for j in range(12)]
    rows += [(3, j, 0) for j in range(9)] + [(3, 20, 5 * WEEK)]
    for k in range(4, users):
        for j in rng.permutation(np.arange(k % 2, ITEMS, 2))[:8]:
            begins = 3 * WEEK if j >= 18 else 0
            rows.append((k, int(j), int(rng.integers(begins, T * WEEK))))
    k, j, t = np.array(rows).T
    return Interactions.from_columns(
        k, j, None, num_users=users, num_items=ITEMS, value_range=(1.0, 1.0), kind="clicks", times=t
    )


def prepared(mine: Interactions, *, epsilon: float = 5.0, recipe: str = "dp-item-item") -> Prepared:
    facts = PublicFacts(
        mine.num_users, ITEMS, "clicks", (1.0, 1.0), None, Streams(1), period=(0, T * WEEK - 1)
    )
    privacy = {"epsilon": "inf" if math.isinf(epsilon) else epsilon, "horizon": T}
    return prepare(validated({"recipe": recipe, "privacy": privacy}, source="test"), facts)


def played(
    mine: Interactions, made: Prepared, noise: SecretStreams = SECRET
) -> tuple[list[tuple[Question, Release]], State, Ledger]:
    link = Loopback(mine, made.steps, made.plan, noise, Ledger(made.plan.guarantee))
    done = list(train(made.recipe, link, made.recipe.begin()))
    return [(one.question, one.answer) for one in done], done[-1].state, link.ledger


def dense(question: Question, mine: Interactions, made: Prepared) -> np.ndarray:
    """(num_users, rows, columns) what each user adds, alone, in real units."""
    found = []
    for k in range(mine.num_users):
        reports = made.steps[question.step](question, mine.users_subset(np.array([k])))
        assert within_radius(reports, question.releases).all()
        sums = ExactSums(question.blocks)
        sums.add(reports)
        found.append(sums.blocks[0] * question.blocks[0].step)
    return np.array(found)


def test_without_noise_prefix_sums_are_those_of_all_reports_and_each_row_is_there_once() -> None:
    mine = year()
    made = prepared(mine, epsilon=math.inf)
    asked, state, _ = played(mine, made)
    for name in ("counts", "tastes"):
        weeks = [dense(q, mine, made) for q, _ in asked if q.step == f"stream/{name}"]
        np.testing.assert_allclose(
            np.asarray(state[f"sum.{name}"]), np.sum(weeks, axis=(0, 1)), atol=1e-10
        )
        told = np.array([(week != 0).any(axis=2) for week in weeks])
        assert told.sum(axis=0).max() == 1
    # every item was clicked, has a place by the end, and a row of everybody who clicked it
    assert sorted(np.asarray(state["items"]).tolist()) == list(range(ITEMS))
    assert told.sum() == len(mine)


@pytest.mark.parametrize("seed", range(4))
def test_when_anybody_leaves_all_weeks_together_move_by_at_most_the_column_norm(seed: int) -> None:
    mine = year(seed=seed)
    made = prepared(mine)
    asked, _, _ = played(mine, made)
    C = sum(
        float(np.prod([(2 * i - 1) / (2 * i) for i in range(1, k + 1)])) * np.eye(T, k=-k)
        for k in range(T)
    )
    for name in ("counts", "tastes"):
        D = np.array([dense(q, mine, made) for q, _ in asked if q.step == f"stream/{name}"])
        D = D.reshape(T, mine.num_users, -1)
        assert (np.square(D).sum(axis=(0, 2)) <= 1).all()
        moved = np.linalg.norm(np.einsum("ts,skj->ktj", C, D), axis=(1, 2))
        # C unrounded here: its coefficients are within 2^-7 of those that are drawn with
        assert moved.max() <= column_norm(T) * 1.01
        if name == "counts":
            # the rule: who is there at once and no more, who comes last, who comes every week
            used = np.square(D).sum(axis=2)
            assert used[:, 0] == pytest.approx([(1 / T) ** 0.5, 0, 0, 0, 0, 0], rel=1e-2)
            assert used[:, 1] == pytest.approx([0, 0, 0, 0, 0, 1], rel=1e-2)
            steps = np.diff((np.arange(T + 1) / T) ** 0.5)
            assert used[:, 2] == pytest.approx(steps, rel=1e-2)


def noised(
    source: SecretStreams, question: Question, total: ExactSums, plan: Plan, kept: Ledger
) -> np.ndarray:
    told, _ = release(question, total.blocks, plan, kept, noise=source)
    return told.values[question.releases[0].name]


def test_the_noise_of_every_week_has_its_distribution_and_is_the_same_after_a_crash() -> None:
    mine = year()
    made = prepared(mine)
    asked, _, ledger = played(mine, made)
    noise = {name: [0.0] * 4 for name in ("counts", "tastes")}
    for question, answer in asked:
        spec = question.releases[0]
        kept = ledger if spec.week > 1 else Ledger(made.plan.guarantee)
        total = ExactSums(question.blocks)
        total.add(made.steps[question.step](question, mine))
        told_of = question, total, made.plan, kept
        np.testing.assert_array_equal(noised(SECRET, *told_of), answer.values[spec.name])
        exact = total.blocks[0] * question.blocks[0].step
        for draw, so_far in enumerate(noise[spec.name]):
            noise[spec.name][draw] = (
                so_far + noised(SecretStreams(bytes([draw]) * 32), *told_of) - exact
            )
        told = np.ravel(noise[spec.name])
        std = noise_stds(question, made.plan)[spec.name] * prefix_norms(T)[spec.week - 1]
        assert stats.kstest(told, "norm", args=(0, std)).pvalue > 1e-4
        if spec.name == "tastes":  # 2,304 numbers; 96 of counts are too few to tell 3/2 apart
            for wrong in (2 / 3, 3 / 2):
                assert stats.kstest(told, "norm", args=(0, std * wrong)).pvalue < 1e-9


def test_the_whole_year_is_charged_with_its_first_week_and_costs_the_same_in_the_last() -> None:
    mine = year()
    made = prepared(mine)
    spent = list[float]()
    link = Loopback(mine, made.steps, made.plan, SECRET, Ledger(made.plan.guarantee))
    for _ in train(made.recipe, link, made.recipe.begin()):
        spent.append(link.ledger.epsilon)
    assert len(spent) == 2 * T
    assert spent[1:] == [pytest.approx(5.0, rel=1e-9)] * (2 * T - 1)
    # by hand: |c| over the std that is drawn, both streams in squares
    asked, _, _ = played(mine, made)
    stds = [answer.noise_std[name] for (_, answer), name in
            zip(asked[:2], ("counts", "tastes"), strict=True)]  # fmt: skip
    C = [math.comb(2 * k, k) / 4**k for k in range(T)]
    mu = math.hypot(*(math.sqrt(sum(c * c for c in C)) / std for std in stds))
    delta = stats.norm.cdf(mu / 2 - 5 / mu) - math.exp(5) * stats.norm.cdf(-mu / 2 - 5 / mu)
    assert delta == pytest.approx(1e-5, rel=0.05)  # rounded coefficients of C


def test_a_planted_group_is_found_with_the_items_that_came_late() -> None:
    mine = year(users=400)
    made = prepared(mine, epsilon=50.0)
    _, state, _ = played(mine, made)
    model = ranker_of(made.recipe.model(state))
    scores = np.asarray(model.user_vectors(mine)) @ np.asarray(model.item_vectors).T
    late = scores[4:, 18:]
    own = (np.arange(4, 400)[:, None] % 2) == (np.arange(18, ITEMS) % 2)
    assert np.mean([one[mask].mean() > one[~mask].mean() for one, mask in
                    zip(late, own, strict=True)]) > 0.9  # fmt: skip


def test_no_week_is_released_unplanned_unpaid_or_with_fresh_noise() -> None:
    mine = year()
    made = prepared(mine)
    asked, _, ledger = played(mine, made)
    question = asked[4][0]

    def of_week(week: int) -> Question:
        return replace(question, releases=(replace(question.releases[0], week=week),))

    sums = [np.zeros((ITEMS, 1), np.int64)]
    for week, kept, words in (
        (T + 1, ledger, "none of the 6 planned"),
        (0, ledger, "none of the 6 planned"),
        (3, Ledger(made.plan.guarantee), "no charge"),
    ):
        with pytest.raises(PrivacyError, match=words):
            release(of_week(week), sums, made.plan, kept, noise=SECRET)
    with pytest.raises(ValueError, match="derived"):
        release(of_week(3), sums, made.plan, ledger, noise=SystemStreams())


def test_a_lost_or_changed_secret_ends_the_stream_in_words(tmp_path: Path) -> None:
    secret = stream_secret(tmp_path, begun=False)
    assert stream_secret(tmp_path, begun=False) == stream_secret(tmp_path, begun=True) == secret
    kept = tmp_path / "noise-secret"
    assert kept.stat().st_mode & 0o077 == 0
    changes: tuple[Callable[[], object], ...] = (
        lambda: kept.write_bytes(bytes(32)), kept.unlink
    )  # fmt: skip
    for change in changes:
        change()
        with pytest.raises(PrivacyError, match="the stream has ended"):
            stream_secret(tmp_path, begun=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"recipe": "dp-popularity"}, "no effect with recipe"),
        ({"recipe": "privaterec", "data": {"format": "planted-news"}}, "no effect with recipe"),
        ({"privacy": {"aggregation": "three-party"}}, "three-party"),
        ({"privacy": {"evaluation_share": 0.01}}, "evaluation_share"),
        ({"privacy": {"personal_epsilons": {"1": 1.0}}}, "personal_epsilons"),
    ],
)
def test_what_keeps_no_stream_refuses_a_horizon_by_name(
    content: dict[str, object], words: str
) -> None:
    privacy = {"horizon": 4, **dict(content.get("privacy", {}))}  # type: ignore[call-overload]
    with pytest.raises(SettingsError, match=r"privacy\.horizon") as refused:
        validated({**content, "privacy": privacy}, source="test")
    assert words in str(refused.value)


def test_ratings_clicks_without_times_and_parties_refuse_a_horizon() -> None:
    mine = year()
    scenario = validated({"privacy": {"horizon": 4}}, source="test")
    facts = PublicFacts(40, ITEMS, "ratings", (1.0, 5.0), None, Streams(1), period=(0, 9))
    with pytest.raises(SettingsError, match="of clicks"):
        prepare(scenario, facts)
    rows: pl.DataFrame = pl.DataFrame(
        {"user": np.repeat(np.arange(30), 8), "item": np.arange(240) % 24}
    )
    with pytest.raises(SettingsError, match="have no times"):
        simulate(scenario, Dataset.from_frame(rows, user="user", item="item"))
    content = prepared(mine, recipe="default").plan.content()
    assert Plan.of(content).horizon == T
    for wrong in ({"horizon": 367}, {"horizon": -1}, {"horizon": True}, {"horizon": "6"},
                  {"aggregation": "three-party"}):  # fmt: skip
        with pytest.raises(PrivacyError, match="horizon"):
            Plan.of({**content, **wrong})


def test_a_person_reports_the_same_whoever_else_is_there() -> None:
    mine = year()
    made = prepared(mine)
    for question, _ in played(mine, made)[0]:
        together = made.steps[question.step](question, mine)
        sums = ExactSums(question.blocks)
        sums.add(together)
        alone = dense(question, mine, made).sum(axis=0)
        np.testing.assert_array_equal(sums.blocks[0] * question.blocks[0].step, alone)


def test_the_steps_are_those_that_the_recipes_name() -> None:
    for recipe in ("default", "dp-item-item"):
        assert stream.CLIENT_STEPS.keys() <= prepared(year(), recipe=recipe).steps.keys()
