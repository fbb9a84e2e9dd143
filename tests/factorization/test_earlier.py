"""A training that begins with an earlier release: which numbers of it enter, and as what."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data.planted import SHAPES, planted
from fedrec.data.splits import leave_last_out
from fedrec.evaluation.ratings import rating_metrics
from fedrec.factorization.facts import Earlier, PublicFacts, predict
from fedrec.federation.messages import State, train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import Prepared, prepare
from fedrec.settings import load

DATA = planted(SHAPES["small"], seed=1)
SPLIT = leave_last_out(DATA.interactions, seed=1)
FACTS = PublicFacts(
    SPLIT.train.num_users,
    SPLIT.train.num_items,
    "ratings",
    SPLIT.train.value_range,
    DATA.features,
    Streams(1),
)
ITEMS = DATA.catalogue.item_ids


def trained(facts: PublicFacts, *, noise: int, epsilon: float = 1.0) -> tuple[Prepared, State]:
    prepared = prepare(load(None, [f"privacy.epsilon={epsilon:g}"]), facts)
    link = Loopback(
        SPLIT.train, prepared.steps, prepared.plan, Streams(noise), Ledger(prepared.plan.guarantee)
    )
    *_, last = train(prepared.recipe, link, prepared.recipe.begin())
    return prepared, last.state


def rmse(prepared: Prepared, state: State) -> float:
    fold = SPLIT.validation
    return rating_metrics(
        predict(prepared.recipe.model(state), fold.history, fold.targets), fold.targets
    ).rmse


@pytest.mark.slow
def test_rows_follow_the_new_catalogue() -> None:
    _, state = trained(FACTS, noise=1)
    order = np.random.default_rng(1).permutation(len(ITEMS))[:-5]  # five items have left
    earlier = Earlier.of(state, FACTS.num_users, items=ITEMS, now=[ITEMS[j] for j in order])
    assert earlier is not None
    for name in ("phi", "bias", "counts", "observed"):
        np.testing.assert_array_equal(earlier.state[name], np.asarray(state[name])[order])


def test_counts_are_those_of_so_many_users() -> None:
    _, state = trained(FACTS, noise=1)
    earlier = Earlier.of(state, FACTS.num_users, items=ITEMS, now=ITEMS)
    assert earlier is not None
    start = earlier.start(num_users=2 * FACTS.num_users, weight=0.5)
    np.testing.assert_allclose(start["people_counts"], 2 * np.asarray(state["counts"]))
    np.testing.assert_allclose(
        start["people_precision"], 0.5 / np.asarray(state["observed_variance"])
    )
    assert "counts" not in start


def test_what_it_began_with_itself_goes_on() -> None:
    _, state = trained(FACTS, noise=1)
    known = {
        "people_observed": np.full_like(state["observed"], 3.0),
        "people_precision": 1 / np.asarray(state["observed_variance"]),
    }
    earlier = Earlier.of({**state, **known}, FACTS.num_users, items=ITEMS, now=ITEMS)
    assert earlier is not None
    np.testing.assert_allclose(earlier.state["observed"], (np.asarray(state["observed"]) + 3.0) / 2)
    np.testing.assert_allclose(
        earlier.state["observed_variance"], np.asarray(state["observed_variance"]) / 2
    )


@pytest.mark.parametrize("missing", ["phi", "observed_variance", "counts"])
def test_a_state_of_another_recipe_is_no_start(missing: str) -> None:
    _, state = trained(FACTS, noise=1)
    assert (
        Earlier.of(
            {name: array for name, array in state.items() if name != missing},
            1,
            items=ITEMS,
            now=ITEMS,
        )
        is None
    )
    assert Earlier.of(state, 1, items=ITEMS, now=[*ITEMS, "new"]) is None
