"""Item biases and users' own means beside the published recipe's vectors: `model.own_means`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data.interactions import Interactions
from fedrec.data.planted import SHAPES, planted
from fedrec.errors import SettingsError
from fedrec.factorization.facts import PublicFacts
from fedrec.factorization.least_squares import LocalStageModel, solved
from fedrec.federation.messages import State, train
from fedrec.federation.reports import squared_norms
from fedrec.in_process import Loopback
from fedrec.numerics.segments import unpack
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load

PLAIN = (
    "recipe=published",
    "model.encoder=id",
    "data.features=false",
    "model.dimension=3",
    "model.steps=2",
)
RADII = ("model.user_radius=1", "model.target_radius=1")
WITH = (*PLAIN, "model.own_means=true")


def _prepared(data: Interactions, *said: str, features: object = None) -> Prepared:
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, features, Streams(1)
    )  # type: ignore[arg-type]
    return prepare(load(None, said), facts)


def _trained(data: Interactions, *said: str, features: object = None) -> tuple[Prepared, State]:
    made = _prepared(data, *said, features=features)
    *_, last = train(
        made.recipe,
        Loopback(data, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee)),
        made.recipe.begin(),
    )
    return made, last.state


def test_without_noise_a_step_is_weighted_least_squares_of_vectors_and_biases_by_dense_algebra() -> None:  # fmt: skip
    """One outer step from the same start: rows (v_j, b_j / Gamma) solve the normal equations over
    the users' (u, Gamma)."""
    data = planted(SHAPES["small"], seed=3).interactions
    radius = 2.0
    ridge = 10.0
    said = (
        "privacy.epsilon=inf",
        "model.steps=1",
        "model.user_radius=2",
        "model.target_radius=4",
        "model.weights=uniform",
        "model.item_ridge=10",
    )
    made, state = _trained(data, *WITH, *said, "model.user_ridge=1")
    start = np.asarray(made.recipe.begin()["V"], np.float64)
    mean = float(state["mean"])
    means, U, _ = solved(
        data, np.ascontiguousarray(start[:, :-1]), radius * start[:, -1], mean, 1.0
    )
    U *= np.minimum(1, radius / np.maximum(np.linalg.norm(U, axis=1), 1e-30))[:, None]
    extended = np.column_stack([U, np.full(len(U), radius)])
    w = 1 / np.sqrt(np.diff(data.user_ptr))[data.users]
    for j in (0, 5, 40):
        own = data.items == j
        X = extended[data.users[own]]
        y = np.clip(data.values[own] - mean - means[data.users[own]], -4, 4)
        A = (X * w[own, None]).T @ X
        expected = np.linalg.solve(A + ridge * np.eye(4), (X * w[own, None]).T @ y)
        np.testing.assert_allclose(np.asarray(state["V"])[j], expected, atol=2e-3)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), radius=st.floats(0.05, 5.0))
def test_a_user_who_leaves_moves_statistics_by_at_most_the_declared_bound(
    seed: int, radius: float
) -> None:
    rng = np.random.default_rng(seed)
    users = 6
    items = 9
    columns = (
        np.repeat(np.arange(users), 4),
        np.concatenate([rng.permutation(items)[:4] for _ in range(users)]),
    )
    data = Interactions.from_columns(
        *columns,
        rng.uniform(1, 5, 4 * users),
        num_users=users,
        num_items=items,
        value_range=(1.0, 5.0),
    )
    made = _prepared(data, *WITH, f"model.user_radius={radius}")
    state = dict(made.recipe.begin())
    table = 3 * rng.standard_normal((items, 4)).astype(np.float32)
    state |= {"V": table, "round": np.array(1), "mean": np.array(3.0), "counts": np.ones(items)}
    question = made.recipe.ask(state)
    assert question is not None
    reports = made.steps[question.step](question, data)
    for release, norms in zip(
        question.releases, squared_norms(reports, question.releases), strict=True
    ):
        assert np.all(norms <= release.radius**2)


