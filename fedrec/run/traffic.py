"""Bytes that a person sends and receives in a training, measured on planted people: the recipe is
trained at its true plan for so many users, on a few people whose sums stand for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedrec.data.interactions import Interactions
from fedrec.data.planted import planted, shape_of_sizes
from fedrec.factorization.facts import PublicFacts
from fedrec.federation.coding import coded
from fedrec.federation.messages import Question, Release, train
from fedrec.federation.protocol import Invitation
from fedrec.federation.releases import noise_stds
from fedrec.federation.reports import ExactSums
from fedrec.federation.wire import invitation_bytes
from fedrec.in_process import Loopback
from fedrec.privacy.accounting import Ledger
from fedrec.randomness import Streams
from fedrec.recipes import prepare
from fedrec.settings import Scenario

_PEOPLE = 200  # enough for a mean; every person's traffic is measured by making it
_EVENTS = 100  # of a person, but at most a quarter of the items
_ITEMS = 12_000  # a larger catalogue is measured at so many items, and multiplied


@dataclass
class _StandingForAll:
    """A `Link` of few devices whose sums are multiplied by `factor`."""

    devices: Loopback
    factor: float

    def answer(self, question: Question) -> Release:
        """Their sums, and about the noise of the plan: bytes depend on its size, nobody's privacy
        does."""
        sums = ExactSums(question.blocks)
        for reports in self.devices.checked(question):
            sums.add(reports)
        stds = noise_stds(question, self.devices.plan)
        rng = Streams(0).numpy("traffic", round=question.round)
        by_block = {
            block.name: stds[spec.name] for spec in question.releases for block in spec.blocks
        }
        values = {
            block.name: total * block.step * self.factor
            + by_block[block.name] * rng.standard_normal(total.shape)
            for block, total in zip(question.blocks, sums.blocks, strict=True)
        }
        return Release(values, by_block)


def bytes_of_a_person(scenario: Scenario, facts: PublicFacts) -> dict[str, Any]:
    """What each person sends and receives over all rounds, in bytes, and the number of rounds.

    Args:
        scenario: says recipe and privacy.
        facts: public facts of the training; its sizes are used, not its features' values.

    Returns:
        rounds, sent, received.
    """
    items = max(50, min(facts.num_items, _ITEMS))
    people = min(facts.num_users, _PEOPLE)
    shape = shape_of_sizes(
        people,
        items,
        people * min(_EVENTS, items // 4),
        value_range=facts.value_range,
        kind=facts.kind,
    )
    made = planted(shape, seed=scenario.seed)
    data: Interactions = made.interactions
    features = None if facts.features is None else made.features
    streams = Streams(scenario.seed)
    sizes = PublicFacts(facts.num_users, items, data.kind, data.value_range, features, streams)
    prepared = prepare(scenario, sizes)
    promised = Ledger(prepared.plan.guarantee)
    devices = Loopback(data, prepared.steps, prepared.plan, streams, promised)
    told: Mapping[str, Any] = {}
    received = 0.0
    rounds = 0
    link = _StandingForAll(devices, facts.num_users / people)
    for done in train(prepared.recipe, link, prepared.recipe.begin()):
        question = done.question
        received += invitation_bytes(
            Invitation(scenario.run_id(), prepared.plan, question, coded(question.public, told))
        )
        told = question.public
        rounds += 1
    by_item = facts.num_items / items
    return {
        "rounds": rounds,
        "sent": devices.bytes_up / people,
        "received": received * by_item,
    }
