"""What the benchmark of private queries counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrec.data.interactions import Interactions
from fedrec.data.splits import Fold
from fedrec.factorization.am_ssp.client import PublishedModel
from fedrec.settings import load
from fedrec_research.quality.serving_utility import EPSILONS, FORMS, K, Measured, of_scenario

ITEMS = 40
USERS = 6


@pytest.fixture(scope="module")
def measured() -> Measured:
    rng = np.random.default_rng(1)
    model = PublishedModel(rng.standard_normal((ITEMS, 3)).astype(np.float32), 3.0, 1.0, 1.0)
    users, items = np.divmod(np.arange(USERS * ITEMS), ITEMS)
    values = rng.integers(1, 6, len(users)).astype(np.float32)
    told = rng.random(len(users)) < 0.4

    def part(mask: np.ndarray) -> Interactions:
        columns = users[mask], items[mask], values[mask]
        return Interactions.from_columns(
            *columns, num_users=USERS, num_items=ITEMS, value_range=(1.0, 5.0)
        )

    return Measured.of(model, Fold(part(told), part(~told)), liked=4.0)


def test_fidelity_is_one_for_the_exact_order_and_falls_with_the_ranks(measured: Measured) -> None:
    assert measured.row(measured.by(measured.users))["fidelity"] == pytest.approx(1.0)
    assert measured.row(measured.by(measured.users))["shared"] == K
    other = np.random.default_rng(2).standard_normal(measured.users.shape)
    gains = [1 / math.log2(2 + p) for p in range(K)]
    slow = []
    V = np.asarray(measured.model.item_vectors, np.float64)
    for k in range(USERS):
        seen = measured.fold.history.items[
            measured.fold.history.user_ptr[k] : measured.fold.history.user_ptr[k + 1]
        ]

        def ten(u: np.ndarray, seen: np.ndarray = seen) -> list[int]:
            scores = V @ u
            scores[seen] = -np.inf
            return [int(j) for j in np.argsort(-scores)[:K]]

        exact = ten(measured.users[k])
        got = ten(other[k])
        slow.append(
            sum(gains[p] * gains[exact.index(j)] for p, j in enumerate(got) if j in exact)
            / sum(g * g for g in gains)
        )
    assert measured.row(measured.by(other))["fidelity"] == pytest.approx(float(np.mean(slow)))


def test_every_form_is_measured_at_every_epsilon() -> None:
    result = of_scenario(load(None, ["data.preset=small"]), quick=True)
    asked = [row for row in result["validation"] if "epsilon" in row]
    assert [(row["form"], row["epsilon"]) for row in asked] == [
        (form.name, "inf" if math.isinf(e) else e) for form in FORMS for e in EPSILONS
    ]
    assert {row["unit"] for row in asked if row["form"] == "one vector"} == {"history"}
    assert [row["form"] for row in result["test"]][:2] == ["exact", "no history"]