def test_biases_that_are_planted_are_found_and_the_released_model_says_them() -> None:
    """Ratings of an item's own level and a user's own: vectors alone of dimension 1 explain them
    worse."""
    rng = np.random.default_rng(2)
    level = rng.normal(0, 0.8, 40)
    own = rng.normal(0, 0.5, 400)
    users = np.repeat(np.arange(400), 20)
    items = np.concatenate([rng.permutation(40)[:20] for _ in range(400)])
    values = np.clip(3 + level[items] + own[users] + rng.normal(0, 0.3, len(users)), 1, 5)
    data = Interactions.from_columns(
        users, items, values, num_users=400, num_items=40, value_range=(1.0, 5.0)
    )
    made, state = _trained(
        data,
        *WITH,
        "privacy.epsilon=inf",
        "model.target_radius=4",
        "model.item_ridge=0.3",
        "model.steps=6",
    )
    model = made.recipe.model(state)
    assert isinstance(model, LocalStageModel)
    bias = np.asarray(model.arrays()["item_vectors"])[:, -1]
    assert np.corrcoef(bias, level)[0, 1] > 0.98
    predicted = (
        np.einsum("ed,ed->e", model.user_vectors(data)[data.users], model.item_vectors[data.items])
        + model.offset
    )
    found = math.sqrt(float(np.mean((predicted - data.values) ** 2)))
    assert found < 0.4


def test_the_plain_model_is_untouched_and_its_epsilon_is_the_same_plan() -> None:
    data = planted(SHAPES["small"], seed=3).interactions
    plain = _prepared(data, *PLAIN)
    extended = _prepared(data, *WITH)
    assert plain.plan == extended.plan
    assert np.asarray(plain.recipe.begin()["V"]).shape[1] == 3
    table = np.asarray(extended.recipe.begin()["V"])
    assert table.shape[1] == 4
    assert not table[:, -1].any()


def test_an_encoder_learns_biases_too_and_public_sides_leave_them_alone() -> None:
    dataset = planted(SHAPES["small"], seed=3)
    for said in (
        ("recipe=published", "model.own_means=true"),
        ("recipe=dp-cmf", "model.own_means=true"),
    ):
        made, state = _trained(
            dataset.interactions,
            *said,
            "privacy.epsilon=50",
            "model.dimension=2",
            features=dataset.features,
        )
        bias = np.asarray(made.recipe.model(state).arrays()["item_vectors"])[:, -1]
        assert bias.std() > 0.01


def test_clicks_have_no_means() -> None:
    dataset = planted(SHAPES["small"], seed=3).interactions
    clicks = Interactions(
        dataset.user_ptr,
        dataset.items,
        np.ones_like(dataset.values),
        dataset.num_items,
        (0.0, 1.0),
        "clicks",
    )
    for recipe in ("published", "dp-cmf"):
        with pytest.raises(SettingsError, match="clicks have no mean"):
            _prepared(clicks, f"recipe={recipe}", "model.own_means=true")


def test_the_printed_pseudo_inverse_and_plain_descent_are_what_a_scenario_asks_for() -> None:
    """Ada-DPALS Alg. 1 l. 7 on the released statistics, and AM-SSP's plain steps beside Adam's."""
    dataset = planted(SHAPES["small"], seed=3)
    data = dataset.interactions
    made = _prepared(
        data,
        *PLAIN,
        "model.solve=pseudo-inverse",
        "privacy.epsilon=20",
        "model.item_ridge=2",
        *RADII,
    )
    link = Loopback(data, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
    done = list(train(made.recipe, link, made.recipe.begin()))[1]
    gram, moment = (
        np.asarray(done.answer.values[f"{name}/0/0"], np.float64) for name in ("gram", "moment")
    )
    for j in range(5):
        values, Q = np.linalg.eigh(unpack(gram[j : j + 1], 3)[0] + 2 * np.eye(3))
        inverse = Q @ np.diag([1 / v if v > 0 else 0.0 for v in values]) @ Q.T
        np.testing.assert_allclose(
            np.asarray(done.state["V"])[j], inverse @ moment[j], rtol=1e-3, atol=1e-4
        )
    found = []
    for name in ("adam", "plain"):
        said = ("recipe=published", f"model.optimizer={name}", "model.learning_rate=0.0001")
        found.append(np.asarray(_trained(data, *said, features=dataset.features)[1]["V"]))
    assert not np.allclose(*found)
