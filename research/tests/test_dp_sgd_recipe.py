"""DP-SGD of the plain recommender: Opacus' gradients beside NumPy's, what a user moves, and the
usual path."""

from __future__ import annotations

import itertools
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedrec
from fedrec.data.interactions import Interactions
from fedrec.data.kinds import Kind
from fedrec.errors import BudgetExceededError
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import train
from fedrec.in_process import Curator
from fedrec.preparing import Prepared
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams, SystemStreams
from fedrec.recipes import prepare
from fedrec.settings import load

pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="Opacus is not installed")

STEP = 2.0**-24
RIDGE = 2.0
ALPHA = 10.0


def some_events(seed: int, kind: Kind, users: int = 8, items: int = 12) -> Interactions:
    """Users of very different sizes; the first has nothing."""
    rng = np.random.default_rng(seed)
    chosen = rng.random((users, items)) < rng.random((users, 1))
    chosen[0] = False
    who, what = np.nonzero(chosen)
    rated = kind == "ratings"
    values = rng.integers(1, 6, len(who)) if rated else np.ones(len(who))
    return Interactions.from_columns(
        who,
        what,
        values.astype(float),
        num_users=users,
        num_items=items,
        kind=kind,
        value_range=(1.0, 5.0) if rated else (1.0, 1.0),
    )


def summed(events: Interactions, table: np.ndarray) -> np.ndarray:
    from fedrec_research.dp_sgd.gradients import summed_gradients  # imports Opacus

    return STEP * summed_gradients(
        events, table, user_ridge=RIDGE, offset=3.0, click_weight=ALPHA, step=STEP
    )


def by_hand(events: Interactions, table: np.ndarray) -> np.ndarray:
    """Second code, user by user: Abadi et al. 2016, Alg. 1, line by line but for the noise."""
    total = np.zeros_like(table)
    for a, b in itertools.pairwise(events.user_ptr):
        items = events.items[a:b]
        gradient = np.zeros_like(table)
        if events.rated:
            d = table.shape[1] - 1
            V = table[items, :d]
            y = events.values[a:b] - 3.0 - table[items, d]
            own = y.sum() / (len(y) + 3)
            u = np.linalg.solve(V.T @ V + RIDGE * np.eye(d), V.T @ (y - own))
            gradient[items] = -np.outer(y - own - V @ u, np.append(u, 1.0))
        else:
            clicked = np.zeros(len(table))
            clicked[items] = 1
            weights = 1 + ALPHA * clicked
            left = (table * weights[:, None]).T @ table + RIDGE * np.eye(table.shape[1])
            u = np.linalg.solve(left, table.T @ (weights * clicked))
            gradient = -np.outer(weights * (clicked - table @ u), u)
        total += gradient / max(1.0, float(np.linalg.norm(gradient)))
    return total


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_a_step_is_the_sum_of_clipped_gradients_computed_by_hand(kind: Kind) -> None:
    events = some_events(3, kind)
    table = np.random.default_rng(1).standard_normal((12, 3)) * 0.5
    assert summed(events, table) == pytest.approx(by_hand(events, table), abs=2e-5)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["ratings", "clicks"]))
def test_without_a_user_the_sum_moves_by_norm_1_at_most(seed: int, kind: Kind) -> None:
    events = some_events(seed, kind)
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((12, 3)) * 10.0 ** rng.uniform(-3, 2)
    gone = int(rng.integers(1, 8))
    left = events.select(events.users != gone)
    assert np.linalg.norm(summed(events, table) - summed(left, table)) <= 1.0


def curator_of(
    kind: Kind, epsilon: float | str, noise: Streams | SystemStreams, *, steps: int = 1
) -> tuple[Prepared, Curator]:
    """Forty users at one curator, with a ledger for exactly that training."""
    events = some_events(5, kind, users=40, items=60)
    facts = PublicFacts(
        events.num_users, events.num_items, kind, events.value_range, None, Streams(1)
    )
    keys = ["recipe=dp-sgd", f"own.steps={steps}", f"privacy.epsilon={epsilon}"]
    made = prepare(load(None, keys), facts)
    assert made.curated is not None
    return made, Curator(events, made.curated, made.plan, noise, Ledger(made.plan.guarantee))


