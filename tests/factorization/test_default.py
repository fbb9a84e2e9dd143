"""The default recipe's server: what it makes of a release, beside what the devices were told."""

import numpy as np

from fedrec.data.planted import PlantedShape, planted
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.rounds import Loopback, train
from fedrec.privacy.ledger import Ledger
from fedrec.recipes import prepare
from fedrec.settings import load
from fedrec.streams import Streams

ITEMS = 40


def test_the_server_learns_around_the_rounded_numbers_that_devices_had() -> None:
    """Devices' residuals are those of the rounded model, and so is where the server starts its step."""
    world = planted(PlantedShape(users=60, items=ITEMS, events=700), seed=1)
    data = world.interactions
    facts = PublicFacts(data.num_users, data.num_items, data.kind, data.value_range, world.features, Streams(1))
    prepared = prepare(load(None, ["privacy.epsilon=20"]), facts)
    recipe, ledger = prepared.recipe, Ledger(prepared.plan.guarantee)
    state, steps = recipe.begin(), 0
    for done in train(recipe, Loopback(data, prepared.steps, prepared.plan, Streams(1), ledger), state):
        if done.question.step == "default/step":
            told = {name: done.question.public[name] for name in ("phi", "bias")}
            assert any(not np.array_equal(array, state[name]) for name, array in told.items())
            again = recipe.tell({**state, **told}, done.question, done.answer)
            assert all(np.array_equal(array, again[name]) for name, array in done.state.items())
            steps += 1
        state = done.state
    assert steps > 1
