"""What a device downloads under the default recipes: a small part of the arrays that it computes
with."""

from dataclasses import replace

import numpy as np
import pytest

from fedrec.data.kinds import Kind
from fedrec.data.planted import PlantedShape, planted
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.coding import coded
from fedrec.federation.messages import train
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import load

SHAPE = PlantedShape(users=800, items=800, events=24_000)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [5.0, np.inf])
@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_a_training_downloads_less_than_a_fifth_of_its_arrays(kind: Kind, epsilon: float) -> None:
    """Of small arrays, where the bytes of a question's shape weigh most; of real catalogues it is a
    tenth to a twentieth."""
    world = planted(SHAPE, seed=1)
    data = world.interactions
    if kind == "clicks":
        data = replace(
            data, values=np.ones_like(data.values), value_range=(0.0, 1.0), kind="clicks"
        )
    facts = PublicFacts(
        data.num_users, data.num_items, data.kind, data.value_range, world.features, Streams(1)
    )
    prepared = prepare(load(None, [f"privacy.epsilon={epsilon}"]), facts)
    link = Loopback(
        data, prepared.steps, prepared.plan, Streams(1), Ledger(prepared.plan.guarantee)
    )
    sent = 0
    held = 0
    earlier = {}
    for done in train(prepared.recipe, link, prepared.recipe.begin()):
        public = done.question.public
        sent += sum(map(len, coded(public, earlier).values()))
        held = held + sum(array.nbytes for array in public.values())
        earlier = public
    assert 0 < 5 * sent < held, (sent, held)