def first_answer(made: Prepared, curator: Curator) -> tuple[np.ndarray, np.ndarray]:
    """What the curator says of the first question, and the exact sum behind it."""
    question = made.recipe.ask(made.recipe.begin())
    assert question is not None
    (block,) = question.blocks
    (exact,) = curator.curated(question, curator.interactions, curator.noise)
    return curator.answer(question).values[block.name], exact * block.step


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_with_an_infinite_budget_the_release_is_the_plain_sum(kind: Kind) -> None:
    answer, exact = first_answer(*curator_of(kind, "inf", Streams(1)))
    np.testing.assert_allclose(answer, exact, atol=1e-10)
    assert np.abs(exact).sum() > 0


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_the_noise_of_a_curated_release_has_the_planned_distribution_and_no_other(
    kind: Kind,
) -> None:
    """What the curator adds to the sum of clipped gradients, under many keys of the operating
    system: N(0, (radius / mu)^2) with mu as planned. A false alarm: below 1e-8."""
    drawn = []
    while sum(map(len, drawn)) < 3_000:
        made, curator = curator_of(kind, 5, SystemStreams())
        answer, exact = first_answer(made, curator)
        drawn.append((answer - exact).ravel())
    z = np.concatenate(drawn) * made.plan["step/0"].mu
    assert made.plan["step/0"].mu == pytest.approx(1.1212, rel=1e-3), "epsilon 5 at delta 1e-5"
    assert stats.kstest(z, "norm").pvalue > 1e-9
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(z / wrong, "norm").pvalue < 1e-9


def test_past_its_budget_the_curator_releases_nothing() -> None:
    """Two planned steps are answered; a third raises before noise is drawn, and costs nothing."""
    made, curator = curator_of("ratings", 5, Streams(1), steps=2)
    *_, last = train(made.recipe, curator, made.recipe.begin())
    spent = curator.ledger
    assert spent.epsilon == pytest.approx(5, rel=1e-6)

    class NoKeys(Streams):
        def key(self, name: str, *, round: int = 0) -> bytes:
            raise AssertionError("noise was drawn")

    curator.noise = NoKeys(1)
    with pytest.raises(BudgetExceededError, match="would bring the total to epsilon"):
        curator.answer(last.question)
    assert curator.ledger == spent


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_dp_sgd_is_trained_and_told_on_the_usual_path(kind: Kind) -> None:
    """Its epsilon is that of all steps by three accountants, and it learns where noise is small."""
    train, test = fedrec.Dataset.planted("small", kind=kind).split()
    keys = {"own.steps": 12, "own.rate": 0.1}
    model = fedrec.MatrixFactorization(
        method="dp-sgd", epsilon=200, noise="seeded", settings=keys
    ).fit(train)
    assert model.guarantee.accountants["gdp"] == pytest.approx(200)
    found = fedrec.evaluate(model, test, controls=False).metrics
    start = fedrec.MatrixFactorization(
        method="dp-sgd", epsilon=200, noise="seeded", settings={"own.steps": 1, "own.rate": 1e-9}
    ).fit(train)
    before = fedrec.evaluate(start, test, controls=False).metrics
    better = (
        found["rmse"] < before["rmse"]
        if kind == "ratings"
        else (found["ndcg@20"] > before["ndcg@20"])
    )
    assert better


def test_other_runtimes_and_shares_are_refused_by_name() -> None:
    data = fedrec.Dataset.planted("small")
    with pytest.raises(fedrec.SettingsError, match="one curator"):
        fedrec.MatrixFactorization(
            method="dp-sgd", settings={"privacy.aggregation": "three-party"}
        ).fit(data)
    assert load(None, ["recipe=dp-sgd", "own.steps=3"]).own == {"steps": 3}
