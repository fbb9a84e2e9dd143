"""One step of AM-SSP and of Ada-DPALS, under their own names, beside the papers read line by line
in NumPy. Those of the other names: research/docs/papers.md."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from fedrec.data.interactions import Dataset
from fedrec.data.planted import SHAPES, planted
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load

Floats = npt.NDArray[np.float64]
D = 3
RIDGE = 0.5
OF_USERS = 2.0
RADIUS = 0.4
BOUND = 1.5
STEPS = 4
RATE = 0.002


def states_of(name: str, data: Dataset, width: int, *keys: str) -> list[Mapping[str, np.ndarray]]:
    """States after counts and after the first outer step, where nothing is noised."""
    ratings = data.interactions
    facts = PublicFacts(
        ratings.num_users,
        ratings.num_items,
        ratings.kind,
        ratings.value_range,
        data.features,
        Streams(1),
    )
    common = (
        "model.steps=1",
        f"model.user_ridge={OF_USERS}",
        f"model.item_ridge={RIDGE}",
        f"model.user_radius={RADIUS}",
        f"model.target_radius={BOUND}",
        "privacy.epsilon=inf",
    )
    made = prepare(
        load(None, [f"recipe={name}", f"model.dimension={width}", *common, *keys]), facts
    )
    link = Loopback(ratings, made.steps, made.plan, Streams(1), Ledger(made.plan.guarantee))
    return [done.state for done in train(made.recipe, link, made.recipe.begin())]


def statistics(
    data: Dataset, before: Mapping[str, np.ndarray], exponent: float
) -> tuple[Floats, Floats]:
    """Alg. 8 l. 2-8 of AM-SSP, Alg. 1 l. 3-6 of Ada-DPALS: (A_j, b_j), user by user, with
    w_ij = n_j^-mu over the root of the sum of squares, which spends a user's budget of 1 whole."""
    ratings = data.interactions
    V = np.asarray(before["V"], np.float64)
    n = np.asarray(before["counts"], np.float64)
    d = V.shape[1]
    A = np.zeros((len(V), d, d))
    b = np.zeros((len(V), d))
    for start, end in itertools.pairwise(ratings.user_ptr):
        items = ratings.items[start:end]
        y = ratings.values[start:end] - float(before["mean"])
        u = np.linalg.solve(V[items].T @ V[items] + OF_USERS * np.eye(d), V[items].T @ y)
        u *= min(1.0, RADIUS / np.linalg.norm(u))
        w = n[items] ** -exponent
        w /= np.sqrt((w**2).sum())
        A[items] += w[:, None, None] * np.outer(u, u)
        b[items] += (w * np.clip(y, -BOUND, BOUND))[:, None] * u
    return A, b


@pytest.mark.parametrize("exponent", [0.0, 0.25])
def test_a_step_of_ada_dpals_is_algorithm_1_read_line_by_line(exponent: float) -> None:
    """Items are solved one by one; lambda is outside the sum, where it is public, and grows with
    released counts as in the authors' code."""
    data = planted(SHAPES["small"], seed=3)
    choices = ("model.weight_exponent=0.25", f"model.ridge_exponent={exponent}")
    before, after = states_of("ada-dpals", data, D, *choices)
    assert len(np.unique(before["counts"])) > 10, "weights differ"
    A, b = statistics(data, before, 0.25)
    ridge = RIDGE * before["counts"] ** exponent
    expected = np.stack(
        [np.linalg.solve(A[j] + ridge[j] * np.eye(D), b[j]) for j in range(len(A))]
    )  # l. 7
    np.testing.assert_allclose(after["V"], expected, atol=5e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "width"), [("am-ssp", D), ("ssp2", D), ("ssp1", D), ("am-ssp", 64)]
)
def test_a_step_of_am_ssp_is_algorithm_8_read_line_by_line(name: str, width: int) -> None:
    """The encoder of App. E.1 descends on L(theta) by its gradient, eq. 4, written again; SSP1 asks
    for as many releases as steps, which are equal where nothing is noised."""
    data = planted(SHAPES["small"], seed=3)
    steps = 16 if name == "ssp1" else STEPS
    before, after = states_of(
        name,
        data,
        width,
        "model.weight_exponent=0.25",
        "model.optimizer=plain",
        f"model.encoder_steps={steps}",
        f"model.learning_rate={RATE}",
    )
    A, b = statistics(data, before, 0.25)
    assert data.features is not None
    bags = [bag.counts.toarray().astype(float) for bag in data.features.bags.values()]
    X = [bag / np.maximum(bag.sum(1, keepdims=True), 1) for bag in bags]
    E = [np.asarray(before[f"embedding/{c}"], float) for c in data.features.bags]
    W = np.asarray(before["dense"], float)
    w0 = np.asarray(before["bias"], float)
    for _ in range(steps):
        H = np.column_stack([x @ e for x, e in zip(X, E, strict=True)])
        V = H @ W + w0
        R = np.einsum("jab,jb->ja", A, V) - b + RIDGE * V  # eq. 4
        back = R @ W.T
        E = [
            e - RATE * x.T @ back[:, width * c : width * (c + 1)]
            for c, (x, e) in enumerate(zip(X, E, strict=True))
        ]
        W = W - RATE * H.T @ R
        w0 = w0 - RATE * R.sum(0)
    moved = np.column_stack([x @ e for x, e in zip(X, E, strict=True)]) @ W + w0
    assert np.abs(moved - before["V"]).max() > 0.1 * np.abs(moved).max()
    np.testing.assert_allclose(after["V"], moved, atol=5e-3 * np.abs(moved).max())
